// Decides whether a run can begin with the weights of another (origin.checkpoint). Pure functions.
#pragma once

#include "common/dataset/manifest.h"
#include "common/manifest/manifest.h"
#include "common/spec/origin.h"
#include "common/spec/run_spec.h"

#include <optional>
#include <string>
#include <vector>

namespace nsa::control {

// A key of the run file that prevents it, and what to do about it.
struct Misfit {
  std::string key, what, next;
};

// Keys that decide which parameters a model has, and their shapes. Keys of [nsa] are included only
// if attention is NSA; nsa.compression_block only if compression is an MLP.
std::vector<std::string> shape_keys(const spec::RunSpec& spec);

// The shape keys in which `child` differs from the run whose weights it wants.
std::vector<Misfit> shape_misfits(const spec::Origin& origin, const spec::RunSpec& parent,
                                  const spec::RunSpec& child);

// Nullopt if the new run's text uses the same tokenizer. `parent` is the manifest of the other
// run's data set; nullopt if it cannot be read. `trained_on` is the digest of that data set from
// the checkpoint.
std::optional<Misfit> tokenizer_misfit(const spec::Origin& origin,
                                       const std::optional<dataset::Manifest>& parent,
                                       const std::string& trained_on,
                                       const dataset::Manifest& child);

// A misfit of origin.checkpoint if its step is not among `kept`.
std::optional<Misfit> step_misfit(const spec::Origin& origin, const std::vector<uint64_t>& kept);

// One sentence: what the run takes from the checkpoint, and what starts afresh.
std::string beginning(const spec::RunSpec& child);

} // namespace nsa::control
