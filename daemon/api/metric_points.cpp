#include "daemon/api/metric_points.h"

#include "common/base/text.h"
#include "common/curves/file_indexer.h"
#include "daemon/api/metric_rows.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <sys/stat.h>

namespace nsa::api {

namespace {

constexpr size_t kBlock = size_t{1} << 20;   // bytes read at a time, which takes some milliseconds
constexpr size_t kMaxRows = size_t{1} << 14; // most rows kept of a whole file
constexpr size_t kMaxZoomed = size_t{1} << 16;
// Bytes of one piece, because a stream's queue is limited.
constexpr size_t kTold = size_t{128} << 10;

} // namespace

std::shared_ptr<MetricScan> MetricCache::find(const std::string& path, const MetricQuery& query) {
  const std::string key = path + "\n" + text_of(query.kind) + "\n" + join(query.metrics, ",") +
                          (query.coarse ? "\ncoarse" : "");
  const std::scoped_lock lock(mutex_);
  const auto known = std::find_if(scans_.begin(), scans_.end(),
                                  [&](const auto& scan) { return scan.first == key; });
  if (known != scans_.end()) {
    scans_.splice(scans_.begin(), scans_, known);
  } else {
    scans_.emplace_front(key, std::make_shared<MetricScan>());
    scans_.front().second->indexed_from = indexed_from_;
    scans_.front().second->indexes = indexes_;
  }
  if (scans_.size() > kMost) scans_.pop_back();
  return scans_.front().second;
}

MetricPoints::MetricPoints(std::string path, FileOpener open, MetricQuery query,
                           const std::shared_ptr<MetricCache>& cache)
    : path_(std::move(path)), open_(std::move(open)), query_(std::move(query)), reader_(query_),
      scan_(cache ? cache->find(path_, query_) : std::make_shared<MetricScan>()) {}

Status MetricPoints::open_file() {
  auto file = open_ ? open_(path_) : open_regular_file(path_);
  if (!file && file.error().code != ErrorCode::kNotFound) return fail(std::move(file).error());
  if (!file) return {};
  file_ = std::move(*file);
  struct stat status{};
  if (::fstat(file_.get(), &status) != 0) return fail_errno("cannot look at " + path_);
  const std::scoped_lock lock(scan_->mutex);
  if (status.st_dev == scan_->device && status.st_ino == scan_->inode &&
      status.st_size >= scan_->read_to)
    return {};
  // This is another file than before, or it was truncated.
  scan_->device = status.st_dev;
  scan_->inode = status.st_ino;
  scan_->read_to = 0;
  scan_->too_long = false;
  scan_->blocks.clear();
  scan_->rows.clear();
  scan_->records = scan_->unreadable = 0;
  if (status.st_size < scan_->indexed_from) return {};
  // Must be read before the index file, because the index may be finished in between.
  if (query_.coarse && scan_->indexes) indexed_ = scan_->indexes->coming(path_);
  begin_with_index(status.st_size);
  if (!query_.coarse || !scan_->indexes) return {};
  if (!indexed_) indexed_ = scan_->indexes->coming(path_);
  if (indexed_ && status.st_size - scan_->read_to >= scan_->indexed_from) {
    coarse_.emplace(status.st_size, query_);
    scan_->inode = 0; // makes the next query look for the index again
  }
  return {};
}

// Returns each value that a segment keeps as a row of its own step. Other metrics have no value in
// that row.
std::vector<MetricRow> MetricPoints::rows_of(const curves::Segment& segment) const {
  std::map<double, MetricRow> rows;
  for (size_t metric = 0; metric < segment.metrics.size(); ++metric) {
    if (!segment.metrics[metric]) continue;
    for (const curves::CurvePoint* at :
         {&segment.metrics[metric]->least, &segment.metrics[metric]->greatest}) {
      MetricRow& row = rows[at->step];
      if (row.values.empty())
        row = {at->attempt, at->step, at->tokens, at->time,
               std::vector<double>(segment.metrics.size(), NAN)};
      row.values[metric] = at->value;
    }
  }
  std::vector<MetricRow> in_order;
  for (auto& [step, row] : rows)
    in_order.push_back(std::move(row));
  return in_order;
}

// Returns the records of these bytes whose steps are below `limit`.
Result<std::vector<MetricRow>> MetricPoints::rows_before(off_t begin, off_t end, double limit) {
  NSA_TRY_ASSIGN(const std::string bytes,
                 read_at(file_.get(), begin, static_cast<size_t>(end - begin), path_));
  std::vector<MetricRow> rows;
  (void)each_line(bytes, [&](std::string_view text) {
    MetricRow row;
    bool is_record = false;
    if (reader_.read(text, row, is_record) && is_record && row.step < limit)
      keep_row(rows, std::move(row), kMaxZoomed);
  });
  return rows;
}

// The rank owns its index and may have written anything, so segments that do not fit the file are
// dropped.
std::vector<curves::Segment> MetricPoints::fitting_segments(const Result<std::string>& index,
                                                            off_t size) {
  if (!index) return {};
  std::vector<curves::Segment> segments =
      curves::read_index(*index, text_of(query_.kind), query_.metrics);
  curves::keep_fitting(segments, file_.get(), size);
  return segments;
}

// Reads the index first, so that the scan begins where the index ends.
void MetricPoints::begin_with_index(off_t size) {
  const auto lacks = [&](const std::vector<curves::Segment>& segments) {
    return size - (segments.empty() ? 0 : segments.back().end);
  };
  std::vector<curves::Segment> segments =
      fitting_segments(read_file(std::filesystem::path(path_).parent_path() / curves::kIndexName,
                                 kMostIndexBytes, open_ ? open_ : open_regular_file),
                       size);
  if (scan_->indexes && lacks(segments) >= scan_->indexed_from) {
    auto own = fitting_segments(scan_->indexes->read(path_), size);
    if (lacks(own) < lacks(segments)) segments = std::move(own);
    if (lacks(segments) >= scan_->indexed_from) scan_->indexes->want(path_, open_);
  }
  // Goes backwards, because steps that a later segment repeated count only there.
  double limit = INFINITY;
  std::vector<std::vector<MetricRow>> rows(segments.size());
  for (size_t i = segments.size(); i-- > 0;) {
    const curves::Segment& segment = segments[i];
    if (segment.greatest < limit) {
      rows[i] = rows_of(segment);
    } else if (segment.least < limit) {
      auto read = rows_before(segment.begin, segment.end, limit);
      if (!read) return; // the scan will report the error
      rows[i] = std::move(*read);
    }
    limit = std::min(limit, segment.least);
  }
  MetricScan& scan = *scan_;
  for (size_t i = 0; i < segments.size(); ++i) {
    const curves::Segment& segment = segments[i];
    scan.blocks.push_back({segment.begin, segment.end, segment.least, segment.greatest, true});
    scan.records += segment.records;
    scan.unreadable += segment.unreadable;
    for (MetricRow& row : rows[i])
      keep_row(scan.rows, std::move(row), kMaxRows);
    scan.read_to = segment.end;
  }
}

Result<bool> MetricPoints::scan_on() {
  const std::scoped_lock lock(scan_->mutex);
  MetricScan& scan = *scan_;
  NSA_TRY_ASSIGN(const std::string bytes, read_at(file_.get(), scan.read_to, kBlock, path_));
  std::string_view left = bytes;
  size_t used = 0;
  if (scan.too_long) {
    const size_t end = left.find('\n');
    used = end == std::string_view::npos ? left.size() : end + 1;
    scan.too_long = end == std::string_view::npos;
    left.remove_prefix(used);
  }
  if (scan.blocks.empty() || scan.blocks.back().is_indexed ||
      scan.blocks.back().end - scan.blocks.back().begin >= static_cast<off_t>(kBlock))
    scan.blocks.push_back({scan.read_to, scan.read_to, INFINITY, -INFINITY});
  MetricScan::Block& block = scan.blocks.back();
  used += each_line(left, [&](std::string_view text) {
    MetricRow row;
    bool is_record = false;
    if (!reader_.read(text, row, is_record)) ++scan.unreadable;
    if (!is_record) return;
    ++scan.records;
    if (std::isnan(row.step)) return;
    block.least = std::min(block.least, row.step);
    block.greatest = std::max(block.greatest, row.step);
    keep_row(scan.rows, std::move(row), kMaxRows);
  });
  // Bytes without a newline are still being written, or belong to a line that is longer than any
  // record.
  if (bytes.size() - used > kMaxMetricLine) {
    ++scan.unreadable;
    scan.too_long = true;
    used = bytes.size();
  }
  scan.read_to += static_cast<off_t>(used);
  block.end = scan.read_to;
  return bytes.size() < kBlock;
}

Result<bool> MetricPoints::zoom_on() {
  const double first = static_cast<double>(query_.first_step);
  const double last = static_cast<double>(query_.last_step);
  while (block_ < blocks_.size()) {
    const MetricScan::Block& block = blocks_[block_++];
    if (block.greatest < first || block.least > last) {
      // The block begins a later attempt, which repeated these steps.
      while (!rows_.empty() && rows_.back().step >= block.least)
        rows_.pop_back();
      continue;
    }
    NSA_TRY_ASSIGN(
        const std::string bytes,
        read_at(file_.get(), block.begin, static_cast<size_t>(block.end - block.begin), path_));
    (void)each_line(bytes, [&](std::string_view text) {
      MetricRow row;
      bool is_record = false;
      if (!reader_.read(text, row, is_record) || !is_record || std::isnan(row.step)) return;
      while (!rows_.empty() && rows_.back().step >= row.step)
        rows_.pop_back();
      if (row.step >= first && row.step <= last) keep_row(rows_, std::move(row), kMaxZoomed);
    });
    return block_ == blocks_.size();
  }
  return true;
}

void MetricPoints::collect() {
  const std::scoped_lock lock(scan_->mutex);
  records_ = scan_->records;
  unreadable_ = scan_->unreadable;
  if (is_zoomed())
    blocks_ = scan_->blocks;
  else
    rows_ = scan_->rows;
}

Result<MetricPiece> MetricPoints::next() {
  switch (stage_) {
  case Stage::kOpen: {
    NSA_TRY(open_file());
    stage_ = coarse_ ? Stage::kCoarse : file_ ? Stage::kScan : Stage::kTell;
    return MetricPiece{};
  }
  case Stage::kCoarse: {
    NSA_TRY_ASSIGN(const bool done, coarse_->read_on(file_.get(), reader_, path_));
    if (!done) return MetricPiece{};
    rows_ = keep_peaks(coarse_->take_rows(), static_cast<size_t>(query_.points));
    records_ = coarse_->records();
    unreadable_ = coarse_->unreadable();
    stage_ = Stage::kTell;
    return MetricPiece{};
  }
  case Stage::kScan: {
    NSA_TRY_ASSIGN(const bool at_end, scan_on());
    if (!at_end) return MetricPiece{};
    collect();
    stage_ = is_zoomed() ? Stage::kZoom : Stage::kTell;
    if (stage_ == Stage::kTell)
      rows_ = keep_peaks(std::move(rows_), static_cast<size_t>(query_.points));
    return MetricPiece{};
  }
  case Stage::kZoom: {
    NSA_TRY_ASSIGN(const bool done, zoom_on());
    if (!done) return MetricPiece{};
    rows_ = keep_peaks(std::move(rows_), static_cast<size_t>(query_.points));
    stage_ = Stage::kTell;
    return MetricPiece{};
  }
  case Stage::kTell: {
    MetricPiece piece;
    while (told_ < rows_.size() && piece.lines.size() < kTold)
      piece.lines += metric_row_line(query_, rows_[told_++]);
    if (told_ < rows_.size()) return piece;
    piece.lines += metric_end_line(records_, unreadable_, coarse_ ? indexed_ : std::nullopt);
    piece.at_end = true;
    stage_ = Stage::kEnd;
    return piece;
  }
  case Stage::kEnd:
    break;
  }
  return MetricPiece{"", true};
}

} // namespace nsa::api
