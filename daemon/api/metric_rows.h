// Reads lines of a metrics.jsonl as rows of the metrics that a query names. Use one thread at a
// time.
#pragma once

#include "daemon/api/metric_line.h"
#include "daemon/api/metric_records.h"

#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace nsa::api {

class RowReader {
public:
  explicit RowReader(const MetricQuery& query);
  // Returns false if the line is unreadable. `is_record` says whether it is of the requested kind.
  bool read(std::string_view text, MetricRow& row, bool& is_record);

private:
  const wire::RecordKind kind_;
  std::vector<std::string> names_; // attempt, step and tokens, then the metrics
  MetricLine line_;
};

// Reads up to `size` bytes from offset `from`; fewer at the end of the file.
Result<std::string> read_at(int fd, off_t from, size_t size, const std::string& path);

// Appends a row. It first removes the rows from the same step on, which the row's attempt repeats.
// When there are `most` rows, they are halved so that every part of the run keeps its peaks.
void keep_row(std::vector<MetricRow>& rows, MetricRow row, size_t most);

// Calls `use` with each whole line of `bytes`, without its newline. Returns the number of bytes
// that these lines take.
template <class Use> size_t each_line(std::string_view bytes, Use use) {
  size_t from = 0;
  for (size_t end; (end = bytes.find('\n', from)) != std::string_view::npos; from = end + 1)
    use(bytes.substr(from, end - from));
  return from;
}

} // namespace nsa::api
