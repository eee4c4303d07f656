// sd_notify(3) without the library: one datagram to $NOTIFY_SOCKET; nothing where there is none.
#pragma once

#include <string_view>

namespace nsa::control {

void notify_service_manager(std::string_view state);

} // namespace nsa::control
