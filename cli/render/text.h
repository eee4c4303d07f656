// Parts of screens: colours, state marks, sparklines, bars, times. Pure.
#pragma once

#include "common/base/clock.h"
#include "common/wire/words.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::render {

// How texts are drawn; set from Io.
struct Style {
  bool colour = false, unicode = true;
};

enum class Colour { kGreen, kYellow, kRed, kCyan, kBold, kDim };
std::string paint(std::string_view text, Colour colour, const Style& style);

// Returns a mark, the word and its colour, such as "● running", "✔ completed" or "✖ failed". So
// colour is never the only signal. Without unicode the marks are ASCII.
std::string state_mark(const ChoiceOrText<wire::RunState>& state, const Style& style);
bool is_ended(const ChoiceOrText<wire::RunState>& state); // false for a state of a newer nsad

// Draws the last `width` points, or averages of as many buckets, scaled to their own range:
// "▇▅▃▂▁".
std::string sparkline(const std::vector<double>& points, size_t width, const Style& style);

// Draws "[██████▌-----]" for a share from 0 to 1.
std::string bar(double share, int width, const Style& style);

// Returns the time since `then` as "12s", "4m", "3h" or "2d". It is "now" for less than a second,
// and "-" for never (0).
std::string age(WallTime then, WallTime now);
// Returns "14:02:11Z", the time of day in UTC, as in logs and JSON. The date is included if it is
// another day.
std::string clock_time(WallTime time, WallTime now);

std::string decimals(double value, int digits);       // "3.14"
std::string milliseconds(double seconds, int digits); // "1.50 ms" of 0.0015
std::string percent(double ratio);                    // "1.4 %" of 0.014
std::string format_loss(double loss);                 // "3.982"
std::string format_ratio(uint64_t part, uint64_t of); // "120/300"

} // namespace nsa::render
