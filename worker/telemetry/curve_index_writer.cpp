#include "worker/telemetry/curve_index_writer.h"

#include "common/base/file.h"
#include "common/base/log.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <unistd.h>
#include <vector>

namespace nsa::train {

namespace {

constexpr size_t kReadBytes = size_t{1} << 20;
constexpr size_t kLongestRecord = size_t{64} << 10; // as nsad reads them
constexpr size_t kMostIndexBytes = size_t{1} << 30;

std::string read_piece(int fd, int64_t from, size_t size) {
  std::string bytes(size, '\0');
  size_t filled = 0;
  while (filled < size) {
    const ssize_t got =
        ::pread(fd, bytes.data() + filled, size - filled, from + static_cast<int64_t>(filled));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    filled += static_cast<size_t>(got);
  }
  bytes.resize(filled);
  return bytes;
}

void keep_last(std::string& last, std::string_view line) {
  constexpr auto kKept = static_cast<size_t>(curves::kCheckedBytes);
  last += line;
  if (last.size() > 4 * kKept) last.erase(0, last.size() - kKept);
}

std::string lines_of(const curves::SegmentBuilder& segment, std::string_view last_bytes) {
  const auto checked =
      static_cast<size_t>(std::min(segment.end() - segment.begin(), curves::kCheckedBytes));
  return segment.lines(curves::check_of(
      last_bytes.substr(last_bytes.size() - std::min(checked, last_bytes.size()))));
}

} // namespace

CurveIndexWriter::CurveIndexWriter(std::filesystem::path metrics, int64_t size)
    : metrics_(std::move(metrics)), size_(size), segment_(size),
      thread_([this](const std::stop_token& stop) { catch_up(stop); }) {}

CurveIndexWriter::~CurveIndexWriter() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void CurveIndexWriter::add(const nlohmann::json& record, std::string_view line) {
  const auto end_segment = [this] {
    put(lines_of(segment_, last_bytes_));
    segment_ = curves::SegmentBuilder(segment_.end());
    last_bytes_.clear();
  };
  if (!segment_.add(record, static_cast<int64_t>(line.size()))) {
    end_segment();
    (void)segment_.add(record, static_cast<int64_t>(line.size()));
  }
  keep_last(last_bytes_, line);
  if (segment_.is_full()) end_segment();
}

void CurveIndexWriter::put(const std::string& lines) {
  const std::scoped_lock lock(mutex_);
  if (caught_up_)
    write(lines);
  else if (!failed_)
    waiting_ += lines;
}

void CurveIndexWriter::write(const std::string& lines) {
  if (failed_ || lines.empty()) return;
  if (write_all(index_.get(), lines.data(), lines.size())) return;
  failed_ = true;
  log::warning("metrics", std::string(curves::kIndexName) +
                              " cannot be written; curves of this run are drawn from its records");
}

// Keeps of an older index what belongs to this file; gives where the metrics go on without it.
int64_t CurveIndexWriter::open_index(int metrics) {
  const std::filesystem::path path = metrics_.parent_path() / curves::kIndexName;
  const std::string index = read_file(path, kMostIndexBytes).value_or("");
  std::vector<curves::Segment> segments = curves::read_index(index, "", {});
  while (!segments.empty()) {
    const curves::Segment& last = segments.back();
    const auto checked = static_cast<size_t>(last.checked());
    if (last.end <= size_ &&
        curves::check_of(read_piece(metrics, last.end - last.checked(), checked)) == last.check)
      break;
    segments.pop_back();
  }
  const std::scoped_lock lock(mutex_);
  index_.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!index_ ||
      ::ftruncate(index_.get(),
                  segments.empty() ? 0 : static_cast<off_t>(segments.back().index_end)) != 0)
    failed_ = true;
  return segments.empty() ? 0 : segments.back().end;
}

bool CurveIndexWriter::index_rest(int metrics, int64_t from, const std::stop_token& stop) {
  curves::SegmentBuilder segment(from);
  std::string last, rest;
  const auto end_segment = [&] {
    const std::scoped_lock lock(mutex_);
    write(lines_of(segment, last));
    segment = curves::SegmentBuilder(segment.end());
    last.clear();
  };
  const auto take = [&](std::string_view line) { // with its end
    const auto bytes = static_cast<int64_t>(line.size());
    const auto record =
        parse_json(line.substr(0, line.size() - 1), "a record", {.bytes = kLongestRecord});
    if (!record) {
      segment.add_unreadable(bytes);
    } else if (!segment.add(*record, bytes)) {
      end_segment();
      (void)segment.add(*record, bytes);
    }
    keep_last(last, line);
    if (segment.is_full()) end_segment();
  };
  for (int64_t at = from; at < size_;) {
    if (stop.stop_requested()) return false;
    const std::string bytes =
        read_piece(metrics, at, std::min(kReadBytes, static_cast<size_t>(size_ - at)));
    if (bytes.empty()) return false;
    at += static_cast<int64_t>(bytes.size());
    rest += bytes;
    size_t used = 0;
    for (size_t end; (end = rest.find('\n', used)) != std::string::npos; used = end + 1)
      take(std::string_view(rest).substr(used, end + 1 - used));
    rest.erase(0, used);
  }
  if (!rest.empty()) return false; // whoever opened the file ended its last line
  if (!segment.is_empty()) end_segment();
  return true;
}

void CurveIndexWriter::catch_up(const std::stop_token& stop) {
  const UniqueFd metrics(::open(metrics_.c_str(), O_RDONLY | O_CLOEXEC));
  const bool done = metrics && index_rest(metrics.get(), open_index(metrics.get()), stop);
  const std::scoped_lock lock(mutex_);
  if (!done) failed_ = true;
  write(std::exchange(waiting_, {}));
  caught_up_ = true;
}

} // namespace nsa::train
