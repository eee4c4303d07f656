// Formats network measurements for people.
#pragma once

#include "common/wire/node_view.h"

#include <string>

namespace nsa::cli {

std::string milliseconds(double seconds);       // "0.21 ms", "120 ms"
std::string bits_text(double bytes_per_second); // "9.41 Gbit/s", "84 Mbit/s"
std::string network_text(const wire::NetworkFigures& figures);

} // namespace nsa::cli
