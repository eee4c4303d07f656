// A run's records of steps and evaluations, as nsad reads them from its metrics.jsonl.
#pragma once

#include "cli/client/daemon.h"

#include <map>
#include <ostream>
#include <string>
#include <vector>

namespace nsa::cli {

// A metric as users name it: a member of a record, or "heldout_loss", the loss of evaluations.
struct MetricName {
  wire::RecordKind kind = wire::RecordKind::kStep;
  std::string member;
  std::string warning; // where the name is one of builds before; empty: none
};
// Takes names of older builds too. kInvalidArgument, with the nearest name, for what no record has.
Result<MetricName> parse_metric(const std::string& text);
// parse_metric() that prints the warning.
Result<MetricName> read_metric(const std::string& text, std::ostream& err);
// Those that parse_metric() takes, but for members of members ("phase_seconds.forward").
std::vector<std::string> metric_names();

struct RecordQuery {
  wire::RecordKind kind = wire::RecordKind::kStep;
  std::vector<std::string> metrics; // empty: whole records
  int64_t points = 0;               // 0: all
};
// In the order of steps; a step that was done again is there once, of the last attempt.
Result<std::vector<nlohmann::json>> fetch_records(client::Daemon& daemon, const std::string& run,
                                                  const RecordQuery& query);

// NaN where the record has no number there.
double number_of(const nlohmann::json& record, const std::string& member);

// {"a": {"b": 1}} -> "a.b": 1. A member without members stays, also where it is an empty object.
std::map<std::string, nlohmann::json> flat_members(const nlohmann::json& value);

} // namespace nsa::cli
