// A run's records of steps and evaluations, which nsad reads from its metrics.jsonl.
#pragma once

#include "cli/client/daemon.h"

#include <map>
#include <ostream>
#include <string>
#include <vector>

namespace nsa::cli {

// A metric's name for users: a member of a record, or "heldout_loss", the loss of evaluations.
struct MetricName {
  wire::RecordKind kind = wire::RecordKind::kStep;
  std::string member;
  std::string warning; // set if only older builds use this name; otherwise empty
};
// Also accepts names of older builds. If no record has the name, the error kInvalidArgument
// suggests the nearest one.
Result<MetricName> parse_metric(const std::string& text);
// Calls parse_metric() and prints the warning.
Result<MetricName> read_metric(const std::string& text, std::ostream& err);
// Returns the names that parse_metric() accepts, without members of members such as
// "phase_seconds.forward".
std::vector<std::string> metric_names();

struct RecordQuery {
  wire::RecordKind kind = wire::RecordKind::kStep;
  std::vector<std::string> metrics; // empty selects whole records
  int64_t points = 0;               // 0 selects all records
};
// Returns records in the order of steps. Of a repeated step only the last attempt's record is
// returned.
Result<std::vector<nlohmann::json>> fetch_records(client::Daemon& daemon, const std::string& run,
                                                  const RecordQuery& query);

// NaN if the record has no such number.
double number_of(const nlohmann::json& record, const std::string& member);

// {"a": {"b": 1}} becomes "a.b": 1. A member without members stays as it is, even an empty object.
std::map<std::string, nlohmann::json> flat_members(const nlohmann::json& value);

} // namespace nsa::cli
