// Evidence of each kind of stall. It is taken from real processes through the shim.
#include "tests/unit/shim/shim_harness.h"

#include "common/base/file.h"
#include "daemon/proc/procfs.h"
#include "daemon/shim/evidence/flight_record.h"
#include "daemon/shim/evidence/report.h"
#include "daemon/shim/evidence/stack_scan.h"
#include "daemon/shim/evidence/symbols.h"
#include "daemon/shim/evidence/unwinders.h"

#include <csignal>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

// Code without unwind tables, like hand-written kernels. It spins, and its stack frame has a known
// layout.
extern "C" void nsa_test_spin_without_tables();
asm(".text\n"
    ".type nsa_test_spin_without_tables,@function\n"
    "nsa_test_spin_without_tables:\n"
    "  push %rbx\n"
    "  sub $4096,%rsp\n"
    // The frame is filled with zeros. Earlier calls of this process left words there that look like
    // return addresses, and the unwinder guesses only a limited number of frames.
    "  mov %rsp,%rdi\n"
    "  mov $512,%ecx\n"
    "  xor %eax,%eax\n"
    "  rep stosq\n"
    "  xor %ebp,%ebp\n" // no chain of frame pointers either: libdw would follow it
    "1: pause\n"
    "  jmp 1b\n"
    ".size nsa_test_spin_without_tables, .-nsa_test_spin_without_tables\n");

namespace nsa::shim::test {

[[gnu::noinline]] void caller_of_the_kernel() {
  nsa_test_spin_without_tables();
  asm volatile(""); // prevents a tail call
}

namespace {

using namespace std::chrono_literals;
using wire::MessageType;

// Two ranks, of which rank 1 stalls with `kind` at step 3. Then the shim takes evidence.
struct Stall {
  Attempt attempt{2};
  std::optional<Daemon> nsad;
  wire::EvidenceTaken taken;

  void reach(const std::string& kind) {
    for (Rank r : {0, 1})
      attempt.fake(r, {"steps=100000", "step_ms=4", "fault=" + kind + "@3", "rank=1"});
    attempt.start();
    nsad.emplace(attempt);
    ASSERT_TRUE(nsad->hear_until(
        [](const Daemon& d) { return d.rank_messages(MessageType::kRankInjected).size() == 1; }));
  }
  pid_t pid(Rank rank) const {
    return static_cast<pid_t>(nsad->find<wire::RankStarted>(MessageType::kRankStarted, rank)->pid);
  }
  void take(const std::string& id = "hang-1") {
    wire::TakeEvidence request;
    request.id = id;
    request.interval_seconds = 0.2;
    ASSERT_TRUE(nsad->client().take_evidence(request));
    std::optional<wire::EvidenceTaken> heard;
    ASSERT_TRUE(nsad->hear_until([&](const Daemon& d) {
      for (const wire::Message& m : d.heard())
        if (m.type == MessageType::kEvidenceTaken && m.body.value("id", "") == id)
          heard = m.body.get<wire::EvidenceTaken>();
      return heard.has_value();
    }));
    taken = *heard;
    ASSERT_EQ(taken.ranks.size(), 2u);
  }
  // A rank announces its stall before it stalls, and on a busy machine it may need some time. So
  // this takes evidence until it shows what it must.
  bool take_until(const std::function<bool()>& shown) {
    const MonotonicTime end = MonotonicTime::now() + kWaitLimit;
    for (int i = 1; MonotonicTime::now() < end; ++i) {
      take("hang-" + std::to_string(i));
      if (::testing::Test::HasFatalFailure()) return false;
      if (shown()) return true;
    }
    return false;
  }
  // Whether a thread of the rank has a frame of that function.
  bool names(Rank rank, const std::string& function) const {
    for (const auto& thread : taken.ranks.at(static_cast<size_t>(rank)).threads)
      for (const auto& frame : thread.frames)
        if (frame.find(function) != std::string::npos) return true;
    return false;
  }
  std::string text(Rank rank) const {
    return read_file(std::filesystem::path(taken.folder) /
                     ("rank-" + std::to_string(rank) + ".txt"))
        .value_or("");
  }
};

TEST(Evidence, NamesTheFunctionOfADeadlock) {
  Stall stall;
  stall.reach("mutex_deadlock");
  ASSERT_TRUE(eventually([&] { // both threads must have reached their second lock
    const auto threads = proc::list_threads(stall.pid(1));
    if (!threads || threads->size() < 2) return false; // a sanitizer may add a thread
    for (const pid_t tid : *threads)
      if (const auto stat = proc::read_thread_stat(stall.pid(1), tid); !stat || stat->state != 'S')
        return false;
    return true;
  }));
  EXPECT_TRUE(stall.take_until([&] { return stall.names(0, "Collective::reduce"); }))
      << "the victim waits for its peer";
  const auto& rank = stall.taken.ranks[1];
  EXPECT_EQ(rank.process_state, "S");
  EXPECT_EQ(rank.error, "");
  EXPECT_EQ(rank.threads.size(), 2u);
  for (const auto& thread : rank.threads) {
    ASSERT_FALSE(thread.frames.empty());
    const std::string whole = nlohmann::json(thread.frames).dump();
    EXPECT_NE(whole.find("lock_in_order"), std::string::npos) << whole;
    EXPECT_NE(thread.wait_channel.find("futex"), std::string::npos) << thread.wait_channel;
  }
  EXPECT_TRUE(stall.names(1, "deadlock_on_mutexes"));
  EXPECT_TRUE(stall.names(1, "main"));
  EXPECT_NE(stall.text(1).find("deadlock_on_mutexes"), std::string::npos);
  EXPECT_NE(stall.text(1).find("faults.cpp:"), std::string::npos) << "no source lines";
  EXPECT_NE(state_of(stall.pid(1)), 't') << "it was left stopped";
}

TEST(Evidence, NamesTheFunctionThatSpins) {
  Stall stall;
  stall.reach("spin");
  const auto used = [&] { // about 20 ticks on an idle core, 0 if the thread gets no processor time
    const auto& rank = stall.taken.ranks[1];
    return rank.main_cpu_ticks_second - rank.main_cpu_ticks_first;
  };
  EXPECT_TRUE(stall.take_until([&] { return stall.names(1, "spin_in_user_space") && used() > 0; }))
      << stall.text(1);
  EXPECT_EQ(stall.taken.ranks[1].process_state, "R");
  // The rank still spins.
  EXPECT_TRUE(eventually([&] { return state_of(stall.pid(1)) == 'R'; }));
}

TEST(Evidence, NamesTheReadOfDataThatNeverCome) {
  Stall stall;
  stall.reach("data_stall");
  EXPECT_TRUE(stall.take_until([&] { return stall.names(1, "wait_for_data_forever"); }))
      << stall.text(1);
}

TEST(Evidence, NamesFunctionsOfAProgramThatWasReplaced) {
  Stall stall;
  const auto copy = stall.attempt.folder() / "old-worker";
  std::filesystem::copy_file(stall.attempt.plan.ranks[1].arguments[0], copy);
  stall.attempt.plan.ranks[1].arguments[0] = copy.string();
  stall.reach("data_stall");
  std::filesystem::remove(copy);
  EXPECT_TRUE(stall.take_until([&] { return stall.names(1, "wait_for_data_forever"); }))
      << stall.text(1);
}

TEST(Evidence, ShowsWhoSkippedACollective) {
  Stall stall;
  stall.reach("skip_collective");
  ASSERT_TRUE(eventually([&] {
    const auto record = stall.nsad->pages().at(1).read_host();
    return record && record->step == 4 && record->phase == progress::Phase::kAllReduce;
  }));
  EXPECT_TRUE(stall.take_until([&] {
    return stall.names(0, "Collective::reduce") && stall.names(1, "Collective::reduce");
  })) << stall.text(0)
      << stall.text(1);
  EXPECT_EQ(stall.nsad->pages().at(0).read_host()->step, 3u);
}

TEST(Evidence, LeavesAStoppedProcessStopped) {
  Stall stall;
  stall.reach("stop_signal");
  ASSERT_TRUE(eventually([&] { return state_of(stall.pid(1)) == 'T'; }));
  stall.take();
  const auto& rank = stall.taken.ranks[1];
  EXPECT_EQ(rank.process_state, "T");
  EXPECT_TRUE(stall.names(1, "raise")) << stall.text(1);
  EXPECT_TRUE(stall.names(1, "FakeRank::train")) << stall.text(1);
  EXPECT_TRUE(eventually([&] { return state_of(stall.pid(1)) == 'T'; }));
  EXPECT_EQ(stall.attempt.log_text(1).find("step 4"), std::string::npos);
  EXPECT_EQ(state_of(stall.pid(1)), 'T');
  // The rank is killed without having been continued.
  ASSERT_TRUE(stall.nsad->client().kill_ranks("test"));
  ASSERT_TRUE(stall.nsad->hear_until([](const Daemon& d) { return d.exited(1); }));
  EXPECT_EQ(stall.attempt.log_text(1).find("step 4"), std::string::npos);
}

TEST(Evidence, OnlyObservesARankWithADebugger) {
  Stall stall;
  stall.reach("data_stall");
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, stall.pid(1), nullptr, nullptr), 0) << std::strerror(errno);
  stall.take();
  EXPECT_TRUE(stall.taken.ranks[1].traced);
  EXPECT_NE(stall.taken.ranks[1].error.find("debugger"), std::string::npos);
  for (const auto& thread : stall.taken.ranks[1].threads)
    EXPECT_TRUE(thread.frames.empty());
  EXPECT_FALSE(stall.taken.ranks[0].traced);
  EXPECT_TRUE(stall.names(0, "main"));
}

TEST(Evidence, IsTakenWhileNsadIsAwayAndOfDeadRanksToo) {
  Stall stall;
  stall.reach("kill");
  ASSERT_TRUE(stall.nsad->hear_until([](const Daemon& d) { return d.exited(1); }));
  wire::TakeEvidence request;
  request.id = "dead-1";
  request.interval_seconds = 0.2;
  ASSERT_TRUE(stall.nsad->client().take_evidence(request));
  ASSERT_TRUE(stall.nsad->client().take_evidence(request)); // idempotent
  const uint64_t recorded = stall.nsad->last_sequence();
  const auto folder = stall.attempt.folder() / "evidence" / "dead-1";
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(folder / "evidence.json"); }));
  stall.nsad.emplace(stall.attempt, recorded);
  ASSERT_TRUE(stall.nsad->hear_until([](const Daemon& d) {
    return d.find<wire::EvidenceTaken>(MessageType::kEvidenceTaken).has_value();
  }));
  const auto taken = stall.nsad->find<wire::EvidenceTaken>(MessageType::kEvidenceTaken);
  EXPECT_TRUE(taken->ranks.at(1).dead);
  EXPECT_FALSE(taken->ranks.at(0).dead);
  EXPECT_FALSE(taken->ranks.at(0).threads.empty());
}

TEST(Evidence, RefusesAnIdThatIsAPath) {
  Stall stall;
  stall.reach("data_stall");
  wire::TakeEvidence request;
  request.id = "../../escape";
  ASSERT_TRUE(stall.nsad->client().take_evidence(request));
  stall.take("fine");
  EXPECT_EQ(stall.taken.id, "fine");
  EXPECT_FALSE(std::filesystem::exists(stall.attempt.folder().parent_path() / "escape"));
}

TEST(Unwinders, KeepWhatWasTakenBeforeTheLimit) {
  using namespace evidence;
  const RawStack stack{42, {{0x10, 0x8, "/lib/a b.so"}, {0x20, 0x20, ""}}, "why"};
  auto decoded = decode_stacks(encode_stack(stack) + "T 43 \nF 1 ");
  ASSERT_EQ(decoded.size(), 2u);
  EXPECT_EQ(decoded[0].tid, 42);
  EXPECT_EQ(decoded[0].error, "why");
  ASSERT_EQ(decoded[0].frames.size(), 2u);
  EXPECT_EQ(decoded[0].frames[0].object, "/lib/a b.so");
  EXPECT_EQ(decoded[0].frames[0].pc, 0x10u);
  EXPECT_EQ(decoded[0].frames[1].address, 0x20u);
  EXPECT_TRUE(decoded[1].frames.empty());
}

TEST(Unwinders, SayWhenAProcessIsGone) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED), 0);
  const auto results = evidence::unwind_processes({child, -1}, MonotonicTime::now() + Duration(2s));
  ASSERT_EQ(results.size(), 2u);
  EXPECT_NE(results[0].error, "");
  EXPECT_EQ(results[1].error, "");
}

TEST(Unwinders, GuessTheCallersOfCodeWithoutTables) {
  const pid_t child = ::fork();
  if (child == 0) caller_of_the_kernel();
  std::string functions;
  bool guessed = false;
  const bool found = eventually([&] { // until the rank has reached that place
    const auto results = evidence::unwind_processes({child}, MonotonicTime::now() + Duration(5s));
    evidence::Symbols symbols;
    functions.clear();
    for (const auto& stack : results[0].stacks)
      for (const auto& frame : stack.frames)
        symbols.add(frame.object, frame.address);
    symbols.look_up();
    for (const auto& stack : results[0].stacks)
      for (const auto& frame : stack.frames) {
        functions += symbols.text(frame.object, frame.address) + "\n";
        guessed = guessed || frame.guessed;
      }
    return functions.find("nsa_test_spin_without_tables") == 0;
  });
  EXPECT_TRUE(found) << functions;
  EXPECT_TRUE(guessed);
  EXPECT_NE(functions.find("caller_of_the_kernel"), std::string::npos) << functions;
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(Unwinders, KnowACallInstruction) {
  const auto is_call = [](std::vector<unsigned char> bytes) {
    return evidence::ends_in_call(bytes.data(), bytes.size());
  };
  EXPECT_TRUE(is_call({0x90, 0x90, 0xe8, 1, 2, 3, 4}));             // call rel32
  EXPECT_TRUE(is_call({0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0})); // call *%rax
  EXPECT_TRUE(is_call({0x90, 0xff, 0x15, 1, 2, 3, 4}));             // call *x(%rip)
  EXPECT_TRUE(is_call({0x90, 0x90, 0x90, 0x90, 0xff, 0x50, 0x18})); // call *0x18(%rax)
  EXPECT_FALSE(is_call({0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90}));
  EXPECT_FALSE(is_call({0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xe0})); // jmp *%rax
}

TEST(Report, FitsAFrameAndSaysWhatIsLeftOut) {
  wire::EvidenceTaken taken;
  taken.id = "x";
  for (Rank r = 0; r < 8; ++r) {
    wire::RankEvidence rank;
    rank.rank = r;
    for (int t = 0; t < 200; ++t) {
      wire::ThreadStack thread;
      thread.tid = t;
      thread.frames.assign(100, std::string(180, 'f'));
      rank.threads.push_back(thread);
    }
    taken.ranks.push_back(rank);
  }
  const std::string text = evidence::evidence_json(taken);
  EXPECT_LE(text.size(), evidence::kMaxEvidenceBytes);
  const auto read = nlohmann::json::parse(text).get<wire::EvidenceTaken>();
  ASSERT_EQ(read.ranks.size(), 8u);
  for (const auto& rank : read.ranks) {
    EXPECT_GE(rank.threads.size(), 10u);
    EXPECT_NE(rank.error.find("left out"), std::string::npos);
  }
  // Evidence that fits is not changed.
  taken.ranks.resize(1);
  taken.ranks[0].threads.resize(2);
  EXPECT_EQ(
      nlohmann::json::parse(evidence::evidence_json(taken))["ranks"][0]["threads"][0]["frames"]
          .size(),
      100u);
}

std::string summary_of(const std::string& record) {
  const auto summary = evidence::summarise_flight_record(record, "collectives-0.json");
  return summary ? *summary : summary.error().what;
}

// Entries as c10d 2.11 writes them (FlightRecorderDetail.hpp, dump_json), and as the CPU mesh
// writes them.
TEST(FlightRecord, SaysWhatWasEnqueuedAndWhatIsStuck) {
  const auto entry = [](int number, const char* state) {
    return nlohmann::json{{"record_id", number - 1},
                          {"collective_seq_id", number},
                          {"profiling_name", "nccl:all_reduce"},
                          {"input_sizes", {{6553600}}},
                          {"input_dtypes", {"Float"}},
                          {"state", state},
                          {"retired", false}};
  };
  const nlohmann::json nccl = {
      {"version", "2.10"},
      {"entries", {entry(811, "completed"), entry(812, "scheduled"), entry(813, "scheduled")}}};
  EXPECT_EQ(summary_of(nccl.dump()),
            "enqueued 813 collectives, completed up to 811; the oldest that is not: 812, "
            "nccl:all_reduce, 6553600 elements (Float), scheduled");
  const nlohmann::json mesh = {{"entries",
                                {{{"collective_seq_id", 4},
                                  {"profiling_name", "mesh:all_reduce"},
                                  {"what", "gradient bucket 0 of step 2"},
                                  {"state", "started"}}}}};
  EXPECT_EQ(summary_of(mesh.dump()),
            "enqueued 4 collectives, completed up to 0; the oldest that is not: 4, "
            "mesh:all_reduce, gradient bucket 0 of step 2, started");
  const nlohmann::json idle = {{"entries", {entry(1, "completed")}}};
  EXPECT_EQ(summary_of(idle.dump()), "enqueued 1 collectives, all completed");
  for (const char* empty : {R"({"entries":[]})", R"({"version":"2.10","pg_config":{}})"})
    EXPECT_EQ(summary_of(empty), "no collective in its record") << empty;
  for (const char* other : {"[1]", "{}", R"({"entries":[{}]})", R"({"entries":[1]})",
                            R"({"entries":[{"collective_seq_id":"x"}]})"})
    EXPECT_EQ(summary_of(other), "") << other;
  EXPECT_EQ(summary_of(std::string(200000, '[')),
            "collectives-0.json, line 1, column 65: nested deeper than 64 levels");
  EXPECT_EQ(summary_of("{\"entries\":"),
            "collectives-0.json, line 1, column 12: not JSON: syntax error while parsing value - "
            "unexpected end of input; expected '[', '{', or a literal");
  const nlohmann::json large = {{"entries",
                                 {{{"collective_seq_id", 1},
                                   {"profiling_name", std::string(100000, 'n')},
                                   {"input_sizes", {{INT64_MAX, INT64_MAX}}},
                                   {"state", std::string(100000, 's')}}}}};
  EXPECT_LT(summary_of(large.dump()).size(), 1000u) << "what a rank wrote goes into an event";
}

// The evidence includes what the ranks wrote themselves.
TEST(Evidence, HoldsWhatTheFlightRecordersOfTheRanksSay) {
  Stall stall;
  stall.reach("mutex_deadlock");
  const auto folder = stall.attempt.folder() / "evidence" / "hang-1";
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(write_file_atomic(
      evidence::flight_record_path(folder, 0),
      R"({"entries":[{"collective_seq_id":9,"profiling_name":"nccl:broadcast","state":"started"}]})"));
  stall.take();
  EXPECT_EQ(stall.taken.ranks[0].collectives,
            "enqueued 9 collectives, completed up to 0; the oldest that is not: 9, "
            "nccl:broadcast, started");
  EXPECT_NE(stall.text(0).find("flight recorder: enqueued 9"), std::string::npos);
  EXPECT_EQ(stall.taken.ranks[1].collectives, "") << "it does not answer";
}

TEST(Symbols, DemanglesAndCuts) {
  EXPECT_EQ(evidence::demangle("_ZN3nsa4fake19deadlock_on_mutexesEv"),
            "nsa::fake::deadlock_on_mutexes()");
  EXPECT_EQ(evidence::demangle("main"), "main");
  EXPECT_LE(evidence::demangle(std::string(500, 'a').c_str()).size(), 200u);
}

} // namespace
} // namespace nsa::shim::test
