// Where the weights come from that a run begins with: origin.checkpoint, "k3fm2@400". Pure.
#pragma once

#include "common/base/ids.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nsa::spec {

struct Origin {
  RunId run;
  uint64_t step = 0; // of its checkpoint
  bool operator==(const Origin&) const = default;
};

// Nothing: the text is no ID@STEP.
std::optional<Origin> parse_origin(std::string_view text);
std::string text_of(const Origin& origin);

// In a run's folder: the checkpoint that it begins with, files shared with the other run's.
inline constexpr const char* kOriginFolder = "origin";

} // namespace nsa::spec
