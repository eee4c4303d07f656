#include "daemon/api/log_reader.h"

#include "common/base/checksum.h"
#include "daemon/api/reply.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fcntl.h>
#include <sys/stat.h>
#include <tuple>
#include <unistd.h>

namespace nsa::api {

namespace {
constexpr size_t kPiece = 64 << 10;
// Longest line in a file. A shim writes at most a quarter of that.
constexpr size_t kMaxRaw = kPiece;
// Longest line that is joined from parts.
constexpr size_t kMaxText = 128 << 10;
// Far more rotated files than a shim keeps.
constexpr int kMaxRotated = 100;
// Bytes of one piece of LogPieces.
constexpr size_t kPieceGoal = 64 << 10;
// Most bytes of text that are read for one piece.
constexpr size_t kPieceCost = 4 << 20;
// Cost of a line in addition to its text.
constexpr size_t kLineCost = 64;

std::string rotated_path(const std::string& path, int index) {
  return index == 0 ? path : path + "." + std::to_string(index);
}

// Returns the offset at which the last `lines` lines of the file start. A block without a newline
// counts as a line, as it does when it is read. So the search never looks for the start of an
// endless line.
off_t tail_offset(int fd, off_t size, int64_t& lines) {
  std::vector<char> block(kMaxRaw);
  off_t end = size;
  bool at_end = true;
  while (end > 0) {
    const off_t from = std::max<off_t>(0, end - static_cast<off_t>(kMaxRaw));
    const ssize_t got = ::pread(fd, block.data(), static_cast<size_t>(end - from), from);
    if (got <= 0) return end;
    bool newline = false;
    for (ssize_t i = got; i-- > 0;) {
      if (block[static_cast<size_t>(i)] != '\n') {
        at_end = false;
        continue;
      }
      newline = true;
      if (at_end) { // the newline that ends the last line
        at_end = false;
        continue;
      }
      if (--lines == 0) return from + i + 1;
    }
    if (!newline && from > 0 && --lines == 0) return from;
    end = from;
  }
  if (size > 0) --lines; // the first line has no newline before it
  return 0;
}

Result<UniqueFd> open_log(const std::string& path) {
  // A rank may write into this folder. So nsad must not follow its links or wait on its pipes.
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  struct stat info{};
  if (!file || ::fstat(file.get(), &info) != 0) return fail_errno("cannot open " + path);
  if (!S_ISREG(info.st_mode)) return fail(ErrorCode::kInvalidArgument, path + " is no file");
  return file;
}
} // namespace

std::optional<CriLine> parse_cri(std::string_view line) {
  const auto word = [&line]() {
    const size_t end = line.find(' ');
    const std::string_view text = line.substr(0, end);
    line = end == std::string_view::npos ? std::string_view{} : line.substr(end + 1);
    return text;
  };
  CriLine parsed;
  parsed.time = word();
  const auto stream = choice_from<wire::LogStream>(word());
  const std::string_view tag = word();
  parsed.text = line;
  parsed.partial = tag == "P";
  if (parsed.time.size() < 20 || parsed.time[4] != '-' || parsed.time.back() != 'Z' || !stream ||
      *stream == wire::LogStream::kPosition || (tag != "F" && tag != "P"))
    return std::nullopt;
  parsed.stream = *stream;
  return parsed;
}

std::string LogPosition::text() const {
  char text[80];
  std::snprintf(text, sizeof text, "%d.%d.%llx.%x.%llx", attempt, rank,
                static_cast<unsigned long long>(inode), mark,
                static_cast<unsigned long long>(offset));
  return text;
}

std::optional<LogPosition> LogPosition::parse(std::string_view text) {
  LogPosition position;
  bool whole = true;
  const auto take = [&](auto& value, int base) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    whole = whole && error == std::errc{} && value >= 0;
    text.remove_prefix(static_cast<size_t>(end - text.data()));
  };
  const auto point = [&] {
    whole = whole && text.starts_with('.');
    if (whole) text.remove_prefix(1);
  };
  take(position.attempt, 10), point();
  take(position.rank, 10), point();
  take(position.inode, 16), point();
  take(position.mark, 16), point();
  take(position.offset, 16);
  if (!whole || !text.empty()) return std::nullopt;
  return position;
}

RankLogReader::RankLogReader(LogSource source, const LogStart& start) : source_(std::move(source)) {
  const auto from =
      std::find_if(start.from.begin(), start.from.end(), [&](const LogPosition& position) {
        return position.attempt == source_.attempt && position.rank == source_.rank;
      });
  if (from != start.from.end()) {
    if (!start_at(*from)) {
      start_at_oldest();
      if (from->inode != 0) missing_ = "lines were rotated away before they could be read";
    }
  } else if (start.tail) {
    start_at_tail(*start.tail);
  } else {
    start_at_oldest();
  }
  taken_ = place(bytes_at_).text();
}

void RankLogReader::start_at_oldest() {
  for (int index = 0; index <= kMaxRotated && open_at(index); ++index) {
  }
}

UniqueFd RankLogReader::open(int index, uint64_t& inode) const {
  const std::string path = rotated_path(source_.path, index);
  auto file = source_.open ? source_.open(path) : open_log(path);
  struct stat info{};
  if (!file || ::fstat(file->get(), &info) != 0) return {};
  inode = info.st_ino;
  return std::move(*file);
}

bool RankLogReader::open_at(int index) {
  uint64_t inode = 0;
  UniqueFd file = open(index, inode);
  if (!file) return false;
  file_ = std::move(file);
  inode_ = inode;
  mark_ = 0;
  bytes_.erase(0, at_);
  at_ = 0;
  // `bytes_` may start with the rest of an earlier file.
  bytes_at_ = -static_cast<int64_t>(bytes_.size());
  return true;
}

bool RankLogReader::start_at(const LogPosition& position) {
  // Rotation moves files to higher numbers, so a search upwards misses none.
  for (int index = 0; index <= kMaxRotated && open_at(index); ++index) {
    struct stat info{};
    if (inode_ != position.inode || ::fstat(file_.get(), &info) != 0) continue;
    if (position.offset > info.st_size || (position.mark != 0 && position.mark != mark())) continue;
    seek(position.offset);
    return true;
  }
  return false;
}

void RankLogReader::seek(int64_t offset) {
  ::lseek(file_.get(), offset, SEEK_SET);
  bytes_at_ = offset;
}

uint32_t RankLogReader::mark() {
  if (mark_ != 0 || !file_) return mark_;
  char start[40];
  const ssize_t got = ::pread(file_.get(), start, sizeof start, 0);
  const std::string_view text(start, got > 0 ? static_cast<size_t>(got) : 0);
  const size_t end = text.find(' ');
  if (end != std::string_view::npos) mark_ = checksum32({text.substr(0, end)});
  return mark_;
}

LogPosition RankLogReader::place(int64_t offset) {
  return {source_.attempt, source_.rank, inode_, mark(), offset};
}

void RankLogReader::start_at_tail(int64_t lines) {
  int index = 0;
  while (index <= kMaxRotated && open_at(index)) {
    struct stat info{};
    ::fstat(file_.get(), &info);
    if (lines == 0) return seek(info.st_size);
    const off_t offset = tail_offset(file_.get(), info.st_size, lines);
    if (lines <= 0) return seek(offset);
    ++index;
  }
  if (index > 0) open_at(index - 1); // the log has fewer lines, so start at the oldest file
}

// Moves from a rotated file to the one after it. Returns false if this is the live file.
bool RankLogReader::next_file() {
  for (int index = 0; index <= kMaxRotated; ++index) {
    uint64_t inode = 0;
    if (!open(index, inode)) {
      if (index == 0) return false; // rotation is in progress, and the new file does not exist yet
      break;
    }
    if (inode == inode_) return index > 0 && open_at(index - 1);
  }
  // Rotation has deleted this file and those after it, so continue with the oldest that is left.
  for (int index = kMaxRotated; index >= 0; --index)
    if (open_at(index)) return true;
  return false;
}

bool RankLogReader::fill() {
  if (!file_ && !open_at(0)) return false;
  char piece[kPiece];
  while (true) {
    const ssize_t got = ::read(file_.get(), piece, sizeof piece);
    if (got > 0) {
      bytes_.erase(0, at_);
      bytes_at_ += static_cast<int64_t>(at_);
      at_ = 0;
      bytes_.append(piece, static_cast<size_t>(got));
      return true;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 || !next_file()) return false;
  }
}

// Takes the file's next line, or the longest allowed part of an endless one.
bool RankLogReader::take_raw(std::string_view& raw) {
  const size_t end = bytes_.find('\n', at_);
  const size_t length = std::min(end, bytes_.size()) - at_;
  if (end == std::string::npos && length < kMaxRaw) return false;
  const size_t taken = std::min(length, kMaxRaw);
  raw = std::string_view(bytes_).substr(at_, taken);
  at_ += taken + (taken == length && end != std::string::npos ? 1 : 0);
  return true;
}

bool RankLogReader::join(std::string_view raw) {
  const auto parsed = parse_cri(raw);
  if (!unended_) {
    unended_.emplace();
    unended_->attempt = source_.attempt;
    unended_->rank = source_.rank;
    if (parsed) {
      unended_->time = std::string(parsed->time);
      unended_->stream = parsed->stream;
    }
  }
  // A line in an unknown format is shown unchanged, so that it is not lost.
  unended_->text += parsed ? parsed->text : raw;
  if (parsed && parsed->partial && unended_->text.size() < kMaxText) return false;
  unended_->position = place(bytes_at_ + static_cast<int64_t>(at_)).text();
  head_ = std::exchange(unended_, std::nullopt);
  return true;
}

const wire::LogLine* RankLogReader::peek() {
  while (!head_) {
    std::string_view raw;
    if (take_raw(raw))
      join(raw);
    else if (!fill())
      return nullptr;
  }
  return &*head_;
}

wire::LogLine RankLogReader::take() {
  wire::LogLine line = std::move(*head_);
  head_.reset();
  taken_ = line.position;
  return line;
}

wire::LogLine RankLogReader::position() const {
  wire::LogLine line;
  line.attempt = source_.attempt;
  line.rank = source_.rank;
  line.stream = wire::LogStream::kPosition;
  line.text = missing_;
  line.position = taken_;
  return line;
}

void LogMerge::add(const std::vector<LogSource>& sources, const LogStart& start) {
  for (const LogSource& source : sources)
    if (!readers_.count(source.path))
      readers_[source.path] = std::make_unique<RankLogReader>(source, start);
}

std::vector<wire::LogLine> LogMerge::positions() const {
  std::vector<wire::LogLine> list;
  for (const auto& [path, reader] : readers_)
    list.push_back(reader->position());
  return list;
}

std::optional<wire::LogLine> LogMerge::next() {
  RankLogReader* first = nullptr;
  const wire::LogLine* best = nullptr;
  for (const auto& [path, reader] : readers_) {
    const wire::LogLine* head = reader->peek();
    if (!head) continue;
    const auto key = [](const wire::LogLine& l) { return std::tie(l.attempt, l.time, l.rank); };
    if (!best || key(*head) < key(*best)) {
      best = head;
      first = reader.get();
    }
  }
  if (!first) return std::nullopt;
  return first->take();
}

// ---- Pieces -------------------------------------------------------------------------------------

LogPieces::LogPieces(std::vector<LogSource> sources, Options options)
    : sources_(std::move(sources)), options_(std::move(options)) {}

void LogPieces::add(std::vector<LogSource> sources) {
  if (phase_ == Phase::kSkip || phase_ == Phase::kSend)
    merge_.add(sources, {});
  else
    sources_.insert(sources_.end(), sources.begin(), sources.end());
}

bool LogPieces::wanted(const wire::LogLine& line) const {
  if (options_.since.empty() || line.time.empty()) return true;
  // Both times are UTC in one format. Without the final Z, their texts compare in the order of
  // time.
  const auto digits = [](std::string_view time) { return time.substr(0, time.size() - 1); };
  return digits(line.time) >= digits(options_.since);
}

void LogPieces::open() {
  merge_.add(sources_, options_.start);
  for (wire::LogLine& position : merge_.positions())
    begins_[{position.attempt, position.rank}] = std::move(position);
  // The last N lines of one rank are the last N of the whole. With several ranks, the last N lie
  // among the last N of each rank.
  phase_ = options_.start.tail && merge_.size() > 1 ? Phase::kCount : Phase::kSkip;
}

bool LogPieces::count() {
  for (size_t cost = 0; cost < kPieceCost;) {
    const auto line = merge_.next();
    if (!line) {
      counted_ = std::max<int64_t>(counted_ - *options_.start.tail, 0);
      LogStart again;
      for (const auto& [rank, begin] : begins_)
        if (const auto position = LogPosition::parse(begin.position))
          again.from.push_back(*position);
      merge_ = {};
      merge_.add(sources_, again);
      phase_ = Phase::kSkip;
      return true;
    }
    counted_ += wanted(*line);
    cost += line->text.size() + kLineCost;
  }
  return false;
}

bool LogPieces::skip() {
  for (size_t cost = 0; counted_ > 0 && cost < kPieceCost;) {
    const auto line = merge_.next();
    if (!line) break; // rotation removed it meanwhile
    counted_ -= wanted(*line);
    cost += line->text.size() + kLineCost;
    begins_[{line->attempt, line->rank}].position = line->position;
    if (counted_ > 0 && cost >= kPieceCost) return false;
  }
  phase_ = Phase::kSend;
  return true;
}

void LogPieces::send(Piece& piece) {
  for (size_t cost = 0; cost < kPieceCost && piece.lines.size() < kPieceGoal;) {
    const auto line = merge_.next();
    piece.at_end = !line;
    if (!line) return;
    cost += line->text.size() + kLineCost;
    if (wanted(*line)) piece.lines += json_line(*line);
  }
}

LogPieces::Piece LogPieces::next() {
  Piece piece;
  if (phase_ == Phase::kOpen) open();
  if (phase_ == Phase::kCount && !count()) return piece;
  if (phase_ == Phase::kSkip) {
    if (!skip()) return piece;
    if (options_.positions)
      for (const auto& [rank, position] : begins_)
        piece.lines += json_line(position);
  }
  send(piece);
  return piece;
}

} // namespace nsa::api
