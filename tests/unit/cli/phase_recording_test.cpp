// What samples of a progress page show: exact borders, missed phases, and only whole steps.
#include "cli/phase_recording.h"

#include <gmock/gmock.h>

namespace nsa::cli {
namespace {

using progress::Phase;
using ::testing::ElementsAre;

constexpr int64_t kMs = 1'000'000;

// A rank whose steps take 10 ms: data 1, forward 3, backward 4, optimizer 2. It began long before
// the recording.
progress::HostRecord record_at(int64_t now) {
  struct Part {
    Phase phase;
    int64_t begin;
  };
  static constexpr Part kParts[] = {{Phase::kData, 0},
                                    {Phase::kForward, 1 * kMs},
                                    {Phase::kBackward, 4 * kMs},
                                    {Phase::kOptimizer, 8 * kMs}};
  progress::HostRecord record;
  record.step = static_cast<uint64_t>(now / (10 * kMs)) + 1;
  record.step_start_ns = now / (10 * kMs) * 10 * kMs;
  for (const Part& part : kParts)
    if (now >= record.step_start_ns + part.begin) {
      record.phase = part.phase;
      ++record.phase_number;
      record.phase_start_ns = record.step_start_ns + part.begin;
    }
  return record;
}

PhaseRecording recorded(uint64_t steps, int64_t begin, int64_t interval, int samples) {
  PhaseRecording recording(steps);
  for (int i = 0; i < samples; ++i)
    recording.add(record_at(begin + i * interval), begin + i * interval);
  return recording;
}

TEST(PhaseRecording, BordersAreExactThoughSamplesAreNot) {
  // The first sample is in the middle of step 4, so the recording begins with step 5.
  const PhaseRecording recording = recorded(3, 35 * kMs, 700'000, 1000);
  ASSERT_TRUE(recording.is_full());
  const auto times = recording.times();
  ASSERT_TRUE(times);
  EXPECT_EQ(times->steps, 3u);
  EXPECT_EQ(times->begin_ns, 40 * kMs);
  EXPECT_EQ(times->end_ns, 70 * kMs);
  EXPECT_EQ(times->seen_steps.size(), 3u);
  EXPECT_EQ(times->seen_steps[0].step, 5u);
  EXPECT_EQ(times->seen_steps[2].end_ns, 70 * kMs);
  EXPECT_EQ(times->ns.at(Phase::kData), 3 * kMs);
  EXPECT_EQ(times->ns.at(Phase::kForward), 9 * kMs);
  EXPECT_EQ(times->ns.at(Phase::kBackward), 12 * kMs);
  EXPECT_EQ(times->ns.at(Phase::kOptimizer), 6 * kMs);
  EXPECT_EQ(times->attributed_ns(), times->total_ns());
  EXPECT_EQ(times->phases.size(), 12u);
  EXPECT_EQ(times->phases[1].begin_ns, 41 * kMs);
  EXPECT_EQ(times->phases[1].end_ns, 44 * kMs);
}

TEST(PhaseRecording, TimeOfPhasesThatWereMissedIsNotAttributed) {
  // A sample every 4 ms, so at 2, 6 and 10 ms of two steps. The data phase is seen only in every
  // second step.
  const auto times = recorded(10, 32 * kMs, 4 * kMs, 100).times();
  ASSERT_TRUE(times);
  EXPECT_EQ(times->total_ns(), 100 * kMs);
  EXPECT_LT(times->attributed_ns(), times->total_ns());
  EXPECT_GT(times->attributed_ns(), 0);
  for (const PhaseSpan& span : times->phases) { // no phase is longer than it really was
    const int64_t longest = span.phase == Phase::kData       ? 1
                            : span.phase == Phase::kForward  ? 3
                            : span.phase == Phase::kBackward ? 4
                                                             : 2;
    EXPECT_LE(span.end_ns - span.begin_ns, longest * kMs) << progress::phase_name(span.phase);
  }
}

TEST(PhaseRecording, WithoutAWholeStepThereIsNothing) {
  EXPECT_FALSE(PhaseRecording(1).times());
  EXPECT_FALSE(recorded(5, 35 * kMs, 100'000, 10).times()) << "inside of one step";
  const PhaseRecording early = recorded(5, 35 * kMs, 100'000, 200); // to 54.9 ms
  EXPECT_FALSE(early.is_full());
  EXPECT_EQ(early.times()->steps, 1u) << "step 5 is whole, step 6 is not";
  PhaseRecording starting(1);
  starting.add({}, 1);
  EXPECT_FALSE(starting.times()) << "no step has begun";
}

TEST(PhaseRecording, TheTraceHasRanksStepsAndPhases) {
  const std::map<Rank, PhaseTimes> ranks = {{0, *recorded(2, 35 * kMs, 100'000, 1000).times()},
                                            {1, *recorded(2, 45 * kMs, 100'000, 1000).times()}};
  const nlohmann::json trace = chrome_trace("kaaaa", ranks);
  EXPECT_EQ(trace["otherData"]["run"], "kaaaa");
  std::vector<std::string> processes;
  std::map<std::string, int> names;
  for (const auto& event : trace["traceEvents"]) {
    if (event["name"] == "process_name") processes.push_back(event["args"]["name"]);
    if (event["ph"] == "X") ++names[event["name"]];
  }
  EXPECT_THAT(processes, ElementsAre("rank 0", "rank 1"));
  EXPECT_EQ(names["forward"], 4);
  EXPECT_EQ(names["step 5"], 1);
  EXPECT_EQ(names["step 6"], 2);
  const nlohmann::json& first = trace["traceEvents"][3];
  EXPECT_EQ(first["ts"], 0.0);
  EXPECT_EQ(first["dur"], 10'000.0) << "in microseconds";
}

} // namespace
} // namespace nsa::cli
