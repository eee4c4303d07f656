// Log lines in the format of the Kubernetes container runtime interface:
//
//   2026-01-31T09:12:01.123456789Z stdout F text of a whole line
//   2026-01-31T09:12:01.123456789Z stderr P part of a long line, without its newline yet
//
// Joining the texts of one stream, with a newline after each F, restores the output of a rank byte
// for byte. Pure: the caller passes the time and writes the text.
#pragma once

#include "common/base/clock.h"

#include <string>
#include <string_view>

namespace nsa::shim {

enum class Stream { kStdout, kStderr };

// Size of "2026-01-31T09:12:01.123456789Z stdout F ", the same for every line.
inline constexpr size_t kCriPrefixBytes = 40;
// A longer line is cut into P parts of this size and a final F.
inline constexpr size_t kMaxLineBytes = 16 * 1024;

// Cuts what one stream of a rank delivers into log lines.
class CriFormatter {
public:
  explicit CriFormatter(Stream stream) : stream_(stream) {}

  // Appends to `out` the log lines that `bytes` complete. It keeps an unfinished line back.
  void feed(std::string_view bytes, WallTime now, std::string& out);
  // Writes the kept text as a P part: after a pause, or at the stream's end.
  void flush(WallTime now, std::string& out);
  bool has_partial() const { return !partial_.empty(); }

private:
  void line(std::string_view text, char tag, WallTime now, std::string& out);

  Stream stream_;
  std::string partial_;
  int64_t second_ = -1; // the second that `prefix_` holds as date and time
  std::string prefix_;
};

// Bytes of the rank's own output in whole log lines: the loss when they cannot be written.
size_t cri_payload_bytes(std::string_view lines);

} // namespace nsa::shim
