// Implements sd_notify(3) without the library: it sends one datagram to $NOTIFY_SOCKET, and does
// nothing if the variable is not set.
#pragma once

#include <string_view>

namespace nsa::control {

void notify_service_manager(std::string_view state);

} // namespace nsa::control
