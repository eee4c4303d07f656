#include "common/wire/time.h"

#include <cstdio>
#include <ctime>

namespace nsa::wire {

namespace {
constexpr int64_t kSecond = 1'000'000'000;
}

std::string to_rfc3339(Time time) {
  const int64_t fraction = (time.nanoseconds % kSecond + kSecond) % kSecond;
  const std::time_t seconds = (time.nanoseconds - fraction) / kSecond;
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[96];
  std::snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%09dZ", parts.tm_year + 1900,
                parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                static_cast<int>(fraction));
  return text;
}

std::optional<Time> parse_rfc3339(std::string_view text) {
  const std::string copy(text);
  std::tm parts{};
  int used = 0;
  if (std::sscanf(copy.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d%n", &parts.tm_year, &parts.tm_mon,
                  &parts.tm_mday, &parts.tm_hour, &parts.tm_min, &parts.tm_sec, &used) != 6)
    return std::nullopt;
  parts.tm_year -= 1900;
  parts.tm_mon -= 1;
  int64_t nanoseconds = static_cast<int64_t>(::timegm(&parts)) * kSecond;
  size_t at = static_cast<size_t>(used);
  if (at < copy.size() && copy[at] == '.') {
    int64_t unit = kSecond / 10;
    for (++at; at < copy.size() && copy[at] >= '0' && copy[at] <= '9'; ++at, unit /= 10)
      nanoseconds += (copy[at] - '0') * unit;
  }
  if (at + 1 != copy.size() || copy[at] != 'Z') return std::nullopt;
  return Time(nanoseconds);
}

void to_json(nlohmann::json& json, const Time& time) {
  if (time.nanoseconds == 0)
    json = nullptr;
  else
    json = to_rfc3339(time);
}

void from_json(const nlohmann::json& json, Time& time) {
  if (json.is_null()) {
    time = {};
  } else if (json.is_number_integer()) {
    time = json.get<int64_t>();
  } else {
    const auto parsed = parse_rfc3339(json.get_ref<const std::string&>());
    if (!parsed)
      throw nlohmann::json::other_error::create(501, "not a time in UTC: " + json.dump(), &json);
    time = *parsed;
  }
}

} // namespace nsa::wire
