// Data sets of `synthetic:needle` (docs/data-fetch.md), which `nsactl data fetch` makes.
#pragma once

#include "common/dataset/manifest.h"

#include <algorithm>

namespace nsa::dataset {

// Returns whether the manifest's sources are all needle documents.
inline bool is_needle_set(const Manifest& manifest) {
  return !manifest.sources.empty() &&
         std::all_of(manifest.sources.begin(), manifest.sources.end(), [](const auto& source) {
           return source.path.starts_with("synthetic:needle");
         });
}

} // namespace nsa::dataset
