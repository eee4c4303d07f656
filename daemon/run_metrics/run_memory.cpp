// What the next nsad has to know of a run: written by this one, recalled by that.
#include "common/base/log.h"
#include "daemon/run_metrics/run_record.h"

#include <array>
#include <string>

namespace nsa::control {

namespace {

nlohmann::json to_json(const metrics::Histogram& h) {
  return {{"counts", h.counts()}, {"sum", h.sum()}};
}

void restore(metrics::Histogram& h, const nlohmann::json& json) {
  if (json.contains("counts"))
    (void)h.restore(json["counts"].get<std::vector<uint64_t>>(), json.value("sum", 0.0));
}

template <class T> void restore(T& value, const nlohmann::json& json, const char* key) {
  if (json.contains(key)) value = json[key].get<T>();
}

// What is kept as it is. Sample: metrics::RunSample, const or not.
template <class Sample, class Visit> void for_each_counter(Sample& c, Visit visit) {
  visit("restarts", c.restarts);
  visit("hangs", c.hangs);
  visit("lost_steps", c.lost_steps);
  visit("phase_seconds", c.phase_seconds);
  visit("steps", c.steps);
  visit("tokens", c.tokens);
  visit("nonfinite_steps", c.nonfinite_steps);
  visit("clipped_steps", c.clipped_steps);
  visit("flops", c.flops);
  visit("batches", c.batches);
  visit("data_wait_seconds", c.data_wait_seconds);
  visit("exposed_communication_seconds", c.exposed_communication_seconds);
  visit("checkpoints_verified", c.checkpoints_verified);
  visit("checkpoint_last_step", c.checkpoint_last_step);
  visit("checkpoint_bytes", c.checkpoint_bytes);
  visit("checkpoint_blocked_seconds", c.checkpoint_blocked_seconds);
  visit("checkpoint_failures", c.checkpoint_failures);
}

} // namespace

nlohmann::json memory_of(const RunRecord& record, const LiveAttempt* live) {
  const metrics::RunSample& c = record.counters;
  auto recovery = nlohmann::json::object(), ranks = nlohmann::json::object();
  for (const auto& [name, histogram] : c.recovery_seconds)
    recovery[name] = to_json(histogram);
  for (const auto& [rank, info] : record.ranks)
    ranks[std::to_string(rank)] = {
        {"step_seconds", to_json(info.step_seconds)},
        {"phase_seconds", info.phase_seconds},
        {"exposed_communication_seconds", info.exposed_communication_seconds},
        {"exposed_communication_ratio", info.exposed_communication_ratio},
        {"own_step_seconds", info.own_step_seconds},
        {"pace_records", info.pace_records}};
  nlohmann::json memory = {
      {"learned", live != nullptr ? live->learned() : record.learned},
      {"recovery_seconds", recovery},
      {"peaks",
       {record.peaks.resident_bytes, record.peaks.allocated_bytes, record.peaks.reserved_bytes}},
      {"checkpoint_last_success", c.checkpoint_last_success.value_or(WallTime{}).nanoseconds},
      {"checkpoint_write_seconds", to_json(c.checkpoint_write_seconds)},
      {"exchange_pace_records", record.exchange.pace_records},
      {"loss", record.loss},
      {"ranks", ranks}};
  for_each_counter(c, [&](const char* key, const auto& value) { memory[key] = value; });
  return memory;
}

void recall(RunRecord& record, const nlohmann::json& memory) {
  if (!memory.is_object()) return;
  metrics::RunSample& c = record.counters;
  try {
    restore(record.learned, memory, "learned");
    restore(record.loss, memory, "loss");
    for_each_counter(c, [&](const char* key, auto& value) { restore(value, memory, key); });
    restore(record.exchange.pace_records, memory, "exchange_pace_records");
    std::array<uint64_t, 3> peaks{};
    restore(peaks, memory, "peaks");
    record.peaks = {peaks[0], peaks[1], peaks[2]};
    if (const int64_t at = memory.value("checkpoint_last_success", int64_t{0}); at != 0)
      c.checkpoint_last_success = WallTime{at};
    const nlohmann::json none = nlohmann::json::object();
    restore(c.checkpoint_write_seconds, memory.value("checkpoint_write_seconds", none));
    const nlohmann::json recovery = memory.value("recovery_seconds", none);
    for (const auto& [name, histogram] : recovery.items())
      restore(c.recovery_seconds.try_emplace(name, metrics::recovery_histogram()).first->second,
              histogram);
    const nlohmann::json ranks = memory.value("ranks", none);
    for (const auto& [rank, kept] : ranks.items()) {
      RankInfo& info = record.ranks[std::stoi(rank)];
      restore(info.step_seconds, kept.value("step_seconds", none));
      add_phases(info.phase_seconds, kept.value("phase_seconds", std::map<std::string, double>()));
      restore(info.exposed_communication_seconds, kept, "exposed_communication_seconds");
      restore(info.exposed_communication_ratio, kept, "exposed_communication_ratio");
      restore(info.own_step_seconds, kept, "own_step_seconds");
      restore(info.pace_records, kept, "pace_records");
    }
  } catch (const std::exception& e) {
    // Counters are not worth a run: it is taken up with what could be read.
    log::warning("control", "a run's counters cannot be read",
                 {{"run", record.row.id}, {"why", e.what()}});
  }
}

void recall(wire::RankView& view, const nlohmann::json& memory) {
  const nlohmann::json::json_pointer place("/ranks/" + std::to_string(view.rank) +
                                           "/exposed_communication_ratio");
  if (memory.is_object() && memory.contains(place) && memory[place].is_number())
    view.exposed_communication_ratio = memory[place].get<double>();
}

} // namespace nsa::control
