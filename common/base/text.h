// Text helpers that all programs share: nearest names for typos, units for people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nsa {

// Returns the Damerau-Levenshtein distance (optimal string alignment): insertions, deletions,
// replacements, and swaps of neighbours.
int edit_distance(std::string_view a, std::string_view b);

// Returns the candidate nearest to `name` if it may be a typo (distance <= 2, or <= a third of the
// name's length).
std::optional<std::string> nearest_name(std::string_view name,
                                        const std::vector<std::string>& candidates);

std::string format_bytes(uint64_t bytes);    // "1.5 GiB"
std::string format_duration(double seconds); // "850ms", "12.3s", "4m05s", "2h10m", "3d04h"
std::string format_count(double value);      // "950", "1.71M", "116.5M", "2.05G"

std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);
std::string join(const std::vector<std::string>& parts, std::string_view separator);

} // namespace nsa
