#include "common/spec/mixture.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

namespace nsa::spec {

namespace {

constexpr double kPartsOfOne = 1e6; // six decimals
constexpr double kLargestWeight = 1e6;

int64_t parts_of(double weight) {
  return std::llround(weight * kPartsOfOne);
}

// A quotient of integers rounds the same way as parsing the decimal, so equal texts give equal
// numbers.
bool has_six_decimals(double weight) {
  return static_cast<double>(parts_of(weight)) / kPartsOfOne == weight;
}

std::string source_prefix(size_t i) {
  return "data.source[" + std::to_string(i) + "].";
}

} // namespace

FieldTable source_fields(DataSource& source) {
  return {
      {.key = "path",
       .at = &source.path,
       .maximum = 4096,
       .required = true,
       .meaning = "folder with dataset.json; relative to this file"},
      {.key = "weight",
       .at = &source.weight,
       .minimum = 0,
       .maximum = kLargestWeight,
       .above_minimum = true,
       .meaning = "share of the sequences, in proportion to the other weights; at most six "
                  "decimals"},
  };
}

std::vector<DataSource> sources_of(const DataSection& data) {
  if (!data.sources.empty()) return data.sources;
  return {{data.path, 1, data.follow}};
}

std::string source_key(const DataSection& data, size_t i) {
  return data.sources.empty() ? "data.path" : source_prefix(i) + "path";
}

std::vector<std::string> source_names(const std::vector<DataSource>& sources) {
  std::vector<std::string> names;
  for (const DataSource& source : sources) {
    const std::filesystem::path path = std::filesystem::path(source.path).lexically_normal();
    const std::string last = (path.has_filename() ? path : path.parent_path()).filename().string();
    std::string name = last;
    for (int number = 2; std::find(names.begin(), names.end(), name) != names.end(); ++number)
      name = last + "-" + std::to_string(number);
    names.push_back(std::move(name));
  }
  return names;
}

std::vector<int64_t> whole_weights(const std::vector<DataSource>& sources) {
  std::vector<int64_t> weights;
  int64_t divisor = 0;
  for (const DataSource& source : sources) {
    weights.push_back(std::max<int64_t>(1, parts_of(source.weight)));
    divisor = std::gcd(divisor, weights.back());
  }
  for (int64_t& weight : weights)
    weight /= divisor;
  return weights;
}

void check_sources(const RunSpec& spec, Reading& reading) {
  const std::vector<DataSource>& sources = spec.data.sources;
  if (sources.empty()) return;
  if (!spec.data.path.empty() && !reading.bad_keys.count("data.path"))
    add_rule_problem(reading, {"data.path", "data.source"},
                     {"stands beside [[data.source]], and both name data sets",
                      "leave out data.path, or the tables [[data.source]]"});
  if (sources.size() > kMostSources)
    add_rule_problem(
        reading, {"data.source"},
        {"has more than " + std::to_string(kMostSources) + " tables", "join data sets"});
  for (size_t i = 0; i < sources.size(); ++i) {
    const std::string prefix = source_prefix(i);
    if (!reading.bad_keys.count(prefix + "weight") && !has_six_decimals(sources[i].weight))
      add_rule_problem(reading, {prefix + "weight"},
                       {"has more than six decimals: " + to_toml(sources[i].weight),
                        "write proportions as integers, such as 2 and 1"});
    if (reading.bad_keys.count(prefix + "path")) continue;
    for (size_t k = 0; k < i; ++k)
      if (sources[k].path == sources[i].path) {
        add_rule_problem(reading, {prefix + "path"},
                         {"is the folder of data.source[" + std::to_string(k) + "], too",
                          "write one table with the sum of the weights"});
        break;
      }
  }
}

} // namespace nsa::spec
