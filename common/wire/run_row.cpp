#include "common/wire/run_row.h"

#include "common/base/json.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <utility>
#include <variant>

namespace nsa::wire {

namespace {

constexpr size_t kTrend = 8;
constexpr int kMaxDepth = JsonLimits{}.depth;

template <class... Types> using MemberOf = std::variant<Types RunSummary::*...>;
struct Column {
  const char* name;
  MemberOf<std::string, ChoiceOrText<RunState>, ChoiceOrText<FailureClass>, int, Time, uint64_t,
           double, bool, std::vector<double>, std::vector<std::string>>
      member;
};
// All of a summary except its gates. Its JSON uses these, too.
constexpr Column kColumns[] = {
    {"id", &RunSummary::id},
    {"name", &RunSummary::name},
    {"state", &RunSummary::state},
    {"reason", &RunSummary::reason},
    {"attempt", &RunSummary::attempt},
    {"ranks", &RunSummary::ranks},
    {"restarts", &RunSummary::restarts},
    {"resumes", &RunSummary::resumes},
    {"hangs", &RunSummary::hangs},
    {"step", &RunSummary::step},
    {"steps", &RunSummary::steps},
    {"tokens", &RunSummary::tokens},
    {"has_loss", &RunSummary::has_loss},
    {"loss", &RunSummary::loss},
    {"has_heldout_loss", &RunSummary::has_heldout_loss},
    {"heldout_loss", &RunSummary::heldout_loss},
    {"tokens_per_second", &RunSummary::tokens_per_second},
    {"eta_seconds", &RunSummary::eta_seconds},
    {"loss_trend", &RunSummary::loss_trend},
    {"submitted_at", &RunSummary::submitted_at},
    {"started_at", &RunSummary::started_at},
    {"ended_at", &RunSummary::ended_at},
    {"waits_until", &RunSummary::waits_until},
    {"inject", &RunSummary::inject},
    {"user", &RunSummary::user},
    {"note", &RunSummary::note},
    {"tags", &RunSummary::tags},
    // After the columns that rows of older programs have.
    {"data_wait_ratio", &RunSummary::data_wait_ratio},
    {"exposed_communication_ratio", &RunSummary::exposed_communication_ratio},
    {"alarms", &RunSummary::alarms},
    {"lost_steps", &RunSummary::lost_steps},
    {"from", &RunSummary::from},
    {"rung", &RunSummary::rung},
    {"failure_class", &RunSummary::failure_class},
};

double rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return std::strtod(text, nullptr);
}

// Returns false if the value's type does not match. Integers match numbers, and also times, for
// rows of older ledgers.
template <class To, class From> bool put(To& to, From&& from) {
  using Value = std::remove_cvref_t<From>;
  constexpr bool words =
      std::is_same_v<To, ChoiceOrText<RunState>> || std::is_same_v<To, ChoiceOrText<FailureClass>>;
  constexpr bool whole = std::is_integral_v<Value> && !std::is_same_v<Value, bool>;
  if constexpr (std::is_same_v<To, Value>) {
    to = std::forward<From>(from);
    return true;
  } else if constexpr (words && std::is_same_v<Value, std::string>) {
    return to = To(from), true;
  } else if constexpr (std::is_same_v<To, Time> && std::is_same_v<Value, std::string>) {
    const auto time = parse_rfc3339(from);
    return time ? (to = *time, true) : false;
  } else if constexpr (std::is_same_v<To, Time> && whole) {
    to = Time(static_cast<int64_t>(from));
    return true;
  } else if constexpr (whole && std::is_arithmetic_v<To> && !std::is_same_v<To, bool>) {
    to = static_cast<To>(from);
    return true;
  } else {
    return false;
  }
}

// Handles the parser's events. The response's object is at depth 1, its values (items, as an array)
// at 2, rows at 3, and lists within a row at 4. Anything deeper belongs to an unknown column.
class RowReader {
public:
  std::vector<RunSummary> rows;
  bool has_items = false;
  std::optional<int64_t> total;
  std::string problem;

  bool null() { return value(nullptr); }
  bool boolean(bool v) { return value(v); }
  bool number_integer(int64_t v) { return value(v); }
  bool number_unsigned(uint64_t v) { return value(v); }
  bool number_float(double v, const std::string&) { return value(v); }
  bool string(std::string& v) { return value(std::move(v)); }
  bool binary(nlohmann::json::binary_t&) { return wrong(); }

  bool start_object(size_t) {
    if (depth_ >= kMaxDepth) return wrong();
    return depth_++ == 0 || !in_items_ || unknown() || wrong();
  }
  bool key(std::string& name) {
    if (depth_ == 1) in_items_ = name == "items";
    in_total_ = depth_ == 1 && name == "total";
    return true;
  }
  bool end_object() { return close(); }
  bool start_array(size_t) {
    if (++depth_ > kMaxDepth) return wrong();
    if (!in_items_) return true;
    if (depth_ == 2) has_items = true;
    if (depth_ == 3) {
      rows.emplace_back();
      column_ = 0;
    }
    const bool list = depth_ == 4 && !unknown() &&
                      (member<std::vector<double>>() || member<std::vector<std::string>>());
    return depth_ < 4 || unknown() || list || wrong();
  }
  bool end_array() { return close(); }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& e) {
    problem = "not JSON: " + reason_of(e);
    return false;
  }

private:
  bool close() {
    if (--depth_ == 3 && in_items_) ++column_;
    return true;
  }
  template <class T> bool member() const {
    return std::holds_alternative<T RunSummary::*>(kColumns[column_].member);
  }
  bool unknown() const { return column_ >= std::size(kColumns); }

  template <class T> bool value(T&& v) {
    if constexpr (std::is_same_v<std::remove_cvref_t<T>, uint64_t>)
      if (in_total_ && depth_ == 1) total = static_cast<int64_t>(v);
    if (!in_items_ || depth_ < 2) return true;
    if (depth_ == 2) return wrong();
    if (depth_ == 3) {
      const bool fits = std::is_null_pointer_v<std::remove_cvref_t<T>> || unknown() ||
                        std::visit([&](auto m) { return put(rows.back().*m, std::forward<T>(v)); },
                                   kColumns[column_].member);
      return fits ? (++column_, true) : wrong();
    }
    return unknown() || append(std::forward<T>(v)) || wrong();
  }
  template <class T> bool append(T&& v) { // appends to the open list
    const auto add = [&](auto& list) { return put(list.emplace_back(), std::forward<T>(v)); };
    if (member<std::vector<double>>())
      return add(rows.back().*
                 std::get<std::vector<double> RunSummary::*>(kColumns[column_].member));
    return add(rows.back().*
               std::get<std::vector<std::string> RunSummary::*>(kColumns[column_].member));
  }
  bool wrong() {
    problem = unknown() || rows.empty() ? "a run that is no row"
                                        : std::string("column ") + kColumns[column_].name +
                                              " of a run's row has the wrong shape";
    return false;
  }

  int depth_ = 0;
  bool in_items_ = false, in_total_ = false;
  size_t column_ = 0; // column in the newest row
};

} // namespace

const std::vector<std::string>& run_columns() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Column& column : kColumns)
      list.emplace_back(column.name);
    return list;
  }();
  return names;
}

void to_json(nlohmann::json& json, const RunSummary& run) {
  json = {{"gates", run.gates}};
  for (const Column& column : kColumns)
    std::visit([&](auto member) { json[column.name] = run.*member; }, column.member);
}

void from_json(const nlohmann::json& json, RunSummary& run) {
  const RunSummary defaults;
  for (const Column& column : kColumns)
    std::visit([&](auto member) { run.*member = json.value(column.name, defaults.*member); },
               column.member);
  run.gates = json.value("gates", defaults.gates);
}

nlohmann::json to_row(const RunSummary& run) {
  RunSummary short_run = run;
  const std::vector<double>& points = run.loss_trend;
  const size_t width = std::min(kTrend, points.size());
  short_run.loss_trend.assign(width, 0);
  for (size_t i = 0; i < width; ++i) {
    const size_t from = i * points.size() / width, to = (i + 1) * points.size() / width;
    for (size_t k = from; k < to; ++k)
      short_run.loss_trend[i] += points[k] / static_cast<double>(to - from);
    short_run.loss_trend[i] = rounded(short_run.loss_trend[i]);
  }
  auto row = nlohmann::json::array();
  for (const Column& column : kColumns)
    std::visit([&](auto member) { row.push_back(short_run.*member); }, column.member);
  return row;
}

Result<std::vector<RunSummary>> read_rows(std::string_view answer, int64_t* total) {
  RowReader reader;
  const bool read =
      nlohmann::json::sax_parse(answer.data(), answer.data() + answer.size(), &reader);
  if (!read) return fail(ErrorCode::kCorrupt, "nsad's list of runs: " + reader.problem);
  if (!reader.has_items) return fail(ErrorCode::kCorrupt, "nsad's answer has no items");
  if (total != nullptr && reader.total) *total = *reader.total;
  return std::move(reader.rows);
}

} // namespace nsa::wire
