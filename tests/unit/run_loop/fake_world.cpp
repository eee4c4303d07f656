#include "tests/unit/run_loop/fake_world.h"

#include "common/wire/exit_code.h"

#include <gtest/gtest.h>
#include <utility>

namespace nsa::control::fake {

void KillSwitch::pass(const std::string& place) {
  ++count_;
  if (count_ != at_ && (one_in_ == 0 || random_() % one_in_ != 0)) return;
  killed_at_.insert(place);
  throw Killed{};
}

// ---- the ledger ---------------------------------------------------------------------------------

Status FakeLedger::commit(store::Batch& batch) {
  if (batch.empty()) return {};
  kill_.pass("before a commit");
  const bool is_full = refuse_next > 0 && refuse_next-- > 0;
  if (is_full || (refuse_one_in != 0 && ++commits_ % refuse_one_in == 0))
    return fail(ErrorCode::kExhausted, "the disk is full");
  for (const store::RunRow& row : batch.runs)
    runs[row.id].row = row;
  for (const store::RunProgressRow& row : batch.progress)
    runs.at(row.run).progress = row;
  for (const store::AttemptRow& row : batch.attempts)
    tokens[{row.run, row.attempt}] = row.token;
  for (const auto& [run, attempt, sequence] : batch.shim_sequences)
    shim_sequences[{run, attempt}] = std::max(shim_sequences[{run, attempt}], sequence);
  for (const store::Lease& lease : batch.leases) {
    if (lease.run.empty()) {
      leases.erase(lease.slot);
      continue;
    }
    const auto [held, is_new] = leases.emplace(lease.slot, lease.run);
    EXPECT_TRUE(is_new) << lease.slot << " is leased to " << lease.run << " and to "
                        << held->second;
  }
  for (store::EventRow& row : batch.events) {
    if (row.run.empty() || !row.replay) continue;
    Run& run = runs.at(row.run);
    EXPECT_EQ(run.closed, 0) << row.kind << " of a closed run";
    if (row.kind == wire::EventKind::kRunClosed) ++run.closed;
    run.events.push_back(row);
  }
  kill_.pass("after a commit");
  return {};
}

// ---- shims and ranks ----------------------------------------------------------------------------

Shim& World::start(const AttemptKey& key, int ranks, const std::string& token) {
  const auto [found, is_new] = shims.try_emplace(key);
  Shim& shim = found->second;
  if (!is_new) {
    EXPECT_EQ(shim.token, token) << "an attempt is started with two tokens";
    return shim;
  }
  int busy = ranks;
  for (const auto& [other, s] : shims) {
    busy += static_cast<int>(s.running.size());
    if (other.run == key.run) {
      EXPECT_TRUE(s.running.empty()) << "two attempts of run " << key.run << " run at a time";
    }
  }
  EXPECT_LE(busy, kSlots) << "more ranks than slots";
  const std::vector<Course>& all = courses.at(key.run);
  shim.course = all[std::min(all.size(), static_cast<size_t>(key.attempt)) - 1];
  shim.token = token;
  shim.ranks = ranks;
  shim.pid = static_cast<int64_t>(1000 + shims.size());
  for (Rank r = 0; r < ranks; ++r)
    shim.running.insert(r);
  return shim;
}

void World::end_rank(Shim& shim, Rank rank, int exit_code, bool killed) {
  if (shim.running.erase(rank) == 0) return;
  wire::RankExited exited;
  exited.rank = rank;
  exited.pid = 100 + rank;
  exited.exit_code = killed ? -1 : exit_code;
  exited.signal = killed ? 9 : 0;
  exited.killed_by_shim = killed;
  exited.monotonic_ns = static_cast<int64_t>(shim.said.size()) + 1;
  shim.said.emplace_back(state::EventBody(exited));
}

void World::go_on(const AttemptKey& key, Shim& shim) {
  if (shim.asked_to_kill)
    while (!shim.running.empty())
      end_rank(shim, *shim.running.begin(), 0, true);
  if (shim.running.empty()) return;
  const auto all_say = [&](auto message) {
    for (Rank r = 0; r < shim.ranks; ++r) {
      message.rank = r;
      shim.said.emplace_back(state::EventBody(message));
    }
  };
  const auto write_checkpoint = [&](uint64_t step) {
    wire::RankCheckpoint checkpoint;
    checkpoint.step = step;
    checkpoints[key.run] = std::max(checkpoints[key.run], step);
    wire::RankStep told;
    told.step = step;
    shim.said.emplace_back(told);
    shim.said.emplace_back(state::EventBody(checkpoint));
  };
  const auto finish = [&](uint64_t step, wire::FinishReason reason) {
    wire::RankFinished finished;
    finished.step = step;
    finished.reason = reason;
    all_say(finished);
    for (Rank r = 0; r < shim.ranks; ++r)
      end_rank(shim, r, 0, false);
  };
  const auto step = static_cast<uint64_t>(10 * key.attempt);
  switch (shim.stage++) {
  case 0:
    return all_say(wire::RankStarted{0, 100, 7});
  case 1:
    return all_say(wire::RankHello{});
  case 2:
    return write_checkpoint(step);
  default:
    break;
  }
  if (shim.course == Course::kCompletes) return finish(step + 5, wire::FinishReason::kCompleted);
  if (shim.course == Course::kCrashes) return end_rank(shim, 0, 1, false);
  if (shim.course == Course::kLosesItsShim) {
    // The shim is lost only after nsad has all its messages.
    if (shim.forgotten < shim.said.size()) return;
    shim.lost = true;
    shim.running.clear();
  } else if (shim.course == Course::kGoesOn && shim.asked_to_stop) {
    write_checkpoint(step + 5);
    finish(step + 5, wire::FinishReason::kStopped);
  }
}

void World::go_on() {
  now += static_cast<int64_t>(random() % 100) * 1'000'000;
  for (auto& [key, shim] : shims)
    if (!shim.lost && !chance(3)) go_on(key, shim);
}

} // namespace nsa::control::fake
