// What the next nsad must know of a run. This nsad writes it and the next one recalls it.
#include "common/base/log.h"
#include "daemon/run_metrics/run_record.h"

#include <array>
#include <string>

namespace nsa::control {

namespace {

// ---- figures of a run that are kept, by the type of their member ----------------------------

template <class T> nlohmann::json kept(const T& value) {
  return value;
}
nlohmann::json kept(WallTime time) {
  return time.nanoseconds;
}
nlohmann::json kept(const std::optional<WallTime>& time) {
  return time.value_or(WallTime{}).nanoseconds;
}
nlohmann::json kept(const std::optional<double>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}
nlohmann::json kept(const metrics::Histogram& h) {
  return {{"counts", h.counts()}, {"sum", h.sum()}};
}
nlohmann::json kept(const std::map<std::string, metrics::Histogram>& histograms) {
  auto json = nlohmann::json::object();
  for (const auto& [name, histogram] : histograms)
    json[name] = kept(histogram);
  return json;
}

template <class T> void restore(T& value, const nlohmann::json& json) {
  value = json.get<T>();
}
void restore(WallTime& time, const nlohmann::json& json) {
  time = WallTime{json.get<int64_t>()};
}
void restore(std::optional<WallTime>& time, const nlohmann::json& json) {
  if (const auto at = json.get<int64_t>(); at != 0) time = WallTime{at};
}
void restore(std::optional<double>& value, const nlohmann::json& json) {
  if (json.is_number()) value = json.get<double>();
}
void restore(metrics::Histogram& h, const nlohmann::json& json) {
  if (json.contains("counts"))
    (void)h.restore(json["counts"].get<std::vector<uint64_t>>(), json.value("sum", 0.0));
}
void restore(std::map<std::string, metrics::Histogram>& histograms, const nlohmann::json& json) {
  for (const auto& [name, histogram] : json.items())
    restore(histograms.try_emplace(name, metrics::recovery_histogram()).first->second, histogram);
}

template <class T> void restore(T& value, const nlohmann::json& json, const char* key) {
  if (json.contains(key)) restore(value, json[key]);
}

// Calls visit(key, member) for each member of RunSample that is kept.
template <class Visit> void for_each_kept(Visit visit) {
  metrics::for_each_figure<metrics::RunSample>([&](const auto& figure) {
    if (figure.of.kept != nullptr) visit(figure.of.kept, figure.at);
  });
}

// Sums are stored beside the other counters. Newest values are in an object of their own, since
// some names of step metrics mean other things beside the counters.
constexpr const char* kNewest = "newest_step_metrics";

void keep(const metrics::StepFigures& figures, nlohmann::json& memory) {
  for (size_t i = 0; i < wire::kStepMetrics.size(); ++i) {
    const auto& row = wire::kStepMetrics[i];
    const bool sum = row.metric.over == wire::OverRecords::kSum;
    if (const auto& value = figures.at(i)) (sum ? memory : memory[kNewest])[row.name] = *value;
  }
}

void recall(metrics::StepFigures& figures, const nlohmann::json& memory) {
  const nlohmann::json none = nlohmann::json::object(), newest = memory.value(kNewest, none);
  for (size_t i = 0; i < wire::kStepMetrics.size(); ++i) {
    const auto& row = wire::kStepMetrics[i];
    if (!figures.has(i)) continue;
    const nlohmann::json& from = row.metric.over == wire::OverRecords::kSum ? memory : newest;
    if (from.contains(row.name)) figures.set(i, from[row.name].get<double>());
  }
}

} // namespace

nlohmann::json memory_of(const RunRecord& record, const LiveAttempt* live) {
  const metrics::RunSample& c = record.counters;
  auto ranks = nlohmann::json::object();
  for (const auto& [rank, info] : record.ranks) {
    nlohmann::json& of_rank = ranks[std::to_string(rank)];
    of_rank = {{"step_seconds", kept(info.step_seconds)},
               {"phase_seconds", info.phase_seconds},
               {"exposed_communication_ratio", info.exposed_communication_ratio},
               {"own_step_seconds", info.own_step_seconds},
               {"pace_records", info.pace_records}};
    keep(info.figures, of_rank);
  }
  nlohmann::json memory = {
      {"learned", live != nullptr ? live->learned() : record.learned},
      {"peaks",
       {record.peaks.resident_bytes, record.peaks.allocated_bytes, record.peaks.reserved_bytes}},
      {"exchange_pace_records", record.exchange.pace_records},
      {"last", record.last},
      {"trend", record.trend.points()},
      {"loss", record.loss},
      {"health", record.health},
      {"spent", {record.spent.seconds, record.spent.up_to}},
      {"wait", {record.wait.use ? text_of(*record.wait.use) : "", record.wait.since.nanoseconds}},
      {"ranks", ranks}};
  for_each_kept([&](const char* key, auto member) { memory[key] = kept(c.*member); });
  keep(c.figures, memory);
  if (!record.gates.rules().empty()) memory["gates"] = record.gates.memory();
  return memory;
}

void recall(RunRecord& record, const nlohmann::json& memory) {
  if (!memory.is_object()) return;
  metrics::RunSample& c = record.counters;
  try {
    restore(record.learned, memory, "learned");
    restore(record.loss, memory, "loss");
    restore(record.last, memory, "last");
    std::vector<double> trend;
    restore(trend, memory, "trend");
    for (const double loss : trend)
      record.trend.add(loss);
    restore(record.health, memory, "health");
    if (memory.contains("spent"))
      record.spent = {memory["spent"].at(0).get<double>(), memory["spent"].at(1).get<int>()};
    if (memory.contains("wait"))
      record.wait = {choice_from<progress::TimeUse>(memory["wait"].at(0).get<std::string>()),
                     WallTime{memory["wait"].at(1).get<int64_t>()}};
    for_each_kept([&](const char* key, auto member) { restore(c.*member, memory, key); });
    recall(c.figures, memory);
    restore(record.exchange.pace_records, memory, "exchange_pace_records");
    std::array<uint64_t, 3> peaks{};
    restore(peaks, memory, "peaks");
    record.peaks = {peaks[0], peaks[1], peaks[2]};
    const nlohmann::json none = nlohmann::json::object();
    const nlohmann::json ranks = memory.value("ranks", none);
    for (const auto& [rank, kept] : ranks.items()) {
      RankInfo& info = record.ranks[std::stoi(rank)];
      restore(info.step_seconds, kept.value("step_seconds", none));
      add_phases(info.phase_seconds, kept.value("phase_seconds", std::map<std::string, double>()));
      recall(info.figures, kept);
      restore(info.exposed_communication_ratio, kept, "exposed_communication_ratio");
      restore(info.own_step_seconds, kept, "own_step_seconds");
      restore(info.pace_records, kept, "pace_records");
    }
    record.gates.recall(memory.value("gates", nlohmann::json()));
  } catch (const std::exception& e) {
    // Lost counters are no reason to lose a run. It continues with what could be read.
    log::warning("control", "a run's counters cannot be read",
                 {{"run", record.row.id}, {"why", e.what()}});
  }
}

metrics::StepFigures recalled_figures(const nlohmann::json& memory) {
  RunRecord record;
  recall(record, memory);
  return record.counters.figures;
}

void recall(wire::RankView& view, const nlohmann::json& memory) {
  const nlohmann::json::json_pointer place("/ranks/" + std::to_string(view.rank) +
                                           "/exposed_communication_ratio");
  if (memory.is_object() && memory.contains(place) && memory[place].is_number())
    view.exposed_communication_ratio = memory[place].get<double>();
}

} // namespace nsa::control
