#include "daemon/supervision/evidence.h"

#include "common/base/text.h"
#include "daemon/gpu/gpu_json.h"
#include "daemon/proc/node_readings.h"
#include "daemon/state/xid.h"

#include <algorithm>
#include <cmath>

namespace nsa::control {

namespace {

constexpr size_t kFramesTold = 4;

// The innermost frames of the rank's main thread.
std::string where_it_stands(const wire::RankEvidence& rank) {
  for (const wire::ThreadStack& thread : rank.threads) {
    if (thread.tid != rank.pid || thread.frames.empty()) continue;
    std::vector<std::string> frames = thread.frames;
    frames.resize(std::min(frames.size(), kFramesTold));
    return "its main thread is in " + join(frames, " < ");
  }
  return {};
}

} // namespace

std::string describe_gpu(const RankGpu& g) {
  const auto whole = [](double value) { return std::to_string(std::lround(value)); };
  std::vector<std::string> parts;
  if (g.gpu.utilization_ratio) parts.push_back(whole(100 * *g.gpu.utilization_ratio) + " % busy");
  if (g.gpu.temperature_celsius) parts.push_back(whole(*g.gpu.temperature_celsius) + " C");
  if (g.gpu.power_watts) parts.push_back(whole(*g.gpu.power_watts) + " W");
  if (g.gpu.ecc_uncorrected && *g.gpu.ecc_uncorrected > 0)
    parts.push_back(std::to_string(*g.gpu.ecc_uncorrected) + " uncorrected memory errors");
  for (const uint64_t xid : g.xids)
    parts.push_back("Xid " + std::to_string(xid) + " (" + state::xid_meaning(xid).text + ")");
  if (parts.empty()) return {};
  return "the GPU of rank " + std::to_string(g.rank) + ": " + join(parts, ", ");
}

state::EvidenceSaved judge_evidence(const wire::EvidenceTaken& taken,
                                    const std::optional<state::Verdict>& verdict,
                                    const std::vector<RankGpu>& gpus) {
  state::EvidenceSaved saved{.id = taken.id, .folder = taken.folder, .seconds = taken.seconds};
  for (const wire::RankEvidence& rank : taken.ranks) {
    if (!rank.error.empty())
      saved.error += (saved.error.empty() ? "" : "; ") + ("rank " + std::to_string(rank.rank)) +
                     ": " + rank.error;
    if (!rank.collectives.empty())
      saved.findings.push_back("rank " + std::to_string(rank.rank) + " " + rank.collectives);
    if (!verdict || rank.rank != verdict->rank) continue;
    // The readings are about a second apart. Without readings (the rank had gone, or nothing could
    // be read) the verdict stays as it was.
    if (!rank.process_state.empty() && rank.cpu_ticks_first > 0)
      saved.kind =
          state::refine_kind(verdict->kind, rank.process_state[0],
                             proc::ticks_to_seconds(rank.cpu_ticks_second - rank.cpu_ticks_first));
    if (std::string where = where_it_stands(rank); !where.empty())
      saved.findings.push_back(std::move(where));
  }
  if (!taken.nccl_ras.empty()) saved.findings.push_back("NCCL's RAS service: " + taken.nccl_ras);
  for (const RankGpu& gpu : gpus)
    if (std::string text = describe_gpu(gpu); verdict && gpu.rank == verdict->rank && !text.empty())
      saved.findings.push_back(std::move(text));
  return saved;
}

privilege::NewFile verdict_file(const state::Verdict& verdict, const state::EvidenceSaved& saved,
                                const std::vector<state::RankSample>& samples,
                                const std::vector<RankGpu>& gpus, const nlohmann::json& nodes) {
  std::vector<std::string> witnesses = verdict.witnesses;
  witnesses.insert(witnesses.end(), saved.findings.begin(), saved.findings.end());
  auto places = nlohmann::json::array();
  for (const state::RankSample& page : samples) {
    nlohmann::json place = {{"rank", page.rank},
                            {"completed_step", page.device.completed_step},
                            {"started", page.device.started},
                            {"completed", page.device.completed}};
    if (page.host)
      place.update({{"step", page.host->step},
                    {"micro_step", page.host->micro_step},
                    {"phase", progress::phase_name(page.host->phase)},
                    {"collectives", page.host->enqueued},
                    {"batch_index", page.host->batch_index},
                    {"tokens", page.host->tokens}});
    if (const progress::Collective* c = page.collectives.find(page.device.started);
        c != nullptr && page.device.started > page.device.completed)
      place["waits_in"] = describe(*c);
    places.push_back(std::move(place));
  }
  auto devices = nlohmann::json::array();
  for (const RankGpu& g : gpus) {
    nlohmann::json device = g.gpu;
    device.update({{"rank", g.rank}, {"xids", g.xids}});
    devices.push_back(std::move(device));
  }
  const nlohmann::json json = {
      {"rank", verdict.rank},
      {"kind", saved.kind == state::HangKind::kUnknown ? verdict.kind : saved.kind},
      {"phase", progress::phase_name(verdict.phase)},
      {"step", verdict.step},
      {"stalled_seconds", verdict.detect_seconds},
      {"witnesses", witnesses},
      {"pages", places},
      {"gpus", devices},
      {"nodes", nodes}};
  return {"verdict.json", json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace)};
}

} // namespace nsa::control
