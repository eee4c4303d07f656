// Checks of a loopback server before it answers a request. A page of another site can make a
// browser on this machine send requests. Such requests name that site as host, and have no token.
#pragma once

#include <string_view>

namespace nsa::net {

// Accepts "127.0.0.1:9464", "localhost", "[::1]:1", with any port, because it may be forwarded.
bool names_loopback(std::string_view host);
// Compares in constant time.
bool is_same_secret(std::string_view given, std::string_view expected);

} // namespace nsa::net
