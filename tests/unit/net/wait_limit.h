#pragma once

#include <chrono>

namespace nsa::net {

constexpr std::chrono::seconds kWaitLimit{60}; // only a broken program takes so long

} // namespace nsa::net
