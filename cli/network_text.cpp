#include "cli/network_text.h"

#include <cmath>
#include <cstdio>

namespace nsa::cli {

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f ms", std::fabs(seconds) < 0.01 ? 2 : 0, seconds * 1e3);
  return text;
}

std::string bits_text(double bytes_per_second) {
  const double bits = 8 * bytes_per_second;
  const bool is_giga = bits >= 1e9;
  char text[32];
  std::snprintf(text, sizeof text, "%.3g %cbit/s", bits / (is_giga ? 1e9 : 1e6),
                is_giga ? 'G' : 'M');
  return text;
}

std::string network_text(const wire::NetworkFigures& figures) {
  return bits_text(figures.bytes_per_second) + ", " + milliseconds(figures.latency_seconds) +
         (figures.by == wire::MeasuredBy::kNccl ? ", NCCL" : ", TCP");
}

} // namespace nsa::cli
