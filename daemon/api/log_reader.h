// Reads lines of ranks' log files in the order of their times. The files are in CRI format, and
// rotated files are included. Reading continues when a live file grows or is rotated. A rank may
// have written anything there. So only regular files are read, in pieces, and the length of a line
// is limited. Memory stays small whatever the files hold. There is no clock. Use one thread at a
// time, never the loop's, because files may lie on a slow disk.
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

// Parses "<RFC3339Nano> stdout F text". `partial` ("P") means that the next line continues this
// one. Returns nullopt if the line has another format.
struct CriLine {
  std::string_view time, text;
  wire::LogStream stream = wire::LogStream::kStdout;
  bool partial = false;
};
std::optional<CriLine> parse_cri(std::string_view line);

// A position in a rank's log that stays valid across rotation and restarts of nsad. A time would
// not suffice, because lines that a rank writes together share one time.
struct LogPosition {
  AttemptNumber attempt = 0;
  Rank rank = 0;
  uint64_t inode = 0; // 0 means the oldest line that is left
  uint32_t mark = 0;  // checksum of the file's first time, since inodes are reused; 0 if the file
                      // was empty
  int64_t offset = 0; // offset in that file

  std::string text() const; // "2.0.5f3a2.9c01be44.1a2b3"
  static std::optional<LogPosition> parse(std::string_view text);
};

// Where reading begins. `from` applies if it names the attempt and rank. Otherwise the last `tail`
// lines are read, and without `tail` all lines.
struct LogStart {
  std::optional<int64_t> tail;
  std::vector<LogPosition> from;
};

// One rank's log, from its oldest file to the live one.
class RankLogReader {
public:
  RankLogReader(LogSource source, const LogStart& start);

  // Returns the next whole line, or null if there is none yet.
  const wire::LogLine* peek();
  wire::LogLine take();
  // Returns the position after the line that was taken last, as a line of stream "position".
  wire::LogLine position() const;

private:
  bool fill();                                     // reads more; false if there is nothing new
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
  bool join(std::string_view raw); // returns whether head_ is complete

  LogSource source_;
  UniqueFd file_;
  uint64_t inode_ = 0;
  uint32_t mark_ = 0;
  std::string taken_, missing_;          // text of position(), and what it reports as missing
  std::string bytes_;                    // bytes that were read
  size_t at_ = 0;                        // offset in bytes_; the bytes before it were taken
  int64_t bytes_at_ = 0;                 // offset of bytes_ in the file
  std::optional<wire::LogLine> unended_; // the "P" parts so far
  std::optional<wire::LogLine> head_;
};

// Merges the lines of several ranks by time. At equal times the lower rank comes first.
class LogMerge {
public:
  // Adds the sources that it does not read yet. Call it again when a new attempt has started.
  void add(const std::vector<LogSource>& sources, const LogStart& start);
  std::optional<wire::LogLine> next();
  std::vector<wire::LogLine> positions() const; // the positions of all readers
  size_t size() const { return readers_.size(); }

private:
  std::map<std::string, std::unique_ptr<RankLogReader>> readers_; // by path
};

// The lines that a request asks for, as JSON lines in pieces of limited size and cost. To find the
// last N lines of several ranks, it counts first and reads again, so it need not keep them.
class LogPieces {
public:
  struct Options {
    LogStart start;
    std::string since;      // RFC 3339, UTC; empty means no limit
    bool positions = false; // whether a line with each rank's position comes first
  };
  struct Piece {
    std::string lines;
    bool at_end = false; // nothing more is available now
  };

  LogPieces(std::vector<LogSource> sources, Options options);
  // Sources of a later attempt, which are read from their beginning.
  void add(std::vector<LogSource> sources);
  Piece next();

private:
  enum class Phase { kOpen, kCount, kSkip, kSend };
  void open();
  bool wanted(const wire::LogLine& line) const;
  bool count(); // false if there is more to count
  bool skip();  // false if there is more to skip
  void send(Piece& piece);

  std::vector<LogSource> sources_;
  Options options_;
  Phase phase_ = Phase::kOpen;
  LogMerge merge_;
  // Positions before the first line that is sent.
  std::map<std::pair<AttemptNumber, Rank>, wire::LogLine> begins_;
  int64_t counted_ = 0;
};

} // namespace nsa::api
