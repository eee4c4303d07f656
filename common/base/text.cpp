#include "common/base/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace nsa {

int edit_distance(std::string_view a, std::string_view b) {
  const size_t columns = b.size() + 1;
  std::vector<int> table((a.size() + 1) * columns);
  auto at = [&](size_t i, size_t j) -> int& { return table[i * columns + j]; };
  for (size_t i = 0; i <= a.size(); ++i)
    at(i, 0) = static_cast<int>(i);
  for (size_t j = 0; j <= b.size(); ++j)
    at(0, j) = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replace = at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
    }
  }
  return at(a.size(), b.size());
}

std::optional<std::string> nearest_name(std::string_view name,
                                        const std::vector<std::string>& candidates) {
  const int limit = std::max(2, static_cast<int>(name.size()) / 3);
  int best = limit + 1;
  std::optional<std::string> nearest;
  for (const std::string& candidate : candidates) {
    // The difference of the lengths is a lower bound. It avoids a large table for a very long name.
    const size_t shorter = std::min(name.size(), candidate.size());
    if (std::max(name.size(), candidate.size()) - shorter >= static_cast<size_t>(best)) continue;
    const int distance = edit_distance(name, candidate);
    // Rejects a candidate with another first letter and half of the letters changed, and one with
    // all letters changed.
    const bool is_alike = 2 * distance < static_cast<int>(name.size()) ||
                          (!name.empty() && !candidate.empty() && name[0] == candidate[0]);
    if (distance < best && is_alike &&
        distance < static_cast<int>(std::max(name.size(), candidate.size()))) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

namespace {
std::string print(const char* format, double value, const char* unit = "") {
  char text[64];
  std::snprintf(text, sizeof text, format, value, unit);
  return text;
}
} // namespace

std::string format_bytes(uint64_t bytes) {
  static constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return print(unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
}

std::string format_duration(double seconds) {
  char text[64];
  if (seconds < 0) return "-" + format_duration(-seconds);
  if (seconds < 0.9995) return print("%.0fms", seconds * 1000);
  if (seconds < 59.95) return print("%.1fs", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600)
    std::snprintf(text, sizeof text, "%dm%02ds", static_cast<int>(whole / 60),
                  static_cast<int>(whole % 60));
  else if (whole < 86400)
    std::snprintf(text, sizeof text, "%dh%02dm", static_cast<int>(whole / 3600),
                  static_cast<int>(whole / 60 % 60));
  else
    std::snprintf(text, sizeof text, "%dd%02dh", static_cast<int>(whole / 86400),
                  static_cast<int>(whole / 3600 % 24));
  return text;
}

std::string format_count(double value) {
  const double size = std::fabs(value);
  if (size < 1e3) return print(size == std::floor(size) ? "%.0f" : "%.1f", value);
  if (size < 1e6) return print(size < 1e4 ? "%.2fk" : "%.1fk", value / 1e3);
  if (size < 1e9) return print(size < 1e7 ? "%.2fM" : "%.1fM", value / 1e6);
  return print(size < 1e13 ? "%.2fG" : "%.3gG", value / 1e9);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t from = 0;
  while (true) {
    const size_t to = text.find(separator, from);
    if (to == std::string_view::npos) {
      parts.emplace_back(text.substr(from));
      return parts;
    }
    parts.emplace_back(text.substr(from, to - from));
    from = to + 1;
  }
}

std::string_view trim(std::string_view text) {
  static constexpr std::string_view kBlank = " \t\r\n";
  const size_t from = text.find_first_not_of(kBlank);
  if (from == std::string_view::npos) return {};
  return text.substr(from, text.find_last_not_of(kBlank) - from + 1);
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string joined;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) joined += separator;
    joined += parts[i];
  }
  return joined;
}

} // namespace nsa
