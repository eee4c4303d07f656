// A record of metrics.jsonl as its kind, its time and its numbers. read() needs no tree and is some
// ten times as fast as a parser of JSON. Pure.
#pragma once

#include "common/base/json.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nsa::curves {

struct FlatRecord {
  std::string kind; // "": it has none
  std::string time;
  // Names of members of members are joined by dots: "gates.0/selected".
  std::vector<std::pair<std::string, double>> numbers;

  double number_or(std::string_view name, double absent) const;
  // Reused from line to line. False: not a line as ranks write them, a parser of JSON has to say
  // what it is. It is an object of ASCII without escapes, arrays, spaces and names that are twice.
  bool read(std::string_view line);
};

FlatRecord flat_record(const nlohmann::json& record);

} // namespace nsa::curves
