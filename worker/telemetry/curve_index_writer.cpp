#include "worker/telemetry/curve_index_writer.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/curves/file_indexer.h"

#include <fcntl.h>
#include <unistd.h>

namespace nsa::train {

namespace {

constexpr size_t kMostIndexBytes = size_t{1} << 30;

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
    put(tail_.lines_of(segment_));
    segment_ = curves::SegmentBuilder(segment_.end());
    tail_.clear();
  };
  if (!segment_.add(record, static_cast<int64_t>(line.size()))) {
    end_segment();
    (void)segment_.add(record, static_cast<int64_t>(line.size()));
  }
  tail_.add(line);
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

// Keeps the segments of an older index that match this file. Returns the offset at which indexing
// must continue.
int64_t CurveIndexWriter::open_index(int metrics) {
  const std::filesystem::path path = metrics_.parent_path() / curves::kIndexName;
  const std::string index = read_file(path, kMostIndexBytes).value_or("");
  std::vector<curves::Segment> segments = curves::read_index(index, "", {});
  curves::keep_fitting(segments, metrics, size_);
  const std::scoped_lock lock(mutex_);
  index_.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!index_ ||
      ::ftruncate(index_.get(),
                  segments.empty() ? 0 : static_cast<off_t>(segments.back().index_end)) != 0)
    failed_ = true;
  return segments.empty() ? 0 : segments.back().end;
}

void CurveIndexWriter::catch_up(const std::stop_token& stop) {
  const UniqueFd metrics(::open(metrics_.c_str(), O_RDONLY | O_CLOEXEC));
  // Opening metrics.jsonl has terminated its last line, so no partial line remains.
  const auto append = [this](const std::string& lines) {
    const std::scoped_lock lock(mutex_);
    write(lines);
    return !failed_;
  };
  const bool done = metrics && curves::index_file(metrics.get(), open_index(metrics.get()), size_,
                                                  stop, append) == size_;
  const std::scoped_lock lock(mutex_);
  if (!done) failed_ = true;
  write(std::exchange(waiting_, {}));
  caught_up_ = true;
}

} // namespace nsa::train
