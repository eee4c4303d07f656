// The checkpoint whose weights a run starts with: origin.checkpoint, "k3fm2@400". No I/O.
#pragma once

#include "common/base/ids.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nsa::spec {

struct Origin {
  RunId run;
  uint64_t step = 0; // step of its checkpoint
  bool operator==(const Origin&) const = default;
};

// Returns nullopt if the text is not ID@STEP.
std::optional<Origin> parse_origin(std::string_view text);
std::string text_of(const Origin& origin);

// Folder in a run's folder with the checkpoint that it starts with; its files are shared with the
// other run.
inline constexpr const char* kOriginFolder = "origin";

} // namespace nsa::spec
