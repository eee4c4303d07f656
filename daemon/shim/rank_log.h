// The log file of one rank: CRI lines, rotated by size between lines as <path>.1 (newest) and so
// on. A full disk or a missing folder never stops the caller. Bytes that cannot be written are
// counted, and the log mentions them once it can be written again. Regular files only; a write
// waits at most for the page cache. One thread.
#pragma once

#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "daemon/shim/cri.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace nsa::shim {

class RankLog {
public:
  // `files`: how many are kept, including the live one (at least 1).
  RankLog(std::string path, uint64_t max_bytes, int files);

  void feed(Stream stream, std::string_view bytes, WallTime now);
  // Counts bytes that the caller does not want to write, with the reason. The log mentions them
  // with its next lines.
  void skip(uint64_t bytes, const std::string& why, WallTime now);
  // Writes unfinished lines as parts, so that a follower sees a progress bar or a prompt.
  void flush_partial(WallTime now);
  bool has_partial() const { return out_.has_partial() || err_.has_partial(); }

  struct Dropped {
    uint64_t bytes = 0; // bytes of the rank's output
    std::string why;    // reason of the last failure
  };
  // What has been lost since the last call.
  Dropped take_dropped();

private:
  void write(std::string_view lines, WallTime now);
  bool append(std::string_view lines); // false if the lines are lost; they are counted
  bool open_file();
  void rotate();
  void lose(std::string_view lines, int error);

  std::string path_;
  uint64_t max_bytes_;
  int files_;
  CriFormatter out_{Stream::kStdout}, err_{Stream::kStderr};
  UniqueFd file_;
  uint64_t size_ = 0;
  Dropped dropped_;
  uint64_t unsaid_ = 0; // lost bytes that the log does not mention yet
  std::string unsaid_why_;
  std::string lines_; // scratch
};

} // namespace nsa::shim
