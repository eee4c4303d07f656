#include "worker/faults/injection.h"

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/unique_fd.h"

#include <algorithm>
#include <fcntl.h>
#include <unistd.h>
#include <vector>

namespace nsa::train {

using spec::FaultKind;

namespace {

// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014). It gives
// the same numbers on every platform, which std::uniform_int_distribution does not guarantee.
uint64_t next_random(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

std::vector<FaultKind> random_kinds() {
  std::vector<FaultKind> kinds;
  for (const spec::FaultRow& row : spec::fault_table())
    if (row.random) kinds.push_back(row.kind);
  return kinds;
}

} // namespace

Result<std::optional<Injection>> plan_injection(const spec::InjectSection& inject, uint64_t steps,
                                                int ranks, AttemptNumber attempt) {
  if (inject.kind == FaultKind::kNone || inject.attempt != attempt)
    return std::optional<Injection>();
  auto random = static_cast<uint64_t>(inject.seed);
  const uint64_t kind_draw = next_random(random);
  const uint64_t rank_draw = next_random(random);
  const uint64_t step_draw = next_random(random);

  Injection injection{inject.kind};
  if (inject.kind == FaultKind::kRandom) {
    const std::vector<FaultKind> kinds = random_kinds();
    injection.fault = kinds[kind_draw % kinds.size()];
    if (injection.fault == FaultKind::kSkipCollective && ranks == 1)
      injection.fault = FaultKind::kSpin;
  }
  const spec::FaultPoint point = spec::fault_row(injection.fault).point;
  const bool needs_peer =
      point == spec::FaultPoint::kReduction || point == spec::FaultPoint::kStateGather;
  if (needs_peer && ranks == 1)
    return fail(ErrorCode::kInvalidArgument,
                "inject.kind = \"" + spec::text_of(inject.kind) + "\" needs a peer to notice it",
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
      {"rank", injection.rank}, {"step", injection.step}, {"kind", injection.fault}};
  const std::string line = record.dump() + "\n";
  NSA_TRY(write_all(fd.get(), line.data(), line.size()));
  if (::fsync(fd.get()) != 0) return fail_errno("cannot fsync " + path.string());
  return sync_folder(run_folder);
}

} // namespace nsa::train
