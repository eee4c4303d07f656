#include "daemon/parts/meeting.h"

namespace nsa::parts {

std::string meeting_at_home(uint16_t port) {
  return "tcp:127.0.0.1:" + std::to_string(port);
}

std::string meeting_elsewhere(const std::string& first, uint16_t port) {
  const std::string host = first.substr(0, first.rfind(':'));
  const bool is_head = host.empty() || host.starts_with("127.") || host == "[::1]";
  return "tcp:" + (is_head ? "HEAD" : host) + ":" + std::to_string(port);
}

std::string with_name_of_head(const std::string& meeting, const std::string& head) {
  constexpr std::string_view kHead = "tcp:HEAD:";
  return meeting.starts_with(kHead) ? "tcp:" + head + ":" + meeting.substr(kHead.size()) : meeting;
}

} // namespace nsa::parts
