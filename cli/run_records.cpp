#include "cli/run_records.h"

#include "common/base/text.h"
#include "common/net/http.h"
#include "common/progress/phase.h"
#include "common/wire/messages.h"

#include <algorithm>
#include <limits>

namespace nsa::cli {

namespace {

constexpr const char* kHeldoutLoss = "heldout_loss";
constexpr std::string_view kPhaseSeconds = "phase_seconds.";

// Returns whether users may choose this member of a step's record.
bool is_metric(const std::string& name, const nlohmann::json& value) {
  return value.is_number() && name != "rank" && name != "step";
}
bool has_members(const nlohmann::json& value) {
  return value.is_object() || value.is_null(); // a default record has an empty map as null
}

void add_members(const nlohmann::json& value, const std::string& name,
                 std::map<std::string, nlohmann::json>& into) {
  if (!value.is_object() || value.empty()) {
    into[name] = value;
    return;
  }
  for (const auto& [member, inner] : value.items())
    add_members(inner, name.empty() ? member : name + "." + member, into);
}

} // namespace

std::map<std::string, nlohmann::json> flat_members(const nlohmann::json& value) {
  std::map<std::string, nlohmann::json> members;
  add_members(value, "", members);
  return members;
}

std::vector<std::string> metric_names() {
  std::vector<std::string> names = {kHeldoutLoss};
  const nlohmann::json record = wire::RankStep{};
  for (const auto& [name, value] : record.items())
    if (is_metric(name, value)) names.push_back(name);
  return names;
}

Result<MetricName> parse_metric(const std::string& text) {
  if (text == kHeldoutLoss) return MetricName{wire::RecordKind::kEvaluation, "loss", {}};
  const nlohmann::json record = wire::RankStep{};
  const auto member = record.find(text);
  if (member != record.end() && is_metric(text, *member))
    return MetricName{wire::RecordKind::kStep, text, {}};
  if (text.starts_with(kPhaseSeconds))
    if (const auto phase = progress::phase_from_name(text.substr(kPhaseSeconds.size()))) {
      MetricName metric{wire::RecordKind::kStep, std::string(kPhaseSeconds), {}};
      metric.member += progress::phase_name(*phase);
      if (metric.member != text)
        metric.warning = text + " is the name of an older build; it is now " + metric.member;
      return metric;
    }
  const std::string outer = text.substr(0, text.find('.'));
  if (const auto map = record.find(outer);
      outer != text && map != record.end() && has_members(*map))
    return MetricName{wire::RecordKind::kStep, text, {}};
  const std::vector<std::string> names = metric_names();
  const auto near = nearest_name(text, names);
  return fail(ErrorCode::kInvalidArgument, "no metric is named '" + text + "'",
              near ? "did you mean " + *near + "?" : "there are " + join(names, ", "));
}

Result<MetricName> read_metric(const std::string& text, std::ostream& err) {
  auto metric = parse_metric(text);
  if (metric && !metric->warning.empty()) err << "warning: " << metric->warning << "\n";
  return metric;
}

Result<std::vector<nlohmann::json>> fetch_records(client::Daemon& daemon, const std::string& run,
                                                  const RecordQuery& query) {
  std::string target = "/metrics?kind=" + text_of(query.kind);
  if (!query.metrics.empty())
    target += "&metrics=" + net::encode_component(join(query.metrics, ","));
  if (query.points > 0) target += "&points=" + std::to_string(query.points);
  std::vector<nlohmann::json> records;
  bool whole = false;
  client::FollowOptions options;
  options.line = [&](const nlohmann::json& line) {
    whole = line.value("kind", "") == wire::kEndOfRecords;
    if (whole) return true;
    while (!records.empty() && number_of(records.back(), "step") >= number_of(line, "step"))
      records.pop_back(); // the later attempt's record counts
    records.push_back(line);
    return true;
  };
  NSA_TRY(daemon.follow(client::run_target(run, target), options));
  if (!whole)
    return fail(ErrorCode::kUnavailable, "nsad's answer ended before its last record",
                "try again; see nsactl daemon logs");
  return records;
}

double number_of(const nlohmann::json& record, const std::string& member) {
  const auto found = record.find(member);
  return found != record.end() && found->is_number() ? found->get<double>()
                                                     : std::numeric_limits<double>::quiet_NaN();
}

} // namespace nsa::cli
