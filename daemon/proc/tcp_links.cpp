#include "daemon/proc/tcp_links.h"

#include "common/base/file.h"
#include "common/base/text.h"

#include <algorithm>
#include <arpa/inet.h>
#include <charconv>
#include <filesystem>
#include <netinet/in.h>
#include <optional>

namespace nsa::proc {

namespace {

std::optional<uint64_t> number_of(std::string_view text, int base) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value)
                                                                  : std::nullopt;
}

// Parses "0100007F:0CEA": 32-bit words in the byte order of this machine.
std::string address_of(std::string_view text) {
  constexpr size_t kDigits = 8; // hexadecimal digits of a word
  text = text.substr(0, text.find(':'));
  uint32_t words[4] = {};
  const size_t count = text.size() / kDigits;
  if (text.size() % kDigits != 0 || (count != 1 && count != 4)) return {};
  for (size_t i = 0; i < count; ++i) {
    const auto word = number_of(text.substr(i * kDigits, kDigits), 16);
    if (!word) return {};
    words[i] = static_cast<uint32_t>(*word);
  }
  const bool mapped = count == 4 && words[0] == 0 && words[1] == 0 && words[2] == htonl(0xffff);
  char name[INET6_ADDRSTRLEN];
  const bool v4 = count == 1 || mapped;
  const void* from = v4 ? static_cast<const void*>(&words[mapped ? 3 : 0]) : words;
  return ::inet_ntop(v4 ? AF_INET : AF_INET6, from, name, sizeof name) == nullptr ? "" : name;
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  while (!(line = trim(line)).empty()) {
    const size_t end = std::min(line.find(' '), line.size());
    words.push_back(line.substr(0, end));
    line.remove_prefix(end);
  }
  return words;
}

std::set<uint64_t> sockets_of(pid_t pid) {
  constexpr std::string_view kBegin = "socket:[";
  std::set<uint64_t> inodes;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (!target.starts_with(kBegin) || target.back() != ']') continue;
    const std::string_view digits =
        std::string_view(target).substr(kBegin.size(), target.size() - kBegin.size() - 1);
    if (const auto inode = number_of(digits, 10)) inodes.insert(*inode);
  }
  return inodes;
}

} // namespace

// The kernel prints each line in this format (net/ipv4/tcp_ipv4.c, get_tcp4_sock):
//   sl local remote st tx_queue:rx_queue timer:when retransmits uid timeout inode ...
std::vector<TcpLink> parse_tcp_table(std::string_view table, const std::set<uint64_t>& inodes) {
  constexpr std::string_view kEstablished = "01", kRetransmitTimer = "01";
  std::vector<TcpLink> links;
  for (const std::string_view line : split(table, '\n')) {
    const std::vector<std::string_view> words = words_of(line);
    if (words.size() < 10 || words[3] != kEstablished) continue;
    const auto inode = number_of(words[9], 10);
    if (!inode || inodes.count(*inode) == 0) continue;
    const auto waiting = number_of(words[4].substr(0, words[4].find(':')), 16);
    const auto again = number_of(words[6], 16);
    TcpLink link{address_of(words[1]), address_of(words[2]), waiting.value_or(0), 0};
    if (words[5].substr(0, 2) == kRetransmitTimer)
      link.retransmits = static_cast<int>(again.value_or(0));
    if (!link.own.empty() && !link.peer.empty()) links.push_back(std::move(link));
  }
  return links;
}

Result<std::vector<TcpLink>> read_tcp_links(pid_t pid) {
  constexpr size_t kMost = size_t{16} << 20;
  const std::set<uint64_t> inodes = sockets_of(pid);
  std::vector<TcpLink> links;
  for (const char* table : {"tcp", "tcp6"}) {
    const auto text = read_file("/proc/" + std::to_string(pid) + "/net/" + table, kMost);
    // A kernel without IPv6 has no tcp6.
    if (!text && text.error().code == ErrorCode::kNotFound) continue;
    if (!text) return fail(text.error());
    for (TcpLink& link : parse_tcp_table(*text, inodes))
      links.push_back(std::move(link));
  }
  return links;
}

} // namespace nsa::proc
