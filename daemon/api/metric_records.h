// Records of a run's metrics.jsonl as JSON lines, in pieces of bounded size and cost. The rank owns
// that file and may have written anything. So only a regular file is read, the length of a line is
// bounded, and lines that are no record are skipped and counted. One thread at a time, never the
// loop's.
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
  // Members of a record: "loss", "phase_seconds.forward". Empty: whole records, as they are.
  std::vector<std::string> metrics;
  // Not 0: about as many records, those with the least and the greatest value of each metric in
  // equal parts of the run, so that peaks stay. A step that was done again is there once, of the
  // last attempt. 0: every record, in the order of the file.
  int64_t points = 0;
  // With points: only these steps.
  int64_t first_step = 0, last_step = INT64_MAX;
  // With points: some of the records will do as long as nsad makes the index of a long file.
  bool coarse = false;
};

// Values of one record. NaN where it has none.
struct MetricRow {
  int64_t attempt = 0;
  double step = 0, tokens = 0;
  std::string time;
  std::vector<double> values; // in the order of MetricQuery::metrics
};

// At most about `points` of them, in order: of equal parts of the steps those with the least and
// the greatest value of each metric, and the first and the last row. Rows come with growing steps.
// Pure.
std::vector<MetricRow> keep_peaks(std::vector<MetricRow> rows, size_t points);

struct MetricPiece {
  std::string lines;
  bool at_end = false;
};

std::string metric_row_line(const MetricQuery& query, const MetricRow& row);
// `indexed`: the points are coarse, and so much of the index is made.
std::string metric_end_line(int64_t records, int64_t unreadable,
                            std::optional<double> indexed = std::nullopt);

class MetricCache;
class MetricPoints;

class MetricRecords {
public:
  using Piece = MetricPiece;

  // `cache`: what was read before, for queries with `points`; may be null.
  MetricRecords(std::string path, FileOpener open, MetricQuery query,
                const std::shared_ptr<MetricCache>& cache = nullptr);
  // The file's next part; with `points` lines come once all of it is read. The last piece ends with
  // a line {"kind":"end","records":N,"unreadable":N}. An error: the file cannot be opened or read.
  // A file that is not there yet has no records.
  Result<Piece> next();

private:
  void take(std::string_view line, std::string& out);

  std::string path_;
  FileOpener open_;
  MetricQuery query_;
  UniqueFd file_;
  bool opened_ = false, too_long_ = false; // too_long_: within a line that is skipped
  std::string rest_;                       // the beginning of the next line
  std::shared_ptr<MetricPoints> points_;   // with points
  int64_t records_ = 0, unreadable_ = 0;
};

} // namespace nsa::api
