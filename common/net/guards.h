// What a server on loopback asks of a request before it answers. A page of another site can make a
// browser on this machine send requests: they name that site as their host, and know no token.
#pragma once

#include <string_view>

namespace nsa::net {

// "127.0.0.1:9464", "localhost", "[::1]:1"; any port, since it may be forwarded.
bool names_loopback(std::string_view host);
// In a time that does not tell how much of it fits.
bool is_same_secret(std::string_view given, std::string_view expected);

} // namespace nsa::net
