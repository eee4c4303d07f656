#include "daemon/shim/evidence_runner.h"

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "daemon/proc/process.h"

#include <algorithm>
#include <csignal>
#include <fcntl.h>
#include <unistd.h>

namespace nsa::shim {

namespace {

// The design allows 20 s until evidence is saved. The stacks get the time that the two readings
// leave, and the helper is killed if it overruns.
constexpr double kOverallSeconds = 19;
constexpr double kHelperGraceSeconds = 0.5;

bool is_safe_id(const std::string& id) { // the id becomes a folder name
  return !id.empty() && id.size() <= 64 && id[0] != '.' &&
         id.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") ==
             std::string::npos;
}

} // namespace

EvidenceRunner::~EvidenceRunner() {
  if (limit_) loop_.cancel(*limit_);
}

void EvidenceRunner::request(wire::TakeEvidence request) {
  if (!is_safe_id(request.id)) {
    log::warning("shim", "refused a request for evidence: its id is no plain name");
    return;
  }
  const bool known = std::any_of(waiting_.begin(), waiting_.end(),
                                 [&](const wire::TakeEvidence& w) { return w.id == request.id; });
  if (known) return;
  waiting_.push_back(std::move(request));
  if (!busy()) start_next();
}

void EvidenceRunner::start_next() {
  if (waiting_.empty()) return;
  const wire::TakeEvidence& request = waiting_.front();
  const auto folder = folder_ / request.id;
  began_ = MonotonicTime::now();
  if (::access((folder / "evidence.json").c_str(), R_OK) == 0) return report({});
  if (auto made = make_folder(folder, 0750); !made) return report(made.error().what);

  on_start_(folder);
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const double interval = std::clamp(request.interval_seconds, 0.0, kOverallSeconds / 2);
  proc::LaunchSpec spec;
  spec.arguments = {(self.parent_path() / "nsa-evidence").string(),
                    "--id",
                    request.id,
                    "--folder",
                    folder.string(),
                    "--interval",
                    std::to_string(interval),
                    "--rank-limit",
                    std::to_string(request.stack_limit_seconds),
                    "--limit",
                    std::to_string(kOverallSeconds)};
  for (const auto& rank : ranks_()) {
    spec.arguments.push_back("--rank");
    spec.arguments.push_back(std::to_string(rank.rank) + ":" + std::to_string(rank.pid) + ":" +
                             std::to_string(rank.start_time_ticks));
  }
  if (!nccl_ras_.empty()) {
    spec.arguments.emplace_back("--nccl-ras");
    spec.arguments.push_back(nccl_ras_);
  }
  UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  spec.descriptors = {{null.get(), 0}, {null.get(), 1}, {STDERR_FILENO, 2}};
  spec.new_process_group = true;
  spec.parent_death_signal = SIGKILL;
  spec.oom_score_adjust = 1000; // in an out-of-memory situation the helper must die before a rank
  auto child = proc::launch(spec);
  if (!child) return report(child.error().what);
  child_ = std::move(*child);
  limit_ = loop_.after(from_seconds(kOverallSeconds + kHelperGraceSeconds), [this] {
    limit_.reset();
    // Also kills the processes that the helper has started. The helper is not reaped yet.
    ::kill(-child_.pid, SIGKILL);
  });
}

void EvidenceRunner::on_child_ended() {
  if (limit_) loop_.cancel(*limit_);
  limit_.reset();
  ::kill(-child_.pid, SIGKILL);
  const auto status = proc::wait_child(child_.pidfd.get());
  child_ = {};
  if (status && *status && (*status)->exit_code == 0) return report({});
  std::string why = "nsa-evidence ended without a result";
  if (status && *status && (*status)->signal != 0)
    why += " (signal " + std::to_string((*status)->signal) + ")";
  report(why);
}

void EvidenceRunner::report(const std::string& error) {
  const wire::TakeEvidence request = std::move(waiting_.front());
  waiting_.pop_front();
  const auto folder = folder_ / request.id;
  // This applies after a failure, too: the readings are written before the stacks are tried.
  auto body = read_file(folder / "evidence.json", wire::kMaxBodyBytes);
  if (!error.empty() || !body)
    log::error("shim", "evidence could not be taken, or not all of it",
               {{"id", request.id}, {"why", error.empty() ? body.error().what : error}});
  if (body && check_json(*body, "evidence.json", {.bytes = wire::kMaxBodyBytes})) {
    on_done_(std::move(*body));
    return start_next();
  }
  wire::EvidenceTaken taken;
  taken.id = request.id;
  taken.folder = folder.string();
  taken.seconds = to_seconds(MonotonicTime::now() - began_);
  for (const auto& identity : ranks_()) {
    wire::RankEvidence rank;
    rank.rank = identity.rank;
    rank.pid = identity.pid;
    rank.dead = !identity.running;
    rank.error = error.empty() ? "evidence.json cannot be read" : error;
    taken.ranks.push_back(std::move(rank));
  }
  on_done_(nlohmann::json(taken).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  start_next();
}

} // namespace nsa::shim
