// Reads records of a run's metrics.jsonl as JSON lines, in pieces of limited size and cost. The
// rank owns that file and may have written anything. So it must be a regular file, the length of a
// line is limited, and lines that are no record are skipped and counted. Use one thread at a time,
// never the loop's.
#pragma once

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/wire/words.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::api {

struct MetricQuery {
  wire::RecordKind kind = wire::RecordKind::kStep;
  // Members of a record, such as "loss" or "phase_seconds.forward". If empty, records are returned
  // whole and unchanged.
  std::vector<std::string> metrics;
  // About this many records are returned if it is not 0. They hold the least and greatest value of
  // each metric in equal parts of the run, so that peaks stay. Of a repeated step only the last
  // attempt's record is returned. 0 returns every record in the order of the file.
  int64_t points = 0;
  // Selects these steps. Applies only with `points`.
  int64_t first_step = 0, last_step = INT64_MAX;
  // With `points`: accepts a sample of the records while nsad makes the index of a long file.
  bool coarse = false;
};

// Values of one record; NaN if the record lacks the metric.
struct MetricRow {
  int64_t attempt = 0;
  double step = 0, tokens = 0;
  std::string time;
  std::vector<double> values; // same order as MetricQuery::metrics
};

// Returns about `points` rows at most, in order. It keeps the first and the last row. From equal
// parts of the steps it keeps the rows with the least and greatest value of each metric. The steps
// of `rows` must increase. Pure.
std::vector<MetricRow> keep_peaks(std::vector<MetricRow> rows, size_t points);

struct MetricPiece {
  std::string lines;
  bool at_end = false;
};

std::string metric_row_line(const MetricQuery& query, const MetricRow& row);
// `indexed` is set if the points are coarse. It is the finished share of the index.
std::string metric_end_line(int64_t records, int64_t unreadable,
                            std::optional<double> indexed = std::nullopt);

class MetricCache;
class MetricPoints;

class MetricRecords {
public:
  using Piece = MetricPiece;

  // `cache` holds earlier reads for queries with `points`; it may be null.
  MetricRecords(std::string path, FileOpener open, MetricQuery query,
                const std::shared_ptr<MetricCache>& cache = nullptr);
  // Returns the file's next part. With `points`, lines come only after the whole file is read. The
  // last piece ends with the line {"kind":"end","records":N,"unreadable":N}. An error means that
  // the file cannot be opened or read. A missing file has no records.
  Result<Piece> next();

private:
  void take(std::string_view line, std::string& out);

  std::string path_;
  FileOpener open_;
  MetricQuery query_;
  UniqueFd file_;
  bool opened_ = false, too_long_ = false; // too_long_: within a line that is skipped
  std::string rest_;                       // start of the next line
  std::shared_ptr<MetricPoints> points_;   // set if the query has `points`
  int64_t records_ = 0, unreadable_ = 0;
};

} // namespace nsa::api
