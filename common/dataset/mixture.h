// The data sets that a run mixes, known by their manifests, and the identity of the mixture.
// worker/data/mixture_order.h defines the order in which ranks read it.
#pragma once

#include "common/base/file.h"
#include "common/dataset/manifest.h"
#include "common/spec/run_spec.h"

#include <span>
#include <string>
#include <vector>

namespace nsa::dataset {

// The values that determine a source's part of the order. Weights are those of
// spec::whole_weights().
struct MixedSource {
  std::string digest;
  int64_t weight = 1;

  bool operator==(const MixedSource&) const = default;
};

// Returns the digest of a single data set; for several, XXH3-128 over their digests and weights in
// order.
std::string mixture_digest(std::span<const MixedSource> sources);

// A run's text, described by the manifests of its data sets.
struct RunText {
  std::vector<Manifest> manifests; // in the order of spec::sources_of()
  std::vector<MixedSource> sources;
  std::string digest;

  // The same for all data sets.
  const TokenizerRecord& tokenizer() const { return manifests.front().tokenizer; }
};

// Reads each manifest with `open`. Errors: kNotFound and kCorrupt as in read_source().
Result<RunText> read_text(const spec::DataSection& data,
                          const FileOpener& open = open_regular_file);

} // namespace nsa::dataset
