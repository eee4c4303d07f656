#include "cli/render/memory_view.h"

#include "cli/render/table.h"
#include "common/base/json.h"
#include "common/base/text.h"

#include <algorithm>
#include <cmath>

namespace nsa::render {

namespace {

struct Measure {
  const char* name;
  uint64_t wire::RankMemory::* bytes;
};
constexpr Measure kMeasures[] = {{"resident", &wire::RankMemory::resident_bytes},
                                 {"allocated", &wire::RankMemory::allocated_bytes},
                                 {"reserved", &wire::RankMemory::reserved_bytes},
                                 {"peak", &wire::RankMemory::peak_bytes},
                                 {"device", &wire::RankMemory::device_used_bytes}};

uint64_t largest(const std::vector<wire::RankMemory>& reports, uint64_t wire::RankMemory::* bytes) {
  uint64_t most = 0;
  for (const wire::RankMemory& report : reports)
    most = std::max(most, report.*bytes);
  return most;
}

double number_of(const nlohmann::json& estimate, const char* key) {
  if (!estimate.is_object()) return 0;
  const auto memory = estimate.find("memory_bytes");
  if (memory == estimate.end() || !memory->is_object()) return 0;
  const auto value = memory->find(key);
  return value != memory->end() && value->is_number() ? value->get<double>() : 0;
}

} // namespace

std::vector<wire::RankMemory> stage_memory(const std::vector<wire::EventView>& events,
                                           AttemptNumber attempt) {
  std::vector<wire::RankMemory> reports;
  for (const wire::EventView& event : events) {
    if (event.kind != wire::EventKind::kRankMemory || event.attempt != attempt) continue;
    wire::RankMemory report;
    try {
      report = event.detail.get<wire::RankMemory>();
    } catch (const nlohmann::json::exception&) {
      continue; // `nsactl events` reports a damaged row of the ledger
    }
    const auto same = std::find_if(reports.begin(), reports.end(), [&](const wire::RankMemory& r) {
      return r.stage == report.stage && r.rank == report.rank;
    });
    if (same == reports.end())
      reports.push_back(std::move(report));
    else
      *same = std::move(report);
  }
  return reports;
}

std::string memory_table(const std::vector<wire::RankMemory>& reports, const ViewOptions& options) {
  std::vector<std::string> stages;
  Rank ranks = 0;
  for (const wire::RankMemory& report : reports) {
    ranks = std::max(ranks, report.rank + 1);
    if (std::find(stages.begin(), stages.end(), report.stage) == stages.end())
      stages.push_back(report.stage);
  }
  std::vector<std::string> header = {"STAGE", "MEASURE"};
  for (Rank rank = 0; rank < ranks; ++rank)
    header.push_back("RANK " + std::to_string(rank));
  Table table(header);
  for (size_t column = 2; column < header.size(); ++column)
    table.right(column);
  for (const std::string& stage : stages)
    for (const Measure& measure : kMeasures) {
      if (largest(reports, measure.bytes) == 0) continue;
      std::vector<std::string> row = {stage, measure.name};
      row.resize(header.size(), "-");
      for (const wire::RankMemory& report : reports)
        if (report.stage == stage)
          row[2 + static_cast<size_t>(report.rank)] = format_bytes(report.*measure.bytes);
      table.add(std::move(row));
    }
  return table.print(0, options.style.unicode);
}

std::string memory_against_estimate(const std::vector<wire::RankMemory>& reports,
                                    const nlohmann::json& estimate) {
  const uint64_t peak = largest(reports, &wire::RankMemory::peak_bytes);
  const double estimated = number_of(estimate, peak > 0 ? "on_gpu" : "total");
  const uint64_t came = peak > 0 ? peak : largest(reports, &wire::RankMemory::resident_bytes);
  if (estimated <= 0 || came == 0) return {};
  std::string text = "estimate " + format_bytes(static_cast<uint64_t>(estimated)) + " a rank" +
                     (peak > 0 ? " on the device" : "") + ", " + format_bytes(came) + " came";
  const long percent = std::lround(100 * (static_cast<double>(came) - estimated) / estimated);
  if (percent != 0)
    text +=
        " (" + std::to_string(std::abs(percent)) + " % " + (percent > 0 ? "more" : "less") + ")";
  return text + "\n";
}

} // namespace nsa::render
