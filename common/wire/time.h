// A wall-clock time in JSON: RFC 3339 in UTC with nanoseconds, null for never. Readers whose
// numbers are doubles (jq, browsers) would round an integer of nanoseconds.
#pragma once

#include "common/base/clock.h"
#include "common/base/json.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nsa::wire {

// Nanoseconds since 1970; 0 means never. It converts implicitly to its number and back, because
// ledger and state use numbers.
struct Time {
  int64_t nanoseconds = 0;

  constexpr Time() = default;
  constexpr Time(int64_t value) : nanoseconds(value) {}
  constexpr operator int64_t() const { return nanoseconds; }
};

// Formats "2026-01-31T09:12:01.123456789Z".
std::string to_rfc3339(Time time);
// Accepts any number of fraction digits, UTC only.
std::optional<Time> parse_rfc3339(std::string_view text);

void to_json(nlohmann::json& json, const Time& time);
// Also accepts the integers of older ledgers. Throws for other types, as nlohmann::json does.
void from_json(const nlohmann::json& json, Time& time);

} // namespace nsa::wire
