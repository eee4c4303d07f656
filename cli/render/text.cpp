#include "cli/render/text.h"

#include "common/base/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <ctime>

namespace nsa::render {

namespace {
struct StateLook {
  std::string_view mark, ascii;
  Colour colour;
};

StateLook look_of(wire::RunState state) {
  using enum wire::RunState;
  switch (state) {
  case kQueued:
    return {"◌", ".", Colour::kDim};
  case kStarting:
    return {"◔", "o", Colour::kCyan};
  case kRunning:
    return {"●", "*", Colour::kGreen};
  case kRestarting:
    return {"↻", "~", Colour::kYellow};
  case kStopping:
    return {"◑", "o", Colour::kCyan};
  case kCompleted:
    return {"✔", "+", Colour::kGreen};
  case kStopped:
    return {"■", "-", Colour::kDim};
  case kFailed:
  case kDamaged:
    return {"✖", "x", Colour::kRed};
  case kCancelled:
    return {"⊘", "-", Colour::kDim};
  case kPaused:
    return {"‖", "=", Colour::kYellow};
  }
  return {};
}

std::string utc_time(WallTime time, const char* format) {
  const time_t seconds = static_cast<time_t>(time.nanoseconds / 1'000'000'000);
  tm parts{};
  gmtime_r(&seconds, &parts);
  char text[64];
  return {text, std::strftime(text, sizeof text, format, &parts)};
}
} // namespace

std::string paint(std::string_view text, Colour colour, const Style& style) {
  if (!style.colour) return std::string(text);
  static constexpr std::array<std::string_view, 6> kCodes = {"32", "33", "31", "36", "1", "2"};
  return "\033[" + std::string(kCodes[static_cast<size_t>(colour)]) + "m" + std::string(text) +
         "\033[0m";
}

std::string state_mark(const ChoiceOrText<wire::RunState>& state, const Style& style) {
  if (!state.value()) return state.text(); // a state of a newer nsad
  const StateLook look = look_of(*state.value());
  return paint(std::string(style.unicode ? look.mark : look.ascii) + " " + state.text(),
               look.colour, style);
}

bool is_ended(const ChoiceOrText<wire::RunState>& state) {
  return state.value() && has_ended(*state.value());
}

std::string sparkline(const std::vector<double>& points, size_t width, const Style& style) {
  if (points.empty() || width == 0) return "";
  static constexpr std::array<std::string_view, 8> kBars = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static constexpr std::array<std::string_view, 8> kAscii = {"_", "_", ".", "-",
                                                             "-", "=", "^", "^"};
  const size_t columns = std::min(width, points.size());
  std::vector<double> values(columns);
  for (size_t i = 0; i < columns; ++i) {
    const size_t from = i * points.size() / columns, to = (i + 1) * points.size() / columns;
    double sum = 0;
    for (size_t k = from; k < to; ++k)
      sum += points[k];
    values[i] = sum / static_cast<double>(to - from);
  }
  double low = INFINITY, high = -INFINITY;
  for (const double value : values)
    if (std::isfinite(value)) {
      low = std::min(low, value);
      high = std::max(high, value);
    }
  std::string line;
  for (const double value : values) {
    if (!std::isfinite(value)) {
      line += '!';
      continue;
    }
    const double share = high > low ? (value - low) / (high - low) : 0;
    const size_t level = std::min<size_t>(7, static_cast<size_t>(share * 8));
    line += style.unicode ? kBars[level] : kAscii[level];
  }
  return line;
}

std::string bar(double share, int width, const Style& style) {
  static constexpr std::array<std::string_view, 8> kEighths = {"",  "▏", "▎", "▍",
                                                               "▌", "▋", "▊", "▉"};
  share = std::clamp(share, 0.0, 1.0);
  const int eighths = static_cast<int>(std::floor(share * width * 8));
  int used = eighths / 8;
  std::string text = "[";
  for (int i = 0; i < used; ++i)
    text += style.unicode ? "█" : "#";
  if (style.unicode && eighths % 8 != 0) {
    text += kEighths[static_cast<size_t>(eighths % 8)];
    ++used;
  }
  text.append(static_cast<size_t>(width - used), style.unicode ? '-' : '.');
  return text + "]";
}

std::string age(WallTime then, WallTime now) {
  if (then.nanoseconds == 0) return "-";
  const double seconds = to_seconds(now - then);
  if (seconds < 1) return "now";
  if (seconds < 60) return std::to_string(static_cast<int>(seconds)) + "s";
  if (seconds < 3600) return std::to_string(static_cast<int>(seconds / 60)) + "m";
  if (seconds < 48 * 3600) return std::to_string(static_cast<int>(seconds / 3600)) + "h";
  return std::to_string(static_cast<int>(seconds / 86400)) + "d";
}

std::string clock_time(WallTime time, WallTime now) {
  const bool today = utc_time(time, "%F") == utc_time(now, "%F");
  return utc_time(time, today ? "%TZ" : "%F %TZ");
}

std::string decimals(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string milliseconds(double seconds, int digits) {
  return decimals(1e3 * seconds, digits) + " ms";
}

std::string percent(double ratio) {
  return decimals(100 * ratio, 1) + " %";
}

std::string format_loss(double loss) {
  return decimals(loss, 3);
}

std::string format_ratio(uint64_t part, uint64_t of) {
  return std::to_string(part) + "/" + std::to_string(of);
}

} // namespace nsa::render
