// The data sets that a run mixes, known by their manifests: identity of the mixture. The order in
// which ranks read it is worker/data/mixture_order.h.
#pragma once

#include "common/base/file.h"
#include "common/dataset/manifest.h"
#include "common/spec/run_spec.h"

#include <span>
#include <string>
#include <vector>

namespace nsa::dataset {

// What fixes a source's part of the order. Weights as spec::whole_weights() gives them.
struct MixedSource {
  std::string digest;
  int64_t weight = 1;

  bool operator==(const MixedSource&) const = default;
};

// Of one data set its own digest; of several XXH3-128 over their digests and weights in order.
std::string mixture_digest(std::span<const MixedSource> sources);

// A run's text, as the manifests of its data sets tell it.
struct RunText {
  std::vector<Manifest> manifests; // of spec::sources_of(), in that order
  std::vector<MixedSource> sources;
  std::string digest;

  // The same for all of them.
  const TokenizerRecord& tokenizer() const { return manifests.front().tokenizer; }
};

// Reads each manifest by `open`. kNotFound and kCorrupt as read_source().
Result<RunText> read_text(const spec::DataSection& data,
                          const FileOpener& open = open_regular_file);

} // namespace nsa::dataset
