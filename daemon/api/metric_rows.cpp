#include "daemon/api/metric_rows.h"

#include <cerrno>
#include <unistd.h>

namespace nsa::api {

RowReader::RowReader(const MetricQuery& query)
    : kind_(query.kind), names_{"attempt", "step", "tokens"} {
  names_.insert(names_.end(), query.metrics.begin(), query.metrics.end());
}

bool RowReader::read(std::string_view text, MetricRow& row, bool& is_record) {
  is_record = false;
  if (text.size() > kMaxMetricLine || !read_metric_line(text, names_, line_) || !line_.has_kind)
    return false;
  if (choice_from<wire::RecordKind>(line_.kind) != kind_) return true;
  is_record = true;
  row.attempt =
      line_.values[0] >= 0 && line_.values[0] < 1e9 ? static_cast<int64_t>(line_.values[0]) : 0;
  row.step = line_.values[1];
  row.tokens = line_.values[2];
  row.time = line_.time;
  row.values.assign(line_.values.begin() + 3, line_.values.end());
  return true;
}

Result<std::string> read_at(int fd, off_t from, size_t size, const std::string& path) {
  std::string bytes(size, '\0');
  size_t filled = 0;
  while (filled < size) {
    const ssize_t got =
        ::pread(fd, bytes.data() + filled, size - filled, from + static_cast<off_t>(filled));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno("cannot read " + path);
    if (got == 0) break;
    filled += static_cast<size_t>(got);
  }
  bytes.resize(filled);
  return bytes;
}

void keep_row(std::vector<MetricRow>& rows, MetricRow row, size_t most) {
  while (!rows.empty() && rows.back().step >= row.step)
    rows.pop_back();
  rows.push_back(std::move(row));
  if (rows.size() >= most) rows = keep_peaks(std::move(rows), most / 2);
}

} // namespace nsa::api
