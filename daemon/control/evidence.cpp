#include "daemon/control/evidence.h"

#include "common/base/file.h"
#include "common/base/text.h"
#include "daemon/control/node_readings.h"

#include <algorithm>
#include <filesystem>

namespace nsa::control {

namespace {

constexpr size_t kFramesTold = 4;

// The main thread's innermost frames.
std::string where_it_stands(const wire::RankEvidence& rank) {
  for (const wire::ThreadStack& thread : rank.threads) {
    if (thread.tid != rank.pid || thread.frames.empty()) continue;
    std::vector<std::string> frames(
        thread.frames.begin(), thread.frames.begin() + static_cast<ptrdiff_t>(std::min(
                                                           kFramesTold, thread.frames.size())));
    return "its main thread is in " + join(frames, " < ");
  }
  return {};
}

} // namespace

state::EvidenceSaved judge_evidence(const wire::EvidenceTaken& taken,
                                    const std::optional<state::Verdict>& verdict) {
  state::EvidenceSaved saved;
  saved.id = taken.id;
  saved.folder = taken.folder;
  saved.seconds = taken.seconds;
  for (const wire::RankEvidence& rank : taken.ranks) {
    if (!rank.error.empty())
      saved.error += (saved.error.empty() ? "" : "; ") + ("rank " + std::to_string(rank.rank)) +
                     ": " + rank.error;
    if (!verdict || rank.rank != verdict->rank) continue;
    // The readings lie about a second apart. Without any (the rank was gone, or nothing could be
    // read) the verdict stays as it was.
    if (!rank.process_state.empty() && rank.cpu_ticks_first > 0)
      saved.kind =
          state::refine_kind(verdict->kind, rank.process_state[0],
                             ticks_to_seconds(rank.cpu_ticks_second - rank.cpu_ticks_first));
    if (std::string where = where_it_stands(rank); !where.empty())
      saved.findings.push_back(std::move(where));
  }
  return saved;
}

Status write_verdict(const std::string& folder, const state::Verdict& verdict,
                     const state::EvidenceSaved& saved, const std::vector<RankPage>& pages) {
  if (folder.empty()) return {};
  std::vector<std::string> witnesses = verdict.witnesses;
  witnesses.insert(witnesses.end(), saved.findings.begin(), saved.findings.end());
  auto places = nlohmann::json::array();
  for (const RankPage& page : pages) {
    nlohmann::json place = {{"rank", page.rank}, {"completed_step", page.device.completed_step}};
    if (page.host)
      place.update({{"step", page.host->step},
                    {"micro_step", page.host->micro_step},
                    {"phase", progress::phase_name(page.host->phase)},
                    {"collectives", page.host->collective_sequence},
                    {"batch_index", page.host->batch_index},
                    {"tokens", page.host->tokens}});
    places.push_back(std::move(place));
  }
  const nlohmann::json json = {{"rank", verdict.rank},
                               {"kind", saved.kind.empty() ? verdict.kind : saved.kind},
                               {"phase", progress::phase_name(verdict.phase)},
                               {"step", verdict.step},
                               {"stalled_seconds", verdict.stalled_seconds},
                               {"witnesses", witnesses},
                               {"pages", places}};
  return write_file_atomic(std::filesystem::path(folder) / "verdict.json",
                           json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
}

} // namespace nsa::control
