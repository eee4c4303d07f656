// About so many records of a metrics.jsonl, thinned out so that peaks stay, and what was read of
// the file before: a page that asks again reads only what was appended, and one that zooms in only
// the part of the file that has these steps.
//
//   file   |····block····|····block····|····block····|··        1 MiB each: least and greatest step
//   rows    kept of all blocks, at most kMaxRows: thinned out to half whenever there are more
//
// Of a long file the rank keeps an index (common/curves). What it covers is not read: rows are the
// least and greatest values of its segments, and blocks are its segments. Where it lacks much, nsad
// makes one of its own. Meanwhile a query reads the file, or a few places of it where the asker
// takes coarse points. Where steps were done again, the segments that hold older ones beside others
// are read after all.
//
// MetricPoints: one thread at a time. MetricCache and MetricScan: any thread.
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

inline constexpr off_t kIndexedFrom = off_t{128} << 20; // a smaller file is read in a second
inline constexpr size_t kMostIndexBytes = size_t{256} << 20;

// What is known of one file for one kind and list of metrics.
struct MetricScan {
  struct Block {
    off_t begin = 0, end = 0;
    double least = 0, greatest = 0; // steps; least > greatest: it has no record of the kind
    bool is_indexed = false;        // a segment of the index: nothing is added to it
  };
  std::mutex mutex;
  dev_t device = 0;
  ino_t inode = 0;
  off_t read_to = 0;     // behind the last whole line
  bool too_long = false; // read_to is within a line that is skipped
  std::vector<Block> blocks;
  std::vector<MetricRow> rows;
  int64_t records = 0, unreadable = 0;
  off_t indexed_from = kIndexedFrom; // bytes of a file whose index is read
  std::shared_ptr<CurveIndexes> indexes;
};

// The scans that were used last; some two megabytes each at most.
class MetricCache {
public:
  // `indexes`: for runs without an index of their own; may be null.
  explicit MetricCache(off_t indexed_from = kIndexedFrom,
                       std::shared_ptr<CurveIndexes> indexes = nullptr)
      : indexed_from_(indexed_from), indexes_(std::move(indexes)) {}
  std::shared_ptr<MetricScan> find(const std::string& path, const MetricQuery& query);

private:
  static constexpr size_t kMost = 32;
  const off_t indexed_from_;
  const std::shared_ptr<CurveIndexes> indexes_;
  std::mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<MetricScan>>> scans_; // the newest first
};

class MetricPoints {
public:
  MetricPoints(std::string path, FileOpener open, MetricQuery query,
               const std::shared_ptr<MetricCache>& cache);
  // As MetricRecords::next().
  Result<MetricPiece> next();

private:
  enum class Stage { kOpen, kCoarse, kScan, kZoom, kTell, kEnd };
  Status open_file();
  void begin_with_index(off_t size);
  std::vector<curves::Segment> fitting_segments(const Result<std::string>& index, off_t size);
  std::vector<MetricRow> rows_of(const curves::Segment& segment) const;
  Result<std::vector<MetricRow>> rows_before(off_t begin, off_t end, double limit);
  Result<bool> scan_on(); // true: at the end of the file
  Result<bool> zoom_on(); // true: all blocks are done
  void collect();
  bool is_zoomed() const { return query_.first_step > 0 || query_.last_step < INT64_MAX; }

  std::string path_;
  FileOpener open_;
  MetricQuery query_;
  RowReader reader_;
  std::shared_ptr<MetricScan> scan_;
  UniqueFd file_;
  Stage stage_ = Stage::kOpen;
  std::optional<CoarsePoints> coarse_;    // instead of a scan
  std::optional<double> indexed_;         // how much of an index that is being made
  std::vector<MetricScan::Block> blocks_; // as of the end of the scan
  size_t block_ = 0;
  std::vector<MetricRow> rows_; // to be told
  size_t told_ = 0;
  int64_t records_ = 0, unreadable_ = 0;
};

} // namespace nsa::api
