#include "daemon/shim/evidence/nccl_ras.h"

#include "common/base/text.h"

#include <arpa/inet.h>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

namespace nsa::shim::evidence {

namespace {

constexpr std::string_view kQuestion = "VERBOSE STATUS\n";
constexpr size_t kMostBytes = size_t{1} << 20;
constexpr size_t kMostInClause = 600;

Error unavailable(const std::string& what) {
  return {ErrorCode::kUnavailable, "NCCL's RAS: " + what, ""};
}

Result<sockaddr_in> parse_address(std::string_view address) {
  const size_t colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  uint16_t port = 0;
  const std::string_view digits = colon == std::string_view::npos ? "" : address.substr(colon + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc{} || end != digits.data() + digits.size() || port == 0 ||
      ::inet_pton(AF_INET, std::string(address.substr(0, colon)).c_str(), &to.sin_addr) != 1)
    return fail(ErrorCode::kInvalidArgument,
                "\"" + std::string(address) + "\" is no IPv4 address with a port");
  to.sin_port = htons(port);
  return to;
}

} // namespace

Result<NcclRasQuestion> NcclRasQuestion::ask(std::string_view address) {
  NSA_TRY_ASSIGN(const sockaddr_in to, parse_address(address));
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // On the loopback interface connect() succeeds or fails at once.
  if (socket.get() < 0 ||
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0)
    return tl::unexpected(
        unavailable("nobody answers at " + std::string(address) + ": " + std::strerror(errno)));
  if (::send(socket.get(), kQuestion.data(), kQuestion.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(kQuestion.size()))
    return tl::unexpected(
        unavailable(std::string("the question was not sent: ") + std::strerror(errno)));
  return NcclRasQuestion(std::move(socket));
}

Result<std::string> NcclRasQuestion::answer(MonotonicTime deadline) {
  std::string text;
  char piece[4096];
  while (text.size() < kMostBytes) {
    const double left = to_seconds(deadline - MonotonicTime::now());
    if (left <= 0) break;
    pollfd ready{socket_.get(), POLLIN, 0};
    const int found = ::poll(&ready, 1, static_cast<int>(left * 1000) + 1);
    if (found < 0 && errno == EINTR) continue;
    if (found <= 0) break;
    const ssize_t got = ::recv(socket_.get(), piece, sizeof piece, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(piece, static_cast<size_t>(got));
  }
  if (text.empty()) return tl::unexpected(unavailable("it did not answer"));
  return text;
}

std::string summarise_nccl_ras(std::string_view text) {
  std::vector<std::string> lines;
  bool headed = false, inside = false;
  std::string_view before;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = trim(text.substr(begin, end - begin));
    begin = end + 1;
    // A heading is a line above a line of "=".
    if (!line.empty() && line.find_first_not_of('=') == std::string_view::npos) {
      if (inside && !lines.empty() && lines.back() == before) lines.pop_back();
      inside = before == "Errors" || before == "Warnings";
      headed = headed || inside;
    } else if (inside && !line.empty()) {
      lines.emplace_back(line);
    }
    if (!line.empty()) before = line;
  }
  if (!headed) return {};
  if (lines.empty()) return "no errors, no warnings";
  return join(lines, "; ").substr(0, kMostInClause);
}

} // namespace nsa::shim::evidence
