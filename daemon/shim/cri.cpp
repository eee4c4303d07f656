#include "daemon/shim/cri.h"

#include <algorithm>
#include <cstdio>
#include <ctime>

namespace nsa::shim {

void CriFormatter::line(std::string_view text, char tag, WallTime now, std::string& out) {
  const int64_t second = now.nanoseconds / 1'000'000'000;
  if (second != second_) { // formatting the date is the expensive part
    const std::time_t t = second;
    std::tm parts{};
    ::gmtime_r(&t, &parts);
    char date[24];
    prefix_.assign(date, std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S.", &parts));
    second_ = second;
  }
  char rest[32];
  const int length = std::snprintf(rest, sizeof rest, "%09dZ %s %c ",
                                   static_cast<int>(now.nanoseconds % 1'000'000'000),
                                   stream_ == Stream::kStdout ? "stdout" : "stderr", tag);
  out += prefix_;
  out.append(rest, static_cast<size_t>(length));
  out += text;
  out += '\n';
}

void CriFormatter::feed(std::string_view bytes, WallTime now, std::string& out) {
  while (!bytes.empty()) {
    const size_t newline = bytes.find('\n');
    const size_t room = kMaxLineBytes - partial_.size();
    const bool whole = newline != std::string_view::npos && newline <= room;
    const size_t take = whole ? newline : std::min(room, bytes.size());
    if (!whole && take < room) { // the line continues in the next read
      partial_ += bytes;
      return;
    }
    std::string_view text = bytes.substr(0, take);
    if (!partial_.empty()) {
      partial_ += text;
      text = partial_;
    }
    line(text, whole ? 'F' : 'P', now, out);
    partial_.clear();
    bytes.remove_prefix(take + (whole ? 1 : 0));
  }
}

void CriFormatter::flush(WallTime now, std::string& out) {
  if (partial_.empty()) return;
  line(partial_, 'P', now, out);
  partial_.clear();
}

size_t cri_payload_bytes(std::string_view lines) {
  size_t bytes = 0;
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    if (end >= kCriPrefixBytes)
      bytes += end - kCriPrefixBytes + (lines[kCriPrefixBytes - 2] == 'F' ? 1 : 0);
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  return bytes;
}

} // namespace nsa::shim
