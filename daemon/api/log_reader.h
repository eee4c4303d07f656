// Lines of ranks' log files in the order of their times: CRI format, rotated files included, going
// on where a live file grows or is rotated away. Reads in pieces, never waits; no clock. One
// thread.
#pragma once

#include "common/base/unique_fd.h"
#include "common/wire/api_types.h"
#include "daemon/api/service.h"

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace nsa::api {

// "<RFC3339Nano> stdout F text" -> a line; `partial` says that the next line continues it ("P").
// nullopt: not in this format.
struct CriLine {
  std::string_view time, stream, text;
  bool partial = false;
};
std::optional<CriLine> parse_cri(std::string_view line);

// One rank's log from its oldest kept file to the live one.
class RankLogReader {
public:
  // Starts at the oldest line kept, or with `tail` at the last so many lines.
  RankLogReader(LogSource source, std::optional<int64_t> tail);

  // The next whole line, or null while there is none (yet).
  const wire::LogLine* peek();
  wire::LogLine take();

private:
  bool fill();             // reads on; false: nothing new
  bool open_at(int index); // path, path.1, ...
  bool next_file();
  void start_at_tail(int64_t lines);
  void split();

  LogSource source_;
  UniqueFd file_;
  uint64_t inode_ = 0;
  std::string bytes_;                    // read, not yet a whole line
  std::optional<wire::LogLine> unended_; // "P" parts so far
  std::deque<wire::LogLine> lines_;
};

// Several ranks' lines, merged by time (equal times: lower rank first).
class LogMerge {
public:
  // Adds the sources that are not read yet; call again when a new attempt has started.
  void add(const std::vector<LogSource>& sources, std::optional<int64_t> tail);
  std::optional<wire::LogLine> next();

private:
  std::map<std::string, std::unique_ptr<RankLogReader>> readers_; // by path
};

} // namespace nsa::api
