#include "daemon/api/log_reader.h"

#include "common/base/checksum.h"

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
constexpr size_t kMaxText = 1 << 20; // of one line put together from parts
constexpr int kMaxRotated = 100;     // far above what a shim keeps

std::string rotated_path(const std::string& path, int index) {
  return index == 0 ? path : path + "." + std::to_string(index);
}

// Where the last `lines` lines of the file start.
off_t tail_offset(int fd, off_t size, int64_t& lines) {
  std::vector<char> block(kPiece);
  off_t end = size;
  bool at_end = true;
  while (end > 0) {
    const off_t from = std::max<off_t>(0, end - static_cast<off_t>(kPiece));
    const ssize_t got = ::pread(fd, block.data(), static_cast<size_t>(end - from), from);
    if (got <= 0) return end;
    for (ssize_t i = got; i-- > 0;) {
      if (block[static_cast<size_t>(i)] != '\n') {
        at_end = false;
        continue;
      }
      if (at_end) { // the newline that ends the last line
        at_end = false;
        continue;
      }
      if (--lines == 0) return from + i + 1;
    }
    end = from;
  }
  if (size > 0) --lines; // the first line has no newline before it
  return 0;
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
  parsed.stream = word();
  const std::string_view tag = word();
  parsed.text = line;
  parsed.partial = tag == "P";
  if (parsed.time.size() < 20 || parsed.time[4] != '-' || parsed.time.back() != 'Z' ||
      (parsed.stream != "stdout" && parsed.stream != "stderr") || (tag != "F" && tag != "P"))
    return std::nullopt;
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
  int oldest = 0;
  while (oldest < kMaxRotated &&
         ::access(rotated_path(source_.path, oldest + 1).c_str(), F_OK) == 0)
    ++oldest;
  // Between the look and the open files may have moved up by one: the oldest that opens is it.
  while (oldest >= 0 && !open_at(oldest))
    --oldest;
}

bool RankLogReader::open_at(int index) {
  // A rank may write into this folder: follow no link of its making, wait on no pipe.
  UniqueFd file(::open(rotated_path(source_.path, index).c_str(),
                       O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info{};
  if (!file || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  file_ = std::move(file);
  inode_ = info.st_ino;
  mark_ = 0;
  bytes_at_ = -static_cast<int64_t>(bytes_.size()); // what an earlier file ended with
  return true;
}

bool RankLogReader::start_at(const LogPosition& position) {
  // Upwards, as rotation moves files: none slips past.
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
  if (index > 0) open_at(index - 1); // fewer lines than asked for: from the oldest file
}

// From a file that was rotated away to the one after it; false when this is the live one.
bool RankLogReader::next_file() {
  struct stat info{};
  for (int index = 0; index <= kMaxRotated; ++index) {
    if (::stat(rotated_path(source_.path, index).c_str(), &info) != 0) {
      if (index == 0) return false; // rotating right now: the new file is not there yet
      break;
    }
    if (info.st_ino == inode_) return index > 0 && open_at(index - 1);
  }
  // Gone altogether: what lay between was deleted by the rotation; go on with the oldest kept.
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
      bytes_.append(piece, static_cast<size_t>(got));
      split();
      return true;
    }
    if (got < 0 && errno == EINTR) continue;
    if (!next_file()) return false;
  }
}

void RankLogReader::split() {
  size_t from = 0;
  for (size_t end; (end = bytes_.find('\n', from)) != std::string::npos; from = end + 1) {
    const std::string_view raw(bytes_.data() + from, end - from);
    auto parsed = parse_cri(raw);
    if (!unended_) {
      unended_.emplace();
      unended_->attempt = source_.attempt;
      unended_->rank = source_.rank;
      if (parsed) {
        unended_->time = std::string(parsed->time);
        unended_->stream = std::string(parsed->stream);
      }
    }
    // A line in no known format is shown as it is rather than lost.
    unended_->text += parsed ? parsed->text : raw;
    if (parsed && parsed->partial && unended_->text.size() < kMaxText) continue;
    unended_->position = place(bytes_at_ + static_cast<int64_t>(end) + 1).text();
    lines_.push_back(std::move(*unended_));
    unended_.reset();
  }
  bytes_.erase(0, from);
  bytes_at_ += static_cast<int64_t>(from);
}

const wire::LogLine* RankLogReader::peek() {
  while (lines_.empty())
    if (!fill()) return nullptr;
  return &lines_.front();
}

wire::LogLine RankLogReader::take() {
  wire::LogLine line = std::move(lines_.front());
  lines_.pop_front();
  taken_ = line.position;
  return line;
}

wire::LogLine RankLogReader::position() const {
  return {source_.attempt, source_.rank, "", "position", missing_, taken_};
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

} // namespace nsa::api
