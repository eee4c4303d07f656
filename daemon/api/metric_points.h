// Thins out the records of a metrics.jsonl to about the requested number, so that peaks stay. It
// remembers what it has read. A page that asks again reads only what was appended. A page that
// zooms in reads only the part of the file that has these steps.
//
//   file   |····block····|····block····|····block····|··        1 MiB each: least and greatest step
//   rows    kept of all blocks, at most kMaxRows: thinned out to half whenever there are more
//
// The rank keeps an index of a long file (common/curves). The indexed part is not read: its rows
// are the least and greatest values of the index's segments, and its blocks are the segments. If
// the index lacks much, nsad makes one of its own. Meanwhile a query reads the file, or a few
// places of it if the caller accepts coarse points. If an attempt repeated steps, segments that
// hold outdated records beside others are read after all.
//
// MetricPoints: use one thread at a time. MetricCache and MetricScan: any thread.
#pragma once

#include "common/base/file.h"
#include "common/curves/curve_index.h"
#include "daemon/api/coarse_points.h"
#include "daemon/api/curve_indexes.h"
#include "daemon/api/metric_records.h"
#include "daemon/api/metric_rows.h"

#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace nsa::api {

// Files with fewer bytes are read within a second and need no index.
inline constexpr off_t kIndexedFrom = off_t{128} << 20;
inline constexpr size_t kMostIndexBytes = size_t{256} << 20;

// What is known of one file for one kind of records and one list of metrics.
struct MetricScan {
  struct Block {
    off_t begin = 0, end = 0;
    double least = 0, greatest = 0; // steps; least > greatest if the block has no record of the
                                    // kind
    bool is_indexed = false;        // a segment of the index, which never grows
  };
  std::mutex mutex;
  dev_t device = 0;
  ino_t inode = 0;
  off_t read_to = 0;     // offset after the last whole line
  bool too_long = false; // read_to lies within a line that is skipped
  std::vector<Block> blocks;
  std::vector<MetricRow> rows;
  int64_t records = 0, unreadable = 0;
  off_t indexed_from = kIndexedFrom; // least size in bytes of a file whose index is used
  std::shared_ptr<CurveIndexes> indexes;
};

// The latest scans, of at most about two megabytes each.
class MetricCache {
public:
  // `indexes` serves runs without an index of their own; it may be null.
  explicit MetricCache(off_t indexed_from = kIndexedFrom,
                       std::shared_ptr<CurveIndexes> indexes = nullptr)
      : indexed_from_(indexed_from), indexes_(std::move(indexes)) {}
  std::shared_ptr<MetricScan> find(const std::string& path, const MetricQuery& query);

private:
  static constexpr size_t kMost = 32;
  const off_t indexed_from_;
  const std::shared_ptr<CurveIndexes> indexes_;
  std::mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<MetricScan>>> scans_; // newest first
};

class MetricPoints {
public:
  MetricPoints(std::string path, FileOpener open, MetricQuery query,
               const std::shared_ptr<MetricCache>& cache);
  // Works like MetricRecords::next().
  Result<MetricPiece> next();

private:
  enum class Stage { kOpen, kCoarse, kScan, kZoom, kTell, kEnd };
  Status open_file();
  void begin_with_index(off_t size);
  std::vector<curves::Segment> fitting_segments(const Result<std::string>& index, off_t size);
  std::vector<MetricRow> rows_of(const curves::Segment& segment) const;
  Result<std::vector<MetricRow>> rows_before(off_t begin, off_t end, double limit);
  Result<bool> scan_on(); // true at the end of the file
  Result<bool> zoom_on(); // true when all blocks are done
  void collect();
  bool is_zoomed() const { return query_.first_step > 0 || query_.last_step < INT64_MAX; }

  std::string path_;
  FileOpener open_;
  MetricQuery query_;
  RowReader reader_;
  std::shared_ptr<MetricScan> scan_;
  UniqueFd file_;
  Stage stage_ = Stage::kOpen;
  std::optional<CoarsePoints> coarse_;    // replaces the scan
  std::optional<double> indexed_;         // finished share of the index that is being made
  std::vector<MetricScan::Block> blocks_; // blocks at the end of the scan
  size_t block_ = 0;
  std::vector<MetricRow> rows_; // rows for the answer
  size_t told_ = 0;
  int64_t records_ = 0, unreadable_ = 0;
};

} // namespace nsa::api
