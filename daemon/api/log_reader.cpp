#include "daemon/api/log_reader.h"

#include <algorithm>
#include <fcntl.h>
#include <sys/stat.h>
#include <tuple>
#include <unistd.h>
#include <vector>

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

RankLogReader::RankLogReader(LogSource source, std::optional<int64_t> tail)
    : source_(std::move(source)) {
  if (tail) {
    start_at_tail(*tail);
    return;
  }
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
  return true;
}

void RankLogReader::start_at_tail(int64_t lines) {
  int index = 0;
  while (index <= kMaxRotated && open_at(index)) {
    struct stat info{};
    ::fstat(file_.get(), &info);
    if (lines == 0) {
      ::lseek(file_.get(), 0, SEEK_END);
      return;
    }
    const off_t offset = tail_offset(file_.get(), info.st_size, lines);
    if (lines <= 0) {
      ::lseek(file_.get(), offset, SEEK_SET);
      return;
    }
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
    lines_.push_back(std::move(*unended_));
    unended_.reset();
  }
  bytes_.erase(0, from);
}

const wire::LogLine* RankLogReader::peek() {
  while (lines_.empty())
    if (!fill()) return nullptr;
  return &lines_.front();
}

wire::LogLine RankLogReader::take() {
  wire::LogLine line = std::move(lines_.front());
  lines_.pop_front();
  return line;
}

void LogMerge::add(const std::vector<LogSource>& sources, std::optional<int64_t> tail) {
  for (const LogSource& source : sources)
    if (!readers_.count(source.path))
      readers_[source.path] = std::make_unique<RankLogReader>(source, tail);
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
