// The result of a demo as one JSON document, and whether the demo showed what it promises.
#pragma once

#include "common/base/json.h"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::demo {

// Losses by step. Of a repeated step the last attempt's loss counts.
struct Losses {
  std::map<int64_t, double> training, heldout;
  std::vector<double> tokens_per_second; // one value for each record, ascending
};
// Reads a run's metrics.jsonl.
Result<Losses> read_losses(std::string_view metrics);

struct Material {
  nlohmann::json run;      // output of `nsactl status -o json`
  nlohmann::json injected; // the run's injected.json; null if no fault was injected
  nlohmann::json dataset;  // dataset.json
  std::string sample;      // text that the trained model generated
  int64_t seed = 0;        // seed of the fault
  double seconds = 0;      // duration of the whole demo
};
nlohmann::ordered_json summarize(const Material& material, const Losses& losses);

// Returns a clause for each promise of the demo that this summary does not fulfil, so that a broken
// demo does not look successful. Checks that the stack files exist that the summary names.
std::vector<std::string> broken_promises(const nlohmann::ordered_json& summary);

// Returns the lines for people.
std::string told(const nlohmann::ordered_json& summary);

} // namespace nsa::demo
