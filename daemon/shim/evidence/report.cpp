#include "daemon/shim/evidence/report.h"

#include <algorithm>
#include <unistd.h>

namespace nsa::shim::evidence {

namespace {

std::string dump(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

double cpu_seconds(uint64_t first, uint64_t second) {
  return static_cast<double>(second - std::min(first, second)) /
         static_cast<double>(::sysconf(_SC_CLK_TCK));
}

std::string decimals(double value) {
  char text[32];
  const int length = std::snprintf(text, sizeof text, "%.2f", value);
  return {text, static_cast<size_t>(length)};
}

// Keeps at most `frames` frames of each thread, and as many threads as fit.
void cut(wire::RankEvidence& rank, size_t frames, size_t max_bytes) {
  for (auto& thread : rank.threads)
    if (thread.frames.size() > frames) thread.frames.resize(frames);
  size_t bytes = 512 + rank.error.size();
  size_t kept = 0;
  while (kept < rank.threads.size()) {
    bytes += dump(rank.threads[kept]).size() + 1;
    if (bytes > max_bytes && kept > 0) break;
    ++kept;
  }
  if (kept == rank.threads.size()) return;
  rank.error += (rank.error.empty() ? "" : "; ") + std::to_string(rank.threads.size() - kept) +
                " threads are left out here, all are in rank-" + std::to_string(rank.rank) + ".txt";
  rank.threads.resize(kept);
}

} // namespace

std::string rank_text(const wire::RankEvidence& rank) {
  std::string text = "rank " + std::to_string(rank.rank) + ", process " + std::to_string(rank.pid);
  if (rank.dead) return text + ": dead\n";
  text += ", state " + rank.process_state + ", CPU between the readings " +
          decimals(cpu_seconds(rank.cpu_ticks_first, rank.cpu_ticks_second)) + " s\n";
  if (!rank.collectives.empty()) text += "flight recorder: " + rank.collectives + "\n";
  if (!rank.error.empty()) text += "stacks: " + rank.error + "\n";
  for (const auto& thread : rank.threads) {
    text += "\nthread " + std::to_string(thread.tid) + " \"" + thread.name + "\", state " +
            (thread.state.empty() ? "unknown (it is new)" : thread.state) + ", CPU " +
            decimals(cpu_seconds(thread.cpu_ticks_first, thread.cpu_ticks_second)) + " s";
    if (!thread.wait_channel.empty()) text += ", waits in " + thread.wait_channel;
    if (!thread.system_call.empty()) text += ", system call " + thread.system_call;
    text += '\n';
    for (size_t i = 0; i < thread.frames.size(); ++i)
      text += "  #" + std::to_string(i) + " " + thread.frames[i] + "\n";
  }
  return text;
}

std::string evidence_json(const wire::EvidenceTaken& taken, size_t max_bytes) {
  std::string text = dump(taken);
  const size_t share = max_bytes / std::max<size_t>(taken.ranks.size(), 1);
  for (const size_t frames : {48u, 24u, 12u}) {
    if (text.size() <= max_bytes) return text;
    wire::EvidenceTaken shorter = taken;
    for (auto& rank : shorter.ranks)
      cut(rank, frames, frames == 12 ? share : max_bytes);
    text = dump(shorter);
  }
  return text;
}

Status write_reports(const std::filesystem::path& folder, const wire::EvidenceTaken& taken,
                     Survives survives) {
  for (const auto& rank : taken.ranks)
    NSA_TRY(write_file_atomic(folder / ("rank-" + std::to_string(rank.rank) + ".txt"),
                              rank_text(rank), 0640, survives));
  return write_file_atomic(folder / "evidence.json", evidence_json(taken), 0640, survives);
}

} // namespace nsa::shim::evidence
