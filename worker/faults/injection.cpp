#include "worker/faults/injection.h"

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/unique_fd.h"

#include <algorithm>
#include <array>
#include <fcntl.h>
#include <unistd.h>

namespace nsa::train {

namespace {

constexpr std::array<std::pair<Fault, std::string_view>, 12> kNames = {{
    {Fault::kStopSignal, "stop_signal"},
    {Fault::kMutexDeadlock, "mutex_deadlock"},
    {Fault::kSpin, "spin"},
    {Fault::kSkipCollective, "skip_collective"},
    {Fault::kDataStall, "data_stall"},
    {Fault::kKill, "kill"},
    {Fault::kExit, "exit"},
    {Fault::kSegfault, "segfault"},
    {Fault::kNonFinite, "non_finite"},
    {Fault::kKillInCollect, "kill_in_collect"},
    {Fault::kStopInCollect, "stop_in_collect"},
    {Fault::kDeadlockInCollect, "deadlock_in_collect"},
}};
constexpr uint64_t kStallKinds = 5; // the first five above

// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014): the same
// draw on every platform, which std::uniform_int_distribution does not promise.
uint64_t next_random(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

} // namespace

std::string_view fault_name(Fault fault) {
  return kNames[static_cast<size_t>(fault)].second;
}

std::optional<Fault> fault_from_name(std::string_view name) {
  for (const auto& [fault, text] : kNames)
    if (text == name) return fault;
  return std::nullopt;
}

bool acts_in_collect(Fault fault) {
  return fault == Fault::kKillInCollect || fault == Fault::kStopInCollect ||
         fault == Fault::kDeadlockInCollect;
}

Result<std::optional<Injection>> plan_injection(const spec::InjectSection& inject, uint64_t steps,
                                                int ranks, AttemptNumber attempt) {
  if (inject.kind == "none" || inject.attempt != attempt) return std::optional<Injection>();
  auto random = static_cast<uint64_t>(inject.seed);
  const uint64_t kind_draw = next_random(random);
  const uint64_t rank_draw = next_random(random);
  const uint64_t step_draw = next_random(random);

  Injection injection{};
  if (inject.kind == "random") {
    injection.fault = kNames[kind_draw % kStallKinds].first;
    if (injection.fault == Fault::kSkipCollective && ranks == 1) injection.fault = Fault::kSpin;
  } else if (const auto fault = fault_from_name(inject.kind)) {
    injection.fault = *fault;
  } else {
    return fail(ErrorCode::kInvalidArgument, "inject.kind = \"" + inject.kind + "\" is unknown");
  }
  const bool needs_peer =
      injection.fault == Fault::kSkipCollective || acts_in_collect(injection.fault);
  if (needs_peer && ranks == 1)
    return fail(ErrorCode::kInvalidArgument,
                "inject.kind = \"" + inject.kind + "\" needs a peer to notice it",
                "set parallel.ranks to 2 or more");
  if (inject.rank >= ranks)
    return fail(ErrorCode::kInvalidArgument, "inject.rank = " + std::to_string(inject.rank) +
                                                 ", but the run has " + std::to_string(ranks) +
                                                 " ranks, counted from 0");
  injection.rank = inject.rank >= 0 ? static_cast<Rank>(inject.rank)
                                    : static_cast<Rank>(rank_draw % static_cast<uint64_t>(ranks));
  const uint64_t first = steps / 4 + 1, last = std::max(first, steps / 2);
  injection.step = inject.step >= 0 ? static_cast<uint64_t>(inject.step)
                                    : first + step_draw % (last - first + 1);
  return std::optional<Injection>(injection);
}

Status record_injection(const std::filesystem::path& run_folder, const Injection& injection) {
  const std::filesystem::path path = run_folder / "injected.json";
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd) return fail_errno("cannot open " + path.string());
  const nlohmann::ordered_json record = {
      {"rank", injection.rank}, {"step", injection.step}, {"kind", fault_name(injection.fault)}};
  const std::string line = record.dump() + "\n";
  NSA_TRY(write_all(fd.get(), line.data(), line.size()));
  if (::fsync(fd.get()) != 0) return fail_errno("cannot fsync " + path.string());
  return sync_folder(run_folder);
}

} // namespace nsa::train
