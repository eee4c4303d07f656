#include "common/spec/origin.h"

#include <charconv>

namespace nsa::spec {

namespace {

constexpr size_t kMostDigits = 15; // exact in a double, like every count of a run file

} // namespace

std::optional<Origin> parse_origin(std::string_view text) {
  const size_t at = text.find('@');
  if (at == std::string_view::npos || !is_run_id(text.substr(0, at))) return std::nullopt;
  const std::string_view digits = text.substr(at + 1);
  if (digits.empty() || digits.size() > kMostDigits || digits[0] < '0' || digits[0] > '9')
    return std::nullopt;
  Origin origin{RunId(text.substr(0, at))};
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), origin.step);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return origin;
}

std::string text_of(const Origin& origin) {
  return origin.run + "@" + std::to_string(origin.step);
}

} // namespace nsa::spec
