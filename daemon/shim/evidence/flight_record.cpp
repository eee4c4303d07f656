#include "daemon/shim/evidence/flight_record.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace nsa::shim::evidence {

namespace {

using nlohmann::json;

// "6553600 elements (Float)", "gradient bucket 3 of step 12": what tells one collective from
// another.
std::string describe(const json& entry) {
  std::string text = entry.value("profiling_name", std::string("?"));
  if (const std::string what = entry.value("what", std::string()); !what.empty())
    return text + ", " + what;
  const json sizes = entry.value("input_sizes", json::array());
  if (!sizes.is_array() || sizes.empty() || !sizes[0].is_array()) return text;
  int64_t elements = 1;
  for (const json& size : sizes[0])
    elements *= size.get<int64_t>();
  text += ", " + std::to_string(elements) + " elements";
  const json types = entry.value("input_dtypes", json::array());
  if (types.is_array() && !types.empty() && types[0].is_string())
    text += " (" + types[0].get<std::string>() + ")";
  return text;
}

} // namespace

std::filesystem::path flight_record_path(const std::filesystem::path& folder, Rank rank) {
  return folder / ("collectives-" + std::to_string(rank) + ".json");
}

std::string summarise_flight_record(std::string_view text) {
  const json record = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!record.is_object()) return {};
  // c10d leaves the list out where it recorded nothing, which a recorder that is off does.
  if (!record.contains("entries") && record.contains("version"))
    return "no collective in its record";
  if (!record.contains("entries") || !record["entries"].is_array()) return {};
  try {
    int64_t enqueued = 0, completed = 0;
    const json* oldest = nullptr;
    for (const json& entry : record["entries"]) {
      const auto number = entry.at("collective_seq_id").get<int64_t>();
      enqueued = std::max(enqueued, number);
      if (entry.value("state", std::string()) == "completed") {
        completed = std::max(completed, number);
      } else if (oldest == nullptr || number < oldest->at("collective_seq_id").get<int64_t>()) {
        oldest = &entry;
      }
    }
    if (enqueued == 0) return "no collective in its record";
    if (oldest == nullptr)
      return "enqueued " + std::to_string(enqueued) + " collectives, all completed";
    return "enqueued " + std::to_string(enqueued) + " collectives, completed up to " +
           std::to_string(completed) + "; the oldest that is not: " +
           std::to_string(oldest->at("collective_seq_id").get<int64_t>()) + ", " +
           describe(*oldest) + ", " + oldest->value("state", std::string("?"));
  } catch (const json::exception&) {
    return {};
  }
}

} // namespace nsa::shim::evidence
