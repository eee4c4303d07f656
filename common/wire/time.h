// A wall-clock time on the wire: RFC 3339 in UTC with nanoseconds, null for never. An integer of
// nanoseconds would be rounded by every reader whose numbers are doubles (jq, browsers).
#pragma once

#include "common/base/clock.h"
#include "common/base/json.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nsa::wire {

// Nanoseconds since 1970; 0 is never. Turns into its number and back by itself, as ledger and state
// count in numbers.
struct Time {
  int64_t nanoseconds = 0;

  constexpr Time() = default;
  constexpr Time(int64_t value) : nanoseconds(value) {}
  constexpr operator int64_t() const { return nanoseconds; }
};

// "2026-01-31T09:12:01.123456789Z".
std::string to_rfc3339(Time time);
// Any number of fraction digits, UTC only.
std::optional<Time> parse_rfc3339(std::string_view text);

void to_json(nlohmann::json& json, const Time& time);
// Takes the integers of older ledgers too. Throws as nlohmann::json does on another type.
void from_json(const nlohmann::json& json, Time& time);

} // namespace nsa::wire
