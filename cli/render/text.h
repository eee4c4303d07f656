// Pieces of screens: colours, state marks, sparklines, bars, times. Pure.
#pragma once

#include "common/base/clock.h"
#include "common/wire/words.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::render {

// How a text may look; from Io.
struct Style {
  bool colour = false, unicode = true;
};

enum class Colour { kGreen, kYellow, kRed, kCyan, kBold, kDim };
std::string paint(std::string_view text, Colour colour, const Style& style);

// "● running", "✔ completed", "✖ failed": a mark, the word, and its colour, so that colour is never
// the only carrier. ASCII marks without unicode.
std::string state_mark(const ChoiceOrText<wire::RunState>& state, const Style& style);
bool is_ended(const ChoiceOrText<wire::RunState>& state); // not of one that a newer nsad has

// The last `width` points, or averages of as many buckets, scaled to their own range: "▇▅▃▂▁".
std::string sparkline(const std::vector<double>& points, size_t width, const Style& style);

// "[██████▌-----]" for 0 to 1.
std::string bar(double share, int width, const Style& style);

// "12s", "4m", "3h", "2d" before now; "now" for less than a second; "-" for never (0).
std::string age(WallTime then, WallTime now);
// "14:02:11Z", the time of day in UTC, as logs and JSON have it; with the date when it is another
// day.
std::string clock_time(WallTime time, WallTime now);

std::string decimals(double value, int digits);       // "3.14"
std::string milliseconds(double seconds, int digits); // "1.50 ms" of 0.0015
std::string percent(double ratio);                    // "1.4 %" of 0.014
std::string format_loss(double loss);                 // "3.982"
std::string format_ratio(uint64_t part, uint64_t of); // "120/300"

} // namespace nsa::render
