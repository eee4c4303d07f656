#include "worker/mesh/flight_log.h"

#include "common/base/json.h"

namespace nsa::comm {

uint64_t FlightLog::scheduled(std::string name, std::string what, size_t bytes) {
  const std::lock_guard lock(mutex_);
  entries_.push_back({++last_, std::move(name), std::move(what), bytes, WallTime::now(), {}, {}});
  if (entries_.size() > capacity_) entries_.pop_front();
  return last_;
}

FlightLog::Entry* FlightLog::find(uint64_t number) {
  if (entries_.empty() || number < entries_.front().number || number > last_) return nullptr;
  return &entries_[number - entries_.front().number];
}

void FlightLog::started(uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (Entry* entry = find(number)) entry->started = WallTime::now();
}

void FlightLog::ended(uint64_t number, bool well) {
  const std::lock_guard lock(mutex_);
  Entry* entry = find(number);
  if (entry == nullptr) return;
  if (well)
    entry->ended = WallTime::now();
  else
    entry->failed = true;
}

std::string FlightLog::json() const {
  auto list = nlohmann::json::array();
  {
    const std::lock_guard lock(mutex_);
    for (const Entry& e : entries_) {
      const bool done = e.ended.nanoseconds != 0, begun = e.started.nanoseconds != 0;
      nlohmann::json entry = {{"collective_seq_id", e.number},
                              {"profiling_name", e.name},
                              {"what", e.what},
                              {"bytes", e.bytes},
                              {"state", done    ? "completed"
                                        : begun ? "started"
                                                : "scheduled"},
                              {"time_created_ns", e.created.nanoseconds},
                              {"time_discovered_started_ns", e.started.nanoseconds},
                              {"time_discovered_completed_ns", e.ended.nanoseconds}};
      if (e.failed) entry["error"] = "failed";
      list.push_back(std::move(entry));
    }
  }
  return nlohmann::json{{"version", "2.10"}, {"entries", std::move(list)}}.dump();
}

} // namespace nsa::comm
