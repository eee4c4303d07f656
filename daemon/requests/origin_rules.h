// Whether a run can begin with the weights of another (origin.checkpoint). Pure.
#pragma once

#include "common/dataset/manifest.h"
#include "common/manifest/manifest.h"
#include "common/spec/origin.h"
#include "common/spec/run_spec.h"

#include <optional>
#include <string>
#include <vector>

namespace nsa::control {

// A key of the run file that is in the way, and what to do about it.
struct Misfit {
  std::string key, what, next;
};

// Keys that decide which parameters a model has, and of which shape: of NSA's only where attention
// is NSA, nsa.compression_block only where it is an MLP's.
std::vector<std::string> shape_keys(const spec::RunSpec& spec);

// Each of these keys in which `child` differs from the run whose weights it wants.
std::vector<Misfit> shape_misfits(const spec::Origin& origin, const spec::RunSpec& parent,
                                  const spec::RunSpec& child);

// Nothing where the new run's text is of the same tokens. `parent`: of the other run's data set;
// nothing where that cannot be read. `trained_on`: its digest as the checkpoint has it.
std::optional<Misfit> tokenizer_misfit(const spec::Origin& origin,
                                       const std::optional<dataset::Manifest>& parent,
                                       const std::string& trained_on,
                                       const dataset::Manifest& child);

// origin.checkpoint where that step is none of the `kept` ones.
std::optional<Misfit> step_misfit(const spec::Origin& origin, const std::vector<uint64_t>& kept);

// One sentence: what the run begins with, and what begins anew.
std::string beginning(const spec::RunSpec& child);

} // namespace nsa::control
