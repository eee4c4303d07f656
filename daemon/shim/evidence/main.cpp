// nsa-evidence --id ID --folder DIR --interval S --rank-limit S --limit S --rank N:PID:START ...
//              [--nccl-ras ADDRESS]
//
// nsa-shim starts it. It reads /proc twice, takes the stacks of all threads of all ranks, and
// writes DIR/rank-<n>.txt and DIR/evidence.json. It asks NCCL's RAS service and writes the answer
// to DIR/nccl-ras.txt. Exit codes: 0 written, 1 cannot be written, 2 bad arguments.
// arguments.
#include "common/base/file.h"
#include "common/base/log.h"
#include "daemon/shim/evidence/flight_record.h"
#include "daemon/shim/evidence/nccl_ras.h"
#include "daemon/shim/evidence/readings.h"
#include "daemon/shim/evidence/report.h"
#include "daemon/shim/evidence/symbols.h"
#include "daemon/shim/evidence/unwinders.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <time.h>
#include <utility>

namespace {

using namespace nsa;
using namespace nsa::shim::evidence;

struct Arguments {
  std::string id, folder, nccl_ras; // `nccl_ras` is an address; empty: do not ask
  double interval = 1, rank_limit = 8, limit = 19;
  std::vector<Target> targets;
};

bool parse(int argc, char** argv, Arguments& a) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--id")
      a.id = value;
    else if (name == "--folder")
      a.folder = value;
    else if (name == "--interval")
      a.interval = std::atof(value.c_str());
    else if (name == "--rank-limit")
      a.rank_limit = std::atof(value.c_str());
    else if (name == "--limit")
      a.limit = std::atof(value.c_str());
    else if (name == "--nccl-ras")
      a.nccl_ras = value;
    else if (name == "--rank") {
      long rank = 0, pid = 0;
      unsigned long long start = 0;
      if (std::sscanf(value.c_str(), "%ld:%ld:%llu", &rank, &pid, &start) != 3) return false;
      a.targets.push_back({static_cast<Rank>(rank), static_cast<pid_t>(pid), start});
    } else
      return false;
  }
  return argc % 2 == 1 && !a.folder.empty() && !a.targets.empty();
}

// RAS waits 5 s for processes that do not respond to it, and then reports them.
constexpr double kRasSeconds = 7;

void sleep_until(MonotonicTime when) {
  const timespec at{when.nanoseconds / 1'000'000'000, when.nanoseconds % 1'000'000'000};
  while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) != 0) {
  }
}

// Adds the stacks to the threads that the readings have found, and adds new threads.
void add_stacks(wire::RankEvidence& rank, const UnwindResult& result, const Symbols& symbols) {
  rank.error = result.error;
  for (const RawStack& stack : result.stacks) {
    auto thread = std::find_if(rank.threads.begin(), rank.threads.end(),
                               [&](const auto& t) { return t.tid == stack.tid; });
    if (thread == rank.threads.end()) {
      rank.threads.emplace_back().tid = stack.tid;
      thread = rank.threads.end() - 1;
    }
    bool guessing = false;
    for (const RawFrame& frame : stack.frames) {
      if (frame.guessed && !std::exchange(guessing, true))
        thread->frames.push_back("(" + stack.error + "; what follows was found on the stack)");
      thread->frames.push_back((frame.guessed ? "? " : "") +
                               symbols.text(frame.object, frame.address));
    }
    if (!stack.error.empty() && !guessing) thread->frames.push_back("(" + stack.error + ")");
  }
}

// The shim asked the ranks when it started this program. A rank that can answer has done so long
// before the stacks have names, unless it was slow to run again after the unwinding.
void add_flight_records(const std::string& folder, wire::EvidenceTaken& taken,
                        MonotonicTime deadline) {
  for (auto& rank : taken.ranks) {
    const auto path = flight_record_path(folder, rank.rank);
    const bool can_answer = !rank.dead && !rank.traced && rank.process_state.rfind('T', 0) != 0;
    while (can_answer && !std::filesystem::exists(path) && MonotonicTime::now() < deadline)
      sleep_until(MonotonicTime::now() + std::chrono::milliseconds(20));
    const auto text = read_file(path, kMaxFlightRecordBytes);
    if (!text) continue; // the rank did not answer
    const auto summary = summarise_flight_record(*text, path.filename().string());
    rank.collectives =
        summary ? *summary : "wrote no flight record that can be read: " + summary.error().what;
  }
}

void add_nccl_ras(const std::string& folder, wire::EvidenceTaken& taken,
                  Result<NcclRasQuestion>& question, MonotonicTime deadline) {
  const auto answer = question ? question->answer(deadline) : tl::unexpected(question.error());
  if (!answer) {
    taken.nccl_ras = answer.error().what;
    return;
  }
  const auto path = std::filesystem::path(folder) / "nccl-ras.txt";
  if (auto kept = write_file_atomic(path, *answer, 0640, Survives::kProcessCrash); !kept)
    log::warning("evidence", kept.error().what);
  taken.nccl_ras = summarise_nccl_ras(*answer);
  if (taken.nccl_ras.empty()) taken.nccl_ras = "answered without a report of errors";
}

void take_stacks(wire::EvidenceTaken& taken, MonotonicTime deadline) {
  std::vector<pid_t> pids;
  for (auto& rank : taken.ranks) {
    pids.push_back(rank.dead || rank.traced ? -1 : static_cast<pid_t>(rank.pid));
    if (rank.traced) rank.error = "a debugger is attached: the process is only observed";
  }
  const auto results = unwind_processes(pids, deadline);
  Symbols symbols;
  for (const auto& result : results)
    for (const auto& stack : result.stacks)
      for (const auto& frame : stack.frames)
        if (!frame.object.empty()) symbols.add(frame.object, frame.address);
  symbols.look_up();
  for (size_t i = 0; i < results.size(); ++i)
    if (pids[i] > 0) add_stacks(taken.ranks[i], results[i], symbols);
}

} // namespace

int main(int argc, char** argv) {
  Arguments a;
  if (!parse(argc, argv, a)) {
    std::fprintf(stderr, "usage: nsa-evidence --id ID --folder DIR --interval S --rank-limit S "
                         "--limit S --rank N:PID:START ...\n");
    return 2;
  }
  const MonotonicTime began = MonotonicTime::now();
  wire::EvidenceTaken taken;
  taken.id = a.id;
  taken.folder = a.folder;
  std::optional<Result<NcclRasQuestion>> ras;
  if (!a.nccl_ras.empty()) ras = NcclRasQuestion::ask(a.nccl_ras);
  for (const auto& target : a.targets)
    taken.ranks.push_back(read_first(target));
  sleep_until(began + from_seconds(a.interval));
  for (size_t i = 0; i < a.targets.size(); ++i)
    read_second(a.targets[i], taken.ranks[i]);
  // Write the known facts before anything that may take long or crash.
  taken.seconds = to_seconds(MonotonicTime::now() - began);
  for (auto& rank : taken.ranks)
    if (!rank.dead) rank.error = "stacks were not taken in time";
  auto written = write_reports(a.folder, taken, Survives::kProcessCrash);
  if (written) {
    for (auto& rank : taken.ranks)
      rank.error.clear();
    const double for_stacks = std::min(a.rank_limit, a.limit - a.interval - 2);
    take_stacks(taken, MonotonicTime::now() + from_seconds(for_stacks));
    add_flight_records(a.folder, taken, MonotonicTime::now() + std::chrono::seconds(1));
    if (ras) add_nccl_ras(a.folder, taken, *ras, began + from_seconds(kRasSeconds));
    taken.seconds = to_seconds(MonotonicTime::now() - began);
    written = write_reports(a.folder, taken, Survives::kMachineCrash);
  }
  if (!written) {
    log::error("evidence", "cannot be written", {{"why", written.error().what}});
    return 1;
  }
  return 0;
}
