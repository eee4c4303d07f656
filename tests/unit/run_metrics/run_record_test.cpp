// What nsad keeps of a run's steps, events and ranks: figures, counters, peaks, toggles.
#include "common/estimate/estimate.h"
#include "common/spec/toggles.h"
#include "daemon/run_metrics/run_record.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

namespace nsa::control {
namespace {

TEST(Trend, KeepsItsShapeInSixtyFourPoints) {
  Trend trend;
  for (int i = 0; i < 10'000; ++i)
    trend.add(10'000 - i);
  ASSERT_LE(trend.points().size(), 64u);
  ASSERT_GE(trend.points().size(), 32u);
  EXPECT_EQ(trend.points().front(), 10'000);
  EXPECT_LT(trend.points().back(), 400) << "the end of the curve is there";
  for (size_t i = 1; i < trend.points().size(); ++i)
    EXPECT_LT(trend.points()[i], trend.points()[i - 1]);
}

TEST(RunRecord, AStepMovesTheSummary) {
  RunRecord record;
  record.row.id = "aaaaa";
  record.spec.train.steps = 100;
  record.spec.train.sequence_length = 10;
  record.spec.parallel.ranks = 1;
  state::Run run;
  run.id = "aaaaa";
  run.phase = state::RunState::kRunning;
  run.attempt.number = 3;
  wire::RankStep step;
  step.step = 40;
  step.loss = 2.5;
  step.tokens_per_second = 20;
  // An older build calls the phase all-gather-state "collect".
  step.phase_seconds = {{"data", 0.5}, {"forward", 1.5}, {"restore", 0.25}, {"collect", 0.5}};
  for (const auto& row : wire::kLayerMetrics)
    step.*row.at = {{"0", 0.5}};
  note_step(record, step);
  for (const auto& layers : record.counters.layers)
    EXPECT_EQ(layers, (std::map<std::string, double>{{"0", 0.5}}));
  const wire::RunSummary s = summary_of(run, record);
  EXPECT_EQ(s.step, 40u);
  EXPECT_EQ(s.restarts, 2);
  EXPECT_TRUE(s.has_loss);
  EXPECT_DOUBLE_EQ(s.eta_seconds, 60 * 10 / 20.0);
  EXPECT_DOUBLE_EQ(record.counters.phase_seconds.at("data-wait"), 0.5);
  EXPECT_DOUBLE_EQ(record.counters.phase_seconds.at("train"), 1.5);
  EXPECT_DOUBLE_EQ(record.counters.phase_seconds.at("checkpoint"), 0.75);
  EXPECT_DOUBLE_EQ(record.ranks[0].phase_seconds.at("all-gather-state"), 0.5);
  run.phase = state::RunState::kCompleted;
  EXPECT_EQ(summary_of(run, record).eta_seconds, 0);
}

TEST(RunRecord, ASummarySaysWhoBeganAttemptsAndHowLongAStopMayTake) {
  RunRecord record;
  record.spec.run.tags = {"ablation"};
  record.spec.run.note = "again, with feeling";
  state::Run run;
  run.phase = state::RunState::kStopping;
  run.reason = "stop requested by ann";
  run.attempt.number = 4;
  run.resumes = 1;
  run.timer = state::Timer{state::TimerKind::kStopGrace, WallTime{99}, {}};
  wire::RunSummary s = summary_of(run, record);
  EXPECT_EQ(s.restarts, 2) << "a resume is no restart";
  EXPECT_EQ(s.resumes, 1);
  EXPECT_EQ(s.tags, std::vector<std::string>{"ablation"});
  EXPECT_EQ(s.note, "again, with feeling");
  EXPECT_EQ(s.waits_until, 99);
  EXPECT_EQ(s.reason, "stop requested by ann");
  state::Hang hang;
  hang.attempt = 4;
  hang.rank = 1;
  hang.kind = state::HangKind::kDeadlocked;
  hang.phase = progress::Phase::kForward;
  hang.observed_only = true;
  run.hangs = {hang};
  EXPECT_NE(summary_of(run, record).reason.find("rank 1 (deadlocked in forward"),
            std::string::npos);
  run.hangs[0].attempt = 3;
  EXPECT_EQ(summary_of(run, record).reason, "stop requested by ann") << "of an earlier attempt";
  run.timer.reset();
  EXPECT_EQ(summary_of(run, record).waits_until, 0);
}

TEST(RunRecord, TimeInTheQueueIsIdleAndTimeBetweenAttemptsIsRestart) {
  RunRecord record;
  record.spec.train.sequence_length = 10;
  state::Run run;
  int64_t second = 100;
  const auto becomes = [&](state::RunState phase, AttemptNumber attempt,
                           state::AttemptPhase attempt_phase, int64_t after) {
    second += after;
    run.phase = phase;
    run.attempt.number = attempt;
    run.attempt.phase = attempt_phase;
    note_wait(record, run, WallTime{second * 1'000'000'000});
  };
  const auto counted = [&](const char* use) {
    const auto found = record.counters.phase_seconds.find(use);
    return found == record.counters.phase_seconds.end() ? 0 : found->second;
  };
  using enum state::RunState;
  using Phase = state::AttemptPhase;
  becomes(kQueued, 0, Phase::kChoosing, 0);
  becomes(kQueued, 0, Phase::kChoosing, 3); // another event: nothing changes
  becomes(kStarting, 1, Phase::kChoosing, 4);
  becomes(kStarting, 1, Phase::kLive, 1);
  EXPECT_DOUBLE_EQ(counted("idle"), 8) << "until its first ranks";
  becomes(kRunning, 1, Phase::kLive, 50);
  becomes(kRestarting, 1, Phase::kKilling, 10);
  becomes(kRestarting, 1, Phase::kEnded, 2);
  becomes(kRestarting, 2, Phase::kChoosing, 5);
  EXPECT_DOUBLE_EQ(counted("restart"), 0) << "it is told once it is over";
  const metrics::RunSample shown = metrics_of(run, record, nullptr);
  EXPECT_GT(shown.phase_seconds.at("restart"), 1e6) << "but shown meanwhile: the clock is real";

  RunRecord next; // of the next nsad
  recall(next, nlohmann::json::parse(memory_of(record, nullptr).dump()));
  record = std::move(next);
  becomes(kRestarting, 2, Phase::kLive, 6);
  EXPECT_DOUBLE_EQ(counted("restart"), 13);
  record.of_attempt = 2;
  wire::RankStep first;
  first.phase_seconds = {{"start-up", 4}, {"forward", 1}};
  note_step(record, first);
  EXPECT_DOUBLE_EQ(counted("restart"), 17) << "its ranks would not have started up";
  EXPECT_DOUBLE_EQ(counted("train"), 1);
  becomes(kQueued, 2, Phase::kEnded, 9); // its GPUs are in quarantine
  becomes(kPaused, 2, Phase::kEnded, 7);
  becomes(kPaused, 2, Phase::kEnded, 900);
  becomes(kQueued, 2, Phase::kEnded, 900); // resumed
  EXPECT_DOUBLE_EQ(counted("idle"), 15) << "a run that has ended is nobody's";
  EXPECT_DOUBLE_EQ(counted("restart"), 17);
}

TEST(RunRecord, CountersAndLearnedLimitsOutliveNsad) {
  RunRecord before;
  before.spec.train.sequence_length = 10;
  wire::RankStep step;
  step.step = 7;
  step.step_seconds = 0.3;
  step.learning_rate = 0.01;
  step.clipped_steps = 2;
  step.phase_seconds = {{"data", 0.5}};
  note_step(before, step);
  before.counters.restarts["hang"] = 2;
  before.counters.hangs = 3;
  before.counters.lost_steps = 4;
  before.counters.nonfinite_steps = 5;
  before.counters.checkpoint_last_success = WallTime{6};
  before.counters.checkpoint_write_seconds.observe(1);
  before.counters.checkpoint_failures["write"] = 1;
  before.counters.recovery_seconds.try_emplace("detect", metrics::recovery_histogram())
      .first->second.observe(11);
  before.learned.steps = {40, 0.25};
  const nlohmann::json memory = memory_of(before, nullptr);
  RunRecord after;
  recall(after, nlohmann::json::parse(memory.dump()));
  EXPECT_EQ(memory_of(after, nullptr), memory);
  EXPECT_EQ(after.counters.steps, 7u);
  EXPECT_EQ(after.counters.tokens, before.counters.tokens);
  EXPECT_EQ(after.counters.figures["learning_rate"], 0.01);
  EXPECT_EQ(recalled_figures(memory).named().at("learning_rate"), 0.01) << "of an ended run";
  EXPECT_EQ(after.last.step, 7u);
  EXPECT_EQ(after.trend.points(), before.trend.points());
  EXPECT_EQ(memory["clipped_steps"], 2) << "the key that older ledgers have";
  EXPECT_EQ(after.learned, before.learned);
  EXPECT_EQ(after.ranks.at(0).step_seconds.sum(), 0.3);
}

TEST(RunRecord, AMemoryThatCannotBeReadCostsNoRun) {
  for (const char* text : {"null", "{}", "[1]", R"({"steps": "many"})", R"({"ranks": {"x": {}}})",
                           R"({"recovery_seconds": {"detect": {"counts": [1]}}})"}) {
    RunRecord record;
    recall(record, nlohmann::json::parse(text));
    EXPECT_EQ(record.counters.steps, 0u) << text;
  }
}

TEST(RunRecord, ARecordStandsForAllStepsSinceTheOneBefore) {
  RunRecord record;
  record.spec.train.sequence_length = 2048;
  record.spec.train.accumulate = 2;
  record.spec.parallel.ranks = 1;
  record.last.step = 20; // it was resumed there
  wire::RankStep step;
  step.step = 30;
  step.clipped_steps = 4;
  step.data_wait_seconds = 0.5;
  step.exposed_communication_seconds = 0.25;
  step.step_seconds = 0.125; // a mean: ten steps took 1.25 s
  note_step(record, step);
  EXPECT_DOUBLE_EQ(record.last.data_wait_ratio, 0.4);
  step.step = 40;
  step.clipped_steps = 2;
  note_step(record, step);
  EXPECT_EQ(record.counters.steps, 20u);
  EXPECT_EQ(record.counters.batches, 40u);
  EXPECT_EQ(record.counters.tokens, 20u * 2 * 2048);
  EXPECT_EQ(record.counters.figures["clipped_steps"], 6);
  EXPECT_EQ(record.counters.figures["data_wait_seconds"], 1.0);
  EXPECT_DOUBLE_EQ(record.counters.exposed_communication_seconds, 0.5);
  EXPECT_DOUBLE_EQ(record.last.exposed_communication_ratio, 0.2);
  EXPECT_DOUBLE_EQ(record.counters.flops, 20 * estimate::arithmetic(record.spec).total());
}

// `seconds` is the same for all ranks, since they wait for each other.
wire::RankStep step_of(Rank rank, uint64_t step, double seconds, double waited) {
  wire::RankStep r;
  r.rank = rank;
  r.step = step;
  r.step_seconds = seconds;
  r.exposed_communication_seconds = waited;
  return r;
}

TEST(RunRecord, ThePaceOfARankIsWithoutItsWaitForTheOthers) {
  RunRecord record;
  record.spec.parallel.ranks = 2;
  const auto report = [&](Rank rank, uint64_t step, double waited) {
    note_step(record, step_of(rank, step, 0.4, waited));
  };
  report(0, 10, 90); // the first record includes the start
  report(1, 10, 0);
  EXPECT_EQ(record.ranks[0].own_step_seconds, 0);
  for (uint64_t step = 20; step <= 50; step += 10) {
    report(0, step, 2.0); // for ten steps
    report(1, step, 0.4);
  }
  EXPECT_DOUBLE_EQ(record.ranks[0].own_step_seconds, 0.2);
  EXPECT_DOUBLE_EQ(record.ranks[1].own_step_seconds, 0.36);
  EXPECT_DOUBLE_EQ(record.ranks[0].exposed_communication_ratio, 0.5);
  EXPECT_DOUBLE_EQ(record.ranks[0].figures.value_or_0("exposed_communication_seconds"), 98.0);

  state::Run run;
  run.attempt.ranks.resize(2);
  const metrics::RunSample sample = metrics_of(run, record, nullptr);
  EXPECT_DOUBLE_EQ(sample.ranks[0].perf_score_ratio.value_or(0), 1.0);
  EXPECT_NEAR(sample.ranks[1].perf_score_ratio.value_or(0), 0.2 / 0.36, 1e-12);
  EXPECT_NEAR(rank_view(run, record, 0, nullptr).exposed_communication_ratio, 0.5, 1e-12);
  EXPECT_TRUE(sample.kernels.empty());
  record.provenance["kernels"] = {{"selected", "aten chunked (FlashAttention is of GPUs)"}};
  EXPECT_EQ(metrics_of(run, record, nullptr).kernels.at("selected"), "aten chunked");

  RunRecord again; // a rank's total and its pace outlive nsad
  recall(again, memory_of(record, nullptr));
  EXPECT_DOUBLE_EQ(again.ranks[1].own_step_seconds, 0.36);
  EXPECT_DOUBLE_EQ(again.ranks[0].figures.value_or_0("exposed_communication_seconds"), 98.0);
  // The ratio is the mean of the first ten records. A record without a wait counts, and so does a
  // slow one.
  report(0, 60, 0);
  EXPECT_NEAR(record.ranks[0].exposed_communication_ratio, 0.4, 1e-12);
  EXPECT_NEAR(record.ranks[0].own_step_seconds, 0.24, 1e-12);
  for (uint64_t step = 70; step <= 110; step += 10)
    report(0, step, 0);
  EXPECT_NEAR(record.ranks[0].exposed_communication_ratio, 0.2, 1e-12);
  report(0, 120, 4.0); // the eleventh record has a weight of one tenth
  EXPECT_NEAR(record.ranks[0].exposed_communication_ratio, 0.9 * 0.2 + 0.1, 1e-12);

  wire::RankView ended; // the ratio also outlives the run
  ended.rank = 1;
  recall(ended, memory_of(record, nullptr));
  EXPECT_DOUBLE_EQ(ended.exposed_communication_ratio, 0.1);
  ended.rank = 2;
  ended.exposed_communication_ratio = 0;
  recall(ended, memory_of(record, nullptr));
  EXPECT_DOUBLE_EQ(ended.exposed_communication_ratio, 0);
}

TEST(RunRecord, CommunicationIsWhatTheRankWaitsThatComesLast) {
  RunRecord record;
  record.spec.parallel.ranks = 2;
  const auto report = [&](Rank rank, uint64_t step, double waited) {
    note_step(record, step_of(rank, step, 0.5, waited));
  };
  report(0, 1, 3); // it includes the start: it counts in the total, but not in the ratio
  report(1, 1, 2);
  EXPECT_DOUBLE_EQ(record.counters.exposed_communication_seconds, 2);
  EXPECT_DOUBLE_EQ(record.last.exposed_communication_ratio, 0);
  // The ranks are last in turn, so on average both wait longer than the data take.
  report(0, 2, 0.05);
  EXPECT_DOUBLE_EQ(record.last.exposed_communication_ratio, 0); // rank 1 has not reported yet
  report(1, 2, 0.2);
  report(1, 3, 0.05); // rank 1 is ahead of rank 0
  report(1, 4, 0.2);
  report(0, 3, 0.2);
  report(0, 4, 0.05);
  EXPECT_DOUBLE_EQ(record.last.exposed_communication_ratio, 0.1);
  EXPECT_NEAR(record.ranks[0].exposed_communication_ratio, 0.2, 1e-12);
  EXPECT_NEAR(record.ranks[1].exposed_communication_ratio, 0.3, 1e-12);
  EXPECT_DOUBLE_EQ(record.counters.exposed_communication_seconds, 2.15);
  report(0, 5, 0.5); // the record of rank 1 is lost
  report(0, 6, 0.1);
  report(1, 6, 0.3);
  EXPECT_TRUE(record.exchange.open.empty());
  EXPECT_DOUBLE_EQ(record.counters.exposed_communication_seconds, 2.25);
}

TEST(RunRecord, UtilisationIsSaidOnlyOfGpusWhoseRateIsKnown) {
  RunRecord record;
  record.spec.train.steps = 100;
  state::Run run;
  wire::RankStep step;
  step.step = 1;
  step.tokens_per_second = 2048; // one step per second
  note_step(record, step);
  record.ranks[0].device = "cpu AMD EPYC";
  EXPECT_FALSE(metrics_of(run, record, nullptr).mfu_ratio);
  record.ranks[0].device = "cuda:0 NVIDIA H200 GPU-1";
  const auto sample = metrics_of(run, record, nullptr);
  ASSERT_TRUE(sample.mfu_ratio);
  EXPECT_NEAR(*sample.mfu_ratio, estimate::arithmetic(record.spec).total() / 989.4e12, 1e-9);
  // The rate for one token per second. The page multiplies it by the rate of each record.
  EXPECT_NEAR(mfu_of_token_rate(record.spec, {record.ranks[0].device}) * 2048, *sample.mfu_ratio,
              1e-12);
  EXPECT_EQ(mfu_of_token_rate(record.spec, {record.ranks[0].device, "cpu"}), 0);
  EXPECT_EQ(mfu_of_token_rate(record.spec, {}), 0);
}

TEST(RunRecord, EventsCountOnceAndPeaksOutliveNsad) {
  RunRecord record;
  note_event(record, wire::RankMemory{0, "boot", 100, 0, 0, 0, 0}, {});
  note_event(record, wire::RankMemory{1, "steady", 300, 5, 60, 50, 70}, {});
  EXPECT_EQ(record.ranks[1].figures.value_or_0("reserved_bytes"), 60) << "before any record";
  wire::RankExited exited;
  exited.max_resident_bytes = 400;
  note_event(record, exited, {});
  EXPECT_EQ(record.peaks.resident_bytes, 400u);
  EXPECT_EQ(record.peaks.allocated_bytes, 50u);
  EXPECT_EQ(record.peaks.reserved_bytes, 60u);
  note_event(record, wire::RankNonFinite{0, 3, wire::NonFiniteAction::kSkip, "loss"}, {});
  note_event(record, wire::RankNonFinite{0, 3, wire::NonFiniteAction::kReport, "held-out loss"},
             {});
  EXPECT_EQ(record.counters.nonfinite_steps, 1u) << "an evaluation is no update";
  wire::RankCheckpoint written;
  written.step = 7;
  note_event(record, written, WallTime{5});
  written.error = "disk full";
  written.step = 8;
  note_event(record, written, WallTime{6});
  EXPECT_EQ(record.counters.checkpoints_verified, 1u);
  EXPECT_EQ(record.counters.checkpoint_last_step, 7u);
  EXPECT_EQ(record.counters.checkpoint_last_success->nanoseconds, 5);
  RunRecord after;
  recall(after, nlohmann::json::parse(memory_of(record, nullptr).dump()));
  EXPECT_EQ(after.peaks.resident_bytes, 400u);
  EXPECT_EQ(after.peaks.reserved_bytes, 60u);
  EXPECT_EQ(after.counters.checkpoints_verified, 1u);
}

TEST(RunRecord, TogglesAreRecordedWithTheirOrigin) {
  const auto& registry = spec::toggle_registry();
  ASSERT_GE(registry.size(), 2u);
  RunRecord record;
  record.row.id = "aaaaa";
  record.row.file_name = "run.toml";
  record.row.run_file = "schema = 1\n[toggles]\nnccl.debug = \"INFO\"\n";
  record.row.overrides = {"toggles.nccl.max_channels=2"};
  record.spec.toggles = {{"nccl.debug", "INFO"}, {"nccl.max_channels", "2"}, {"nccl.nvls", "0"}};
  std::map<std::string, std::string> origins;
  for (const store::ToggleRow& row : requested_toggles(record, 2))
    origins[row.name] = row.origin.text();
  EXPECT_EQ(origins.size(), registry.size()) << "every toggle is recorded";
  EXPECT_EQ(origins.at("nccl.debug"), "file");
  EXPECT_EQ(origins.at("nccl.max_channels"), "--set");
  EXPECT_EQ(origins.at("nccl.nvls"), "host") << "nobody who submitted it wrote that";
  EXPECT_EQ(origins.at("attention.kernels"), "default");
}

} // namespace
} // namespace nsa::control
