// Lines of a metrics.jsonl as rows of the metrics that a query names. One thread at a time.
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
  // False: unreadable. `is_record`: of the kind that is asked for.
  bool read(std::string_view text, MetricRow& row, bool& is_record);

private:
  const wire::RecordKind kind_;
  std::vector<std::string> names_; // attempt, step, tokens, and the metrics
  MetricLine line_;
};

// At most `size` bytes from there; fewer at the end of the file.
Result<std::string> read_at(int fd, off_t from, size_t size, const std::string& path);

// Adds it behind the others. A step that is done again takes the place of what was done after it;
// where they become so many, every part of the run keeps its peaks.
void keep_row(std::vector<MetricRow>& rows, MetricRow row, size_t most);

// Whole lines of `bytes`, without their ends; returns the bytes they take.
template <class Use> size_t each_line(std::string_view bytes, Use use) {
  size_t from = 0;
  for (size_t end; (end = bytes.find('\n', from)) != std::string_view::npos; from = end + 1)
    use(bytes.substr(from, end - from));
  return from;
}

} // namespace nsa::api
