// The open data sets that a run reads.
#pragma once

#include "common/dataset/dataset.h"
#include "common/dataset/mixture.h"

#include <filesystem>
#include <memory>
#include <vector>

namespace nsa::data {

struct Source {
  std::shared_ptr<const dataset::Dataset> dataset;
  int64_t weight = 1; // share of the sequences, in proportion to the other sources
  // With data.follow: the folder of the data set, which may not exist yet.
  std::filesystem::path followed = {};
};

inline std::vector<dataset::MixedSource> identities(const std::vector<Source>& sources) {
  std::vector<dataset::MixedSource> all;
  for (const Source& source : sources)
    all.push_back({source.dataset->digest(), source.weight});
  return all;
}

inline std::string digest_of(const std::vector<Source>& sources) {
  return dataset::mixture_digest(identities(sources));
}

} // namespace nsa::data
