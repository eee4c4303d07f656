// What a demo showed, as one JSON document, and whether that is what it promises.
#pragma once

#include "common/base/json.h"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::demo {

// By step; of a step that was done again, the last attempt's.
struct Losses {
  std::map<int64_t, double> training, heldout;
  std::vector<double> tokens_per_second; // a value a record, ascending
};
// Of a run's metrics.jsonl.
Result<Losses> read_losses(std::string_view metrics);

struct Material {
  nlohmann::json run;      // as `nsactl status -o json` prints it
  nlohmann::json injected; // the run's injected.json; null: nothing was injected
  nlohmann::json dataset;  // dataset.json
  std::string sample;      // what the trained model wrote
  int64_t seed = 0;        // of the fault
  double seconds = 0;      // of the whole demo
};
nlohmann::ordered_json summarize(const Material& material, const Losses& losses);

// What the demo promises and this summary does not show, a clause each: a demo that only looks done
// is worse than none. Looks for the files of stacks that the summary names.
std::vector<std::string> broken_promises(const nlohmann::ordered_json& summary);

// The lines that people read.
std::string told(const nlohmann::ordered_json& summary);

} // namespace nsa::demo
