#include "common/net/guards.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace nsa::net {

bool names_loopback(std::string_view text) {
  std::string host(text);
  const size_t bracket = host.find(']');
  if (const size_t colon = host.rfind(':');
      colon != std::string::npos && (bracket == std::string::npos || colon > bracket))
    host.resize(colon);
  std::transform(host.begin(), host.end(), host.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (host == "localhost" || host == "[::1]") return true;
  return host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos;
}

bool is_same_secret(std::string_view given, std::string_view expected) {
  if (given.size() != expected.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < expected.size(); ++i)
    difference |= static_cast<unsigned char>(given[i] ^ expected[i]);
  return difference == 0;
}

} // namespace nsa::net
