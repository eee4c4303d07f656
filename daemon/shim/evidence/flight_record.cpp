#include "daemon/shim/evidence/flight_record.h"

#include "common/base/json.h"

#include <algorithm>

namespace nsa::shim::evidence {

namespace {

using nlohmann::json;

// A rank wrote the text, so its length is limited.
std::string text_of(const json& entry, const char* name, const std::string& otherwise) {
  constexpr size_t kLongest = 200;
  return entry.value(name, otherwise).substr(0, kLongest);
}

// The distinguishing parts of a collective: "6553600 elements (Float)", "gradient bucket 3 of step
// 12".
std::string describe(const json& entry) {
  std::string text = text_of(entry, "profiling_name", "?");
  if (const std::string what = text_of(entry, "what", ""); !what.empty()) return text + ", " + what;
  const json sizes = entry.value("input_sizes", json::array());
  if (!sizes.is_array() || sizes.empty() || !sizes[0].is_array()) return text;
  int64_t elements = 1;
  for (const json& size : sizes[0])
    if (__builtin_mul_overflow(elements, size.get<int64_t>(), &elements)) return text;
  text += ", " + std::to_string(elements) + " elements";
  const json types = entry.value("input_dtypes", json::array());
  if (types.is_array() && !types.empty() && types[0].is_string())
    text += " (" + types[0].get<std::string>().substr(0, 40) + ")";
  return text;
}

} // namespace

std::filesystem::path flight_record_path(const std::filesystem::path& folder, Rank rank) {
  return folder / ("collectives-" + std::to_string(rank) + ".json");
}

Result<std::string> summarise_flight_record(std::string_view text, std::string_view subject) {
  NSA_TRY_ASSIGN(const json record, parse_json(text, subject, {.bytes = kMaxFlightRecordBytes}));
  if (!record.is_object()) return "";
  // c10d omits the list if it recorded nothing, for example if the recorder is off.
  if (!record.contains("entries") && record.contains("version"))
    return "no collective in its record";
  if (!record.contains("entries") || !record["entries"].is_array()) return "";
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
           describe(*oldest) + ", " + text_of(*oldest, "state", "?");
  } catch (const json::exception&) {
    return "";
  }
}

} // namespace nsa::shim::evidence
