// Lines of ranks' log files in the order of their times: CRI format, rotated files included, going
// on where a live file grows or is rotated away. A rank may have put anything there: only regular
// files are read, in pieces, and a line has a longest length, so that memory stays small whatever
// the files hold. No clock. One thread at a time, and not the loop's: files may lie on a slow disk.
#pragma once

#include "common/base/unique_fd.h"
#include "common/wire/api_types.h"
#include "daemon/api/service.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::api {

// "<RFC3339Nano> stdout F text" -> a line; `partial` says that the next line continues it ("P").
// nullopt: not in this format.
struct CriLine {
  std::string_view time, text;
  wire::LogStream stream = wire::LogStream::kStdout;
  bool partial = false;
};
std::optional<CriLine> parse_cri(std::string_view line);

// A place in a rank's log that outlives rotation and restarts of nsad. Time alone would not do: all
// lines that a rank wrote at once have the same.
struct LogPosition {
  AttemptNumber attempt = 0;
  Rank rank = 0;
  uint64_t inode = 0; // 0: the oldest line kept
  uint32_t mark = 0;  // of the file's first time; inodes are used again. 0: it was empty
  int64_t offset = 0; // in that file

  std::string text() const; // "2.0.5f3a2.9c01be44.1a2b3"
  static std::optional<LogPosition> parse(std::string_view text);
};

// Where reading begins: at `from` where it names the attempt and rank, else the last `tail` lines,
// else the oldest line kept.
struct LogStart {
  std::optional<int64_t> tail;
  std::vector<LogPosition> from;
};

// One rank's log from its oldest kept file to the live one.
class RankLogReader {
public:
  RankLogReader(LogSource source, const LogStart& start);

  // The next whole line, or null while there is none (yet).
  const wire::LogLine* peek();
  wire::LogLine take();
  // Behind the line that was taken last, as a line of stream "position".
  wire::LogLine position() const;

private:
  bool fill();                                     // reads on; false: nothing new
  UniqueFd open(int index, uint64_t& inode) const; // path, path.1, ...
  bool open_at(int index);
  bool next_file();
  void start_at_oldest();
  void start_at_tail(int64_t lines);
  bool start_at(const LogPosition& position);
  void seek(int64_t offset);
  uint32_t mark();
  LogPosition place(int64_t offset);
  bool take_raw(std::string_view& raw);
  bool join(std::string_view raw); // whether head_ is whole now

  LogSource source_;
  UniqueFd file_;
  uint64_t inode_ = 0;
  uint32_t mark_ = 0;
  std::string taken_, missing_;          // position() and its text
  std::string bytes_;                    // read
  size_t at_ = 0;                        // in bytes_: what lies before was taken
  int64_t bytes_at_ = 0;                 // offset of bytes_ in the file
  std::optional<wire::LogLine> unended_; // "P" parts so far
  std::optional<wire::LogLine> head_;
};

// Several ranks' lines, merged by time (equal times: lower rank first).
class LogMerge {
public:
  // Adds the sources that are not read yet; call again when a new attempt has started.
  void add(const std::vector<LogSource>& sources, const LogStart& start);
  std::optional<wire::LogLine> next();
  std::vector<wire::LogLine> positions() const; // of every reader
  size_t size() const { return readers_.size(); }

private:
  std::map<std::string, std::unique_ptr<RankLogReader>> readers_; // by path
};

// What a request asks for, as JSON lines in pieces of bounded size and cost. The last N lines of
// several ranks are found by counting first and reading again, not by keeping them.
class LogPieces {
public:
  struct Options {
    LogStart start;
    std::string since;      // RFC 3339, UTC; empty: all
    bool positions = false; // a line a rank before all others
  };
  struct Piece {
    std::string lines;
    bool at_end = false; // nothing more for now
  };

  LogPieces(std::vector<LogSource> sources, Options options);
  void add(std::vector<LogSource> sources); // of a later attempt: whole
  Piece next();

private:
  enum class Phase { kOpen, kCount, kSkip, kSend };
  void open();
  bool wanted(const wire::LogLine& line) const;
  bool count(); // false: there is more to count
  bool skip();  // false: there is more to skip
  void send(Piece& piece);

  std::vector<LogSource> sources_;
  Options options_;
  Phase phase_ = Phase::kOpen;
  LogMerge merge_;
  std::map<std::pair<AttemptNumber, Rank>, wire::LogLine> begins_; // where what is sent begins
  int64_t counted_ = 0;
};

} // namespace nsa::api
