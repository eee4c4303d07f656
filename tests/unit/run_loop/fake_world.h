// What outlives nsad, in memory: the disk with the ledger, shims with their ranks, and time. Every
// durable action passes the kill switch before and after it takes effect. There nsad dies by an
// exception of type Killed, and the test starts the next nsad.
//
// If something happens that must never happen, the test fails at that place.
#pragma once

#include "daemon/run_loop/live_attempt.h"
#include "daemon/state/event.h"
#include "daemon/store/run_ledger.h"

#include <map>
#include <random>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace nsa::control::fake {

struct Killed {};

class KillSwitch {
public:
  void arm(int at) { at_ = at; }
  void arm_at_random(uint64_t seed, unsigned one_in) {
    random_.seed(seed);
    one_in_ = one_in;
  }
  int count() const { return count_; }
  void pass(const std::string& place);
  const std::set<std::string>& killed_at() const { return killed_at_; }

private:
  int count_ = 0, at_ = 0; // at_: 0: never
  unsigned one_in_ = 0;    // kills at one of so many places; 0: at none
  std::mt19937_64 random_;
  std::set<std::string> killed_at_;
};

// How an attempt proceeds.
enum class Course {
  kCompletes,
  kCrashes,      // a rank ends with an error after a checkpoint
  kHangs,        // a rank hangs after a checkpoint
  kLosesItsShim, // the shim is killed, and its ranks with it
  kGoesOn,       // trains until it is asked to stop
};

using Said = std::variant<state::EventBody, wire::RankStep>;

struct Shim {
  Course course = Course::kCompletes;
  std::string token;
  int ranks = 0;
  int64_t pid = 0;
  std::vector<Said> said; // numbered from 1
  uint64_t forgotten = 0; // the highest number that the shim has forgotten
  std::set<Rank> running;
  int stage = 0;
  bool asked_to_stop = false, asked_to_kill = false, released = false, lost = false;
  std::string evidence; // the evidence that is being taken
  bool alive() const { return !lost && !(released && running.empty()); }
};

class FakeLedger final : public store::RunLedger {
public:
  struct Run {
    store::RunRow row;
    store::RunProgressRow progress;
    std::vector<store::EventRow> events; // the events that a replay reads
    int closed = 0, summaries = 0;
  };
  explicit FakeLedger(KillSwitch& kill) : kill_(kill) {}
  Status commit(store::Batch& batch) override;
  Result<uint64_t> shim_sequence(const RunId& run, AttemptNumber attempt) override {
    return shim_sequences[{run, attempt}];
  }
  Result<uint64_t> part_sequence(const RunId&, AttemptNumber, size_t) override { return 0; }
  Result<std::string> token(const RunId& run, AttemptNumber attempt) override {
    return tokens[{run, attempt}];
  }
  bool release_reserve() override { return false; }

  std::map<RunId, Run> runs;
  std::map<AttemptKey, uint64_t> shim_sequences;
  std::map<AttemptKey, std::string> tokens;
  std::map<std::string, RunId> leases;
  int refuse_one_in = 0; // refuses one of so many commits, as if the disk were full; 0: none
  int refuse_next = 0;   // refuses so many of the next commits

private:
  KillSwitch& kill_;
  int commits_ = 0;
};

struct World {
  World(uint64_t seed, std::map<RunId, std::vector<Course>> courses)
      : random(seed), ledger(kill), courses(std::move(courses)) {}
  // Starts a shim with its ranks. If a shim was started for this attempt before, returns that one.
  Shim& start(const AttemptKey& key, int ranks, const std::string& token);
  void go_on(); // time passes, and each rank acts by its course
  bool chance(int of) { return random() % static_cast<unsigned>(of) == 0; }

  static constexpr int kSlots = 2;
  std::mt19937_64 random;
  KillSwitch kill;
  FakeLedger ledger;
  // One for each attempt; the last one also holds for all later attempts.
  std::map<RunId, std::vector<Course>> courses;
  std::map<AttemptKey, Shim> shims;
  std::map<RunId, uint64_t> checkpoints; // the step of the newest one
  int64_t now = 1'000'000'000'000;       // nanoseconds, for both clocks

private:
  void go_on(const AttemptKey& key, Shim& shim);
  static void end_rank(Shim& shim, Rank rank, int exit_code, bool killed);
};

} // namespace nsa::control::fake
