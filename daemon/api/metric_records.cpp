#include "daemon/api/metric_records.h"

#include "daemon/api/metric_line.h"
#include "daemon/api/metric_points.h"
#include "daemon/api/reply.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unistd.h>

namespace nsa::api {

namespace {

// Bytes read at a time; parsing takes some ten milliseconds.
constexpr size_t kReadSize = size_t{256} << 10;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// Returns the number at a path such as "phase_seconds.forward". Names of members may contain dots,
// so the longest prefix that is a member counts.
double number_at(const nlohmann::json& record, std::string_view name) {
  if (!record.is_object()) return kNone;
  if (const auto member = record.find(name); member != record.end())
    return member->is_number() ? member->get<double>() : kNone;
  for (size_t dot = name.rfind('.'); dot != std::string_view::npos && dot > 0;
       dot = name.rfind('.', dot - 1))
    if (const auto member = record.find(name.substr(0, dot)); member != record.end())
      return number_at(*member, name.substr(dot + 1));
  return kNone;
}

nlohmann::json number_or_null(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json();
}

nlohmann::json count_or_null(double value) {
  constexpr double kExact = 9007199254740992.0; // 2^53; larger numbers have been rounded
  if (!(value >= 0 && value < kExact)) return number_or_null(value);
  return static_cast<int64_t>(value);
}

} // namespace

std::vector<MetricRow> keep_peaks(std::vector<MetricRow> rows, size_t points) {
  if (rows.size() <= std::max<size_t>(points, 2)) return rows;
  const size_t metrics = rows.front().values.size();
  // Each part keeps up to two rows for each metric.
  const size_t parts = std::max<size_t>(1, points / std::max<size_t>(1, 2 * metrics));
  std::vector<bool> kept(rows.size(), false);
  kept.front() = kept.back() = true;
  const double first = rows.front().step, width = rows.back().step - first;
  for (size_t part = 0, end = 0; part < parts; ++part) {
    const double beyond =
        first + width * static_cast<double>(part + 1) / static_cast<double>(parts);
    const size_t begin = end;
    while (end < rows.size() && (part + 1 == parts || rows[end].step < beyond))
      ++end;
    for (size_t metric = 0; metric < metrics; ++metric) {
      size_t least = end, greatest = end;
      for (size_t i = begin; i < end; ++i) {
        const double value = rows[i].values[metric];
        if (std::isnan(value)) continue;
        if (least == end || value < rows[least].values[metric]) least = i;
        if (greatest == end || value > rows[greatest].values[metric]) greatest = i;
      }
      if (least != end) kept[least] = kept[greatest] = true;
    }
  }
  size_t to = 0;
  for (size_t i = 0; i < rows.size(); ++i)
    if (kept[i]) std::swap(rows[to++], rows[i]);
  rows.resize(to);
  return rows;
}

std::string metric_row_line(const MetricQuery& query, const MetricRow& row) {
  nlohmann::json line = {{"kind", query.kind},
                         {"attempt", row.attempt},
                         {"step", count_or_null(row.step)},
                         {"tokens", count_or_null(row.tokens)},
                         {"time", row.time}};
  for (size_t i = 0; i < row.values.size(); ++i)
    line[query.metrics[i]] = number_or_null(row.values[i]);
  return json_line(line);
}

std::string metric_end_line(int64_t records, int64_t unreadable, std::optional<double> indexed) {
  nlohmann::json line = {
      {"kind", wire::kEndOfRecords}, {"records", records}, {"unreadable", unreadable}};
  if (indexed) { // the counts cover only the records that were read
    line["coarse"] = true;
    line["indexed"] = *indexed;
  }
  return json_line(line);
}

MetricRecords::MetricRecords(std::string path, FileOpener open, MetricQuery query,
                             const std::shared_ptr<MetricCache>& cache)
    : path_(std::move(path)), open_(std::move(open)), query_(std::move(query)) {
  if (query_.points > 0) points_ = std::make_shared<MetricPoints>(path_, open_, query_, cache);
}

Result<MetricRecords::Piece> MetricRecords::next() {
  if (points_) return points_->next();
  Piece piece;
  if (!std::exchange(opened_, true)) {
    auto file = open_ ? open_(path_) : open_regular_file(path_);
    if (!file && file.error().code != ErrorCode::kNotFound) return fail(std::move(file).error());
    if (file) file_ = std::move(*file);
  }
  std::string bytes(kReadSize, '\0');
  ssize_t got = 0;
  if (file_) do
      got = ::read(file_.get(), bytes.data(), bytes.size());
    while (got < 0 && errno == EINTR);
  if (got < 0) return fail_errno("cannot read " + path_);
  bytes.resize(static_cast<size_t>(got));
  size_t from = 0;
  for (size_t end; (end = bytes.find('\n', from)) != std::string::npos; from = end + 1) {
    rest_.append(bytes, from, end - from);
    if (too_long_ || rest_.size() > kMaxMetricLine)
      ++unreadable_;
    else
      take(rest_, piece.lines);
    rest_.clear();
    too_long_ = false;
  }
  rest_.append(bytes, from);
  if (rest_.size() > kMaxMetricLine) {
    rest_.clear();
    too_long_ = true;
  }
  // A last line without a newline is still being written.
  piece.at_end = got == 0;
  if (!piece.at_end) return piece;
  piece.lines += metric_end_line(records_, unreadable_);
  return piece;
}

void MetricRecords::take(std::string_view line, std::string& out) {
  const auto record = parse_json(line, path_, {.bytes = kMaxMetricLine});
  if (!record || !record->is_object() || !record->contains("kind")) {
    ++unreadable_;
    return;
  }
  const auto text = [&](const char* name) {
    const auto member = record->find(name);
    return member != record->end() && member->is_string() ? member->get<std::string>() : "";
  };
  if (choice_from<wire::RecordKind>(text("kind")) != query_.kind) return;
  ++records_;
  if (query_.metrics.empty()) {
    out.append(line).push_back('\n');
    return;
  }
  MetricRow row;
  const double attempt = number_at(*record, "attempt");
  row.attempt = attempt >= 0 && attempt < 1e9 ? static_cast<int64_t>(attempt) : 0;
  row.step = number_at(*record, "step");
  row.tokens = number_at(*record, "tokens");
  row.time = text("time");
  for (const std::string& metric : query_.metrics)
    row.values.push_back(number_at(*record, metric));
  out += metric_row_line(query_, row);
}

} // namespace nsa::api
