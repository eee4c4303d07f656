// Two real ranks train, stop, are killed, and continue. The losses equal those of an undisturbed
// run bit for bit.
#include "tests/support/temporary_folder.h"
#include "tests/unit/worker/rank_harness.h"

#include "common/manifest/manifest.h"
#include "common/wire/exit_code.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace nsa::test {
namespace {

namespace fs = std::filesystem;
using wire::MessageType;
using wire::RankExit;

class TrainingTest : public ::testing::Test {
protected:
  static void SetUpTestSuite() {
    shared_ = new TemporaryFolder;
    dataset_ = prepare_text(shared_->path());
  }
  static void TearDownTestSuite() { delete shared_; }

  // Runs to the end. Every rank must report that it is done.
  void complete(RunHarness& run, const spec::RunSpec& spec, const LaunchOptions& options = {}) {
    auto ranks = run.launch(spec, options);
    for (auto& rank : ranks)
      ASSERT_EQ(rank.wait_exit(), 0) << run.log(options.attempt, 0) << run.log(options.attempt, 1);
  }
  // Returns the losses of an uninterrupted run of `spec`.
  std::map<uint64_t, double> reference(const spec::RunSpec& spec) {
    RunHarness run(shared_->path() / ("reference-" + std::to_string(references_++)));
    complete(run, spec);
    return run.losses();
  }

  static bool at_step(const wire::Message& m, uint64_t step) {
    return wire::body_as<wire::RankStep>(m.body)->step >= step;
  }

  TemporaryFolder folder_;
  static TemporaryFolder* shared_;
  static fs::path dataset_;
  static int references_;
};
TemporaryFolder* TrainingTest::shared_ = nullptr;
fs::path TrainingTest::dataset_;
int TrainingTest::references_ = 0;

void expect_kernels_of_a_cpu(const std::vector<wire::RankToggles>& toggles) {
  ASSERT_EQ(toggles.size(), 1u);
  std::map<std::string, std::string> kernels = toggles[0].kernels;
  for (const char* branch : {"compressed", "selected", "sliding"})
    EXPECT_EQ(kernels[branch], "aten chunked (FlashAttention is of GPUs)");
  for (const char* part : {"attention", "layers"})
    EXPECT_EQ(kernels[part], "aten (our kernels need a GPU, and the ranks compute on a CPU)");
  EXPECT_EQ(kernels["graphs"], "off (a CPU has no graphs)");
  EXPECT_EQ(kernels["selection"], "aten");
  EXPECT_EQ(kernels.size(), 7u);
}

void expect_start_up(const std::map<std::string, double>& start_up_seconds) {
  std::vector<std::string> parts;
  for (const auto& [part, seconds] : start_up_seconds) {
    parts.push_back(part);
    EXPECT_GE(seconds, 0) << part;
    EXPECT_LT(seconds, 600) << part;
  }
  EXPECT_THAT(parts, ::testing::ElementsAre("checkpoint", "data", "device", "exec", "first-step",
                                            "loader", "model", "outputs", "peers"));
  EXPECT_GT(start_up_seconds.at("exec"), 0);
}

TEST_F(TrainingTest, TwoRanksLearnAndSayEverything) {
  auto spec = tiny_run(dataset_);
  spec.train.steps = 60;
  spec.train.accumulate = 2;
  spec.eval.interval_steps = 20;
  spec.checkpoint.interval_steps = 20;
  spec.checkpoint.keep_last = 2;
  RunHarness run(folder_.path());
  auto ranks = run.launch(spec);
  for (auto& rank : ranks)
    ASSERT_EQ(rank.wait_exit(), 0) << run.log(1, 0) << run.log(1, 1);

  const auto losses = run.losses();
  ASSERT_EQ(losses.size(), 60u);
  EXPECT_NEAR(losses.at(1), std::log(320.0), 0.5) << "an untrained model knows nothing";
  EXPECT_LT(losses.at(60), losses.at(1) - 2.0);
  const auto heldout = run.heldout_losses();
  ASSERT_EQ(heldout.size(), 3u);
  EXPECT_LT(heldout.at(60), heldout.at(20));

  for (Rank r = 0; r < 2; ++r) {
    auto& rank = ranks[size_t(r)];
    const auto hello = rank.all<wire::RankHello>(MessageType::kRankHello);
    ASSERT_EQ(hello.size(), 1u);
    EXPECT_EQ(hello[0].pid, rank.pid());
    EXPECT_THAT(hello[0].compute_precision, ::testing::AnyOf("bf16", "fp32"));
    EXPECT_EQ(hello[0].compute_precision == "fp32", !hello[0].precision_note.empty());
    expect_kernels_of_a_cpu(rank.all<wire::RankToggles>(MessageType::kRankToggles));
    const std::string log = run.log(1, r); // as a person reads it who starts a rank by hand
    EXPECT_THAT(log, ::testing::HasSubstr("compressed aten chunked (FlashAttention is of GPUs), "));
    EXPECT_THAT(log, ::testing::HasSubstr("libtorch " + hello[0].versions.at("libtorch")));
    std::vector<std::string> stages;
    for (const auto& m : rank.all<wire::RankMemory>(MessageType::kRankMemory)) {
      stages.push_back(m.stage);
      EXPECT_GT(m.resident_bytes, 10u << 20);
    }
    EXPECT_THAT(stages, ::testing::ElementsAre("boot", "model", "loader", "first-step", "steady"));
    const auto steps = rank.all<wire::RankStep>(MessageType::kRankStep);
    ASSERT_FALSE(steps.empty());
    if (steps[0].step == 1) expect_start_up(steps[0].start_up_seconds); // records may be dropped
    EXPECT_TRUE(steps.back().start_up_seconds.empty());
    double exposed = 0, whole = 0;
    for (const auto& step : steps) {
      EXPECT_GE(step.exposed_communication_seconds, 0);
      exposed += step.exposed_communication_seconds;
      whole += step.step_seconds;
    }
    EXPECT_GT(exposed, 0) << "two ranks wait for each other at least a little";
    EXPECT_LT(exposed, whole);
    const auto finished = rank.all<wire::RankFinished>(MessageType::kRankFinished);
    ASSERT_EQ(finished.size(), 1u);
    EXPECT_EQ(finished[0].reason, wire::FinishReason::kCompleted);
    EXPECT_EQ(finished[0].tokens, 60u * 2 * 2 * 2 * 128);
    EXPECT_EQ(rank.page().read_device().completed_step, 60u);
    EXPECT_EQ(rank.page().read_host()->phase, progress::Phase::kShutDown);
  }
  EXPECT_EQ(ranks[0].all<wire::RankEvaluation>(MessageType::kRankEvaluation).size(), 3u);
  EXPECT_EQ(ranks[0].all<wire::RankCheckpoint>(MessageType::kRankCheckpoint).size(), 3u);
  EXPECT_EQ(ranks[1].all<wire::RankCheckpoint>(MessageType::kRankCheckpoint).size(), 0u);
  const auto kept = manifest::list(run.checkpoints(), true);
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0].step, 60u);
  EXPECT_EQ(kept[0].manifest->tokens, 60u * 1024);
  EXPECT_EQ(kept[0].manifest->world_size, 2);
}

// The run is asked to stop at any step, and ends with a checkpoint of exactly that step. The losses
// of the resumed run equal those of the uninterrupted run in every bit.
TEST_F(TrainingTest, StopAnywhereAndResumeBitForBit) {
  for (const bool shards : {true, false}) {
    SCOPED_TRACE(testing::Message() << "parallel.shard_update = " << shards);
    auto spec = tiny_run(dataset_);
    spec.parallel.shard_update = shards;
    const auto expected = reference(spec);
    ASSERT_EQ(expected.size(), 12u);
    for (const uint64_t after : {1u, 4u, 9u}) {
      if (!shards && after != 4) continue; // a single stop suffices to test the way without shards
      RunHarness run(folder_.path() / (std::to_string(after) + (shards ? "" : "-whole")));
      {
        auto ranks = run.launch(spec);
        ASSERT_TRUE(ranks[1].wait_message(MessageType::kRankStep,
                                          [&](const auto& m) { return at_step(m, after); }));
        ranks[1].ask_to_stop(true); // one rank receives the request, and all of them stop
        for (auto& rank : ranks)
          ASSERT_EQ(rank.wait_exit(), 0) << run.log(1, 0);
        EXPECT_EQ(ranks[0].all<wire::RankFinished>(MessageType::kRankFinished).at(0).step,
                  ranks[1].all<wire::RankFinished>(MessageType::kRankFinished).at(0).step);
      }
      const auto choice = manifest::choose_newest_verified(run.checkpoints());
      ASSERT_TRUE(choice.chosen);
      EXPECT_GE(choice.chosen->step, after);
      complete(run, spec, {.attempt = 2, .resume = choice.chosen->folder});
      EXPECT_EQ(run.losses(), expected) << "stopped after step " << choice.chosen->step;
      // A resume does not draw the initial values that the checkpoint overwrites.
      EXPECT_THAT(run.log(1, 0), ::testing::Not(::testing::HasSubstr("initial_values=0")));
      EXPECT_THAT(run.log(2, 0), ::testing::HasSubstr("initial_values=0"));
    }
  }
}

// Without masters, the BF16 weights are the whole state. They, their moments and the random numbers
// of their rounding must continue where they stopped.
TEST_F(TrainingTest, ModesWithoutMastersLearnAndResumeBitForBit) {
  for (const std::string mode : {"sr", "pure"}) {
    auto spec = tiny_run(dataset_);
    spec.precision.mode = *spec::choice_from<spec::PrecisionMode>(mode);
    const auto expected = reference(spec);
    ASSERT_EQ(expected.size(), 12u);
    EXPECT_LT(expected.at(12), expected.at(1) - 0.3) << mode;
    RunHarness run(folder_.path() / mode);
    {
      auto ranks = run.launch(spec);
      ASSERT_TRUE(ranks[0].wait_message(MessageType::kRankStep,
                                        [&](const auto& m) { return at_step(m, 4); }));
      ranks[0].ask_to_stop(true);
      for (auto& rank : ranks)
        ASSERT_EQ(rank.wait_exit(), 0) << run.log(1, 0);
      const auto hello = ranks[0].all<wire::RankHello>(MessageType::kRankHello).at(0);
      EXPECT_EQ(hello.compute_precision, "bf16");
      EXPECT_EQ(hello.precision_note.starts_with("BF16 weights and moments"), mode == "pure");
    }
    const auto choice = manifest::choose_newest_verified(run.checkpoints());
    ASSERT_TRUE(choice.chosen);
    complete(run, spec, {.attempt = 2, .resume = choice.chosen->folder});
    EXPECT_EQ(run.losses(), expected) << mode;
  }
}

TEST_F(TrainingTest, ResumeAtTheEndHasNothingToDo) {
  auto spec = tiny_run(dataset_);
  spec.train.steps = 4;
  RunHarness run(folder_.path());
  complete(run, spec);
  complete(run, spec, {.attempt = 2, .resume = run.checkpoints() / manifest::folder_name(4)});
  EXPECT_EQ(run.losses().size(), 4u);
  spec.train.steps = 6; // with more steps than before it continues
  complete(run, spec, {.attempt = 3, .resume = run.checkpoints() / manifest::folder_name(4)});
  EXPECT_EQ(run.losses().size(), 6u);
}

TEST_F(TrainingTest, KilledRanksResumeFromTheLastCheckpointBitForBit) {
  auto spec = tiny_run(dataset_);
  spec.train.accumulate = 2;
  spec.checkpoint.interval_steps = 3;
  const auto expected = reference(spec);
  RunHarness run(folder_.path());
  {
    auto stalled = spec; // the ranks must not end before they are killed, however late that is
    stalled.inject.kind = spec::FaultKind::kDataStall;
    stalled.inject.rank = 1;
    stalled.inject.step = 8;
    auto ranks = run.launch(stalled);
    ASSERT_TRUE(ranks[0].wait_message(MessageType::kRankCheckpoint));
    for (auto& rank : ranks)
      rank.kill();
    for (auto& rank : ranks)
      EXPECT_EQ(rank.wait_exit(), 256 + SIGKILL);
  }
  const auto choice = manifest::choose_newest_verified(run.checkpoints());
  ASSERT_TRUE(choice.chosen);
  complete(run, spec, {.attempt = 2, .resume = choice.chosen->folder});
  EXPECT_EQ(run.losses(), expected);
  // Records are identified by attempt and step. No step appears twice in an attempt, and the second
  // attempt begins after the checkpoint.
  std::map<int, std::set<uint64_t>> steps;
  for (const nlohmann::json& record : run.records("step"))
    EXPECT_TRUE(steps[record["attempt"].get<int>()].insert(record["step"].get<uint64_t>()).second)
        << record;
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(*steps[2].begin(), choice.chosen->step + 1);
  EXPECT_EQ(*steps[2].rbegin(), 12u);
  EXPECT_GE(*steps[1].rbegin(), choice.chosen->step);
}

// One rank and two ranks train the same global batches of the same tokens. Their losses differ only
// by the order of additions. One rank can resume from a checkpoint of two.
TEST_F(TrainingTest, NumberOfRanksDoesNotChangeWhatIsLearned) {
  auto two = tiny_run(dataset_);
  two.precision.mode = spec::PrecisionMode::kFp32;
  two.checkpoint.interval_steps = 6;
  auto one = two;
  one.parallel.ranks = 1;
  one.train.accumulate = 2;
  RunHarness run(folder_.path() / "two");
  complete(run, two);
  const auto losses_two = run.losses();
  const auto losses_one = reference(one);
  ASSERT_EQ(losses_one.size(), losses_two.size());
  for (const auto& [step, loss] : losses_two)
    EXPECT_NEAR(loss, losses_one.at(step), 1e-6 * loss * double(step)) << "step " << step;
  complete(run, one, {.attempt = 2, .resume = run.checkpoints() / manifest::folder_name(6)});
  const auto mixed = run.losses();
  for (const auto& [step, loss] : losses_two)
    EXPECT_NEAR(mixed.at(step), loss, 1e-6 * loss * double(step)) << "step " << step;
  EXPECT_THAT(run.log(2, 0), ::testing::HasSubstr("not bit for bit: world size 2 -> 1\n"));
}

// A resume may also change whether ranks update shards. The sums are then added in another order.
TEST_F(TrainingTest, ShardsMayComeAndGoWithAResume) {
  auto shards = tiny_run(dataset_);
  shards.precision.mode = spec::PrecisionMode::kFp32;
  shards.checkpoint.interval_steps = 6;
  auto whole = shards;
  whole.parallel.shard_update = false;
  const auto expected = reference(shards);
  for (const bool to_shards : {false, true}) {
    RunHarness run(folder_.path() / (to_shards ? "to-shards" : "to-whole"));
    complete(run, to_shards ? whole : shards);
    complete(run, to_shards ? shards : whole,
             {.attempt = 2, .resume = run.checkpoints() / manifest::folder_name(6)});
    for (const auto& [step, loss] : run.losses())
      EXPECT_NEAR(loss, expected.at(step), 1e-6 * loss * double(step)) << "step " << step;
    EXPECT_THAT(run.log(2, 0),
                ::testing::HasSubstr(std::string("exact in data and state but not bit for bit: "
                                                 "parallel.shard_update ") +
                                     (to_shards ? "false -> true" : "true -> false")));
  }
}

TEST_F(TrainingTest, DenseTwinRecomputeAndCompressionTrainToo) {
  auto spec = tiny_run(dataset_);
  spec.model.attention = spec::Attention::kDense;
  spec.train.activation_recompute = true;
  spec.parallel.compress = spec::Compress::kBf16;
  spec.parallel.bucket_mib = 0.01; // small, so there are many buckets
  spec.data.document_mask = true;
  spec.train.steps = 20;
  RunHarness run(folder_.path());
  complete(run, spec);
  EXPECT_LT(run.losses().at(20), run.losses().at(1) - 1.0);
}

TEST_F(TrainingTest, RecomputeChangesNoBit) {
  auto spec = tiny_run(dataset_);
  spec.train.steps = 4;
  const auto kept = reference(spec);
  spec.train.activation_recompute = true;
  EXPECT_EQ(reference(spec), kept);
}

TEST_F(TrainingTest, DeterministicRunsRepeatBitForBit) {
  auto spec = tiny_run(dataset_);
  spec.train.steps = 4;
  spec.train.threads = 2;
  spec.train.deterministic = true;
  const auto once = reference(spec);
  EXPECT_EQ(once.size(), 4u);
  EXPECT_EQ(reference(spec), once);
}

// All ways give the same bits: with or without figures, by every rank alone, or by shards of which
// each rank knows its own.
TEST_F(TrainingTest, FiguresOfLayersAreWholeAndChangeNoBit) {
  auto spec = tiny_run(dataset_);
  spec.train.steps = 20;
  spec.parallel.bucket_mib = 0.01; // small, so there are many buckets
  for (const bool shards : {false, true}) {
    spec.parallel.shard_update = shards;
    spec.metrics.layer_interval_steps = 0;
    const auto without = reference(spec);
    spec.metrics.layer_interval_steps = 1;
    RunHarness run(folder_.path() / std::to_string(shards));
    complete(run, spec);
    EXPECT_EQ(run.losses(), without);
    const auto records = run.records("step");
    ASSERT_EQ(records.size(), 20u);
    for (const auto& record : records) {
      double squares = 0;
      for (const auto& [group, norm] : record["gradient_norms"].items()) {
        EXPECT_GT(norm, 0) << group;
        squares += norm.get<double>() * norm.get<double>();
      }
      EXPECT_EQ(record["gradient_norms"].size(), size_t(spec.model.layers) + 2);
      const double norm = record["gradient_norm"];
      EXPECT_NEAR(std::sqrt(squares), norm, 1e-5 * norm);
      EXPECT_EQ(record["selected_distance"].size(), size_t(spec.model.layers));
      for (const auto& [layer, tokens] : record["selected_distance"].items()) {
        EXPECT_GE(tokens, 2 * 16) << layer;
        EXPECT_LE(tokens, 128) << layer;
        EXPECT_GE(record["selected_overlap"][layer], 0);
        EXPECT_LE(record["selected_overlap"][layer], 1);
      }
    }
  }
}

// A record covers all steps since the record before it. Their time is complete.
TEST_F(TrainingTest, SparseRecordsHoldTheTimeOfTheStepsBetween) {
  auto spec = tiny_run(dataset_);
  spec.train.steps = 9;
  spec.train.log_interval_steps = 4;
  spec.train.gradient_clip = 1e-3; // below every gradient norm
  RunHarness run(folder_.path());
  complete(run, spec);
  const auto records = run.records("step");
  ASSERT_EQ(records.size(), 4u); // 1, 4, 8, 9
  double phases = 0, whole = 0;
  for (const auto& [i, steps] : {std::pair{1u, 3.0}, std::pair{2u, 4.0}}) {
    for (const auto& [phase, seconds] : records[i]["phase_seconds"].items())
      phases += seconds.get<double>();
    whole += steps * records[i]["step_seconds"].get<double>();
  }
  // The time of single steps would give 2/7. On a busy machine the rank may be stopped between the
  // two clocks, so 0.5 suffices.
  EXPECT_GT(phases, 0.5 * whole);
  for (const auto& record : records)
    EXPECT_GE(record["slowest_step_seconds"], record["step_seconds"]);
  EXPECT_EQ(records[2]["clipped_steps"], 4);
  EXPECT_EQ(records[3]["clipped_steps"], 1);
}

// The norm of a record's last step would hide a spike between two records.
TEST_F(TrainingTest, ARecordHoldsTheLargestGradientNormOfItsSteps) {
  auto spec = tiny_run(dataset_);
  spec.train.steps = 8;
  RunHarness each(folder_.path() / "each"), sparse(folder_.path() / "sparse");
  complete(each, spec);
  spec.train.log_interval_steps = 4;
  complete(sparse, spec);
  const auto steps = each.records("step"), records = sparse.records("step");
  ASSERT_EQ(steps.size(), 8u);
  ASSERT_EQ(records.size(), 3u); // 1, 4, 8
  double largest = 0;
  for (size_t i = 1; i < 4; ++i)
    largest = std::max(largest, steps[i]["gradient_norm"].get<double>());
  EXPECT_EQ(records[1]["largest_gradient_norm"], largest);
  EXPECT_EQ(steps[5]["largest_gradient_norm"], steps[5]["gradient_norm"]);
}

TEST_F(TrainingTest, RankZeroTellsWhenTheTextComesAgain) {
  auto spec = tiny_run(dataset_);
  spec.train.sequence_length = 64;
  spec.train.micro_batch = 32;
  spec.train.steps = 40;
  RunHarness run(folder_.path());
  auto ranks = run.launch(spec);
  for (auto& rank : ranks)
    ASSERT_EQ(rank.wait_exit(), 0) << run.log(1, 0);
  const auto last = manifest::choose_newest_verified(run.checkpoints());
  ASSERT_TRUE(last.chosen);
  const manifest::DataState& data = last.chosen->manifest->data;
  ASSERT_GE(data.epoch, 1u) << "too few steps for this text";
  const uint64_t batch = 64, all = static_cast<uint64_t>(spec.train.steps) * batch;
  const uint64_t sequences = (all - data.index) / data.epoch;
  const auto told = ranks[0].all<wire::RankEpoch>(MessageType::kRankEpoch);
  ASSERT_EQ(told.size(), data.epoch);
  for (uint64_t i = 0; i < told.size(); ++i) {
    EXPECT_EQ(told[i].epoch, i + 2);
    EXPECT_EQ(told[i].step, ((i + 1) * sequences + batch - 1) / batch);
  }
  EXPECT_TRUE(ranks[1].all<wire::RankEpoch>(MessageType::kRankEpoch).empty());
}

TEST_F(TrainingTest, CheckpointOnRequestAndStopWithoutOne) {
  auto spec = tiny_run(dataset_);
  spec.train.steps = 5000;
  RunHarness run(folder_.path());
  auto ranks = run.launch(spec);
  ASSERT_TRUE(ranks[0].wait_message(MessageType::kRankStep));
  ranks[0].ask_for_checkpoint();
  ASSERT_TRUE(ranks[0].wait_message(MessageType::kRankCheckpoint));
  ranks[0].ask_to_stop(false);
  for (auto& rank : ranks)
    ASSERT_EQ(rank.wait_exit(), 0);
  EXPECT_EQ(manifest::list(run.checkpoints(), true).size(), 1u) << "only the requested one";
}

TEST_F(TrainingTest, RunsByHandAndStopsOnSigterm) {
  auto spec = tiny_run(dataset_);
  spec.parallel.ranks = 1;
  spec.train.steps = 5000;
  RunHarness run(folder_.path());
  auto ranks = run.launch(spec, {.by_hand = true});
  for (int i = 0; i < 6000 && run.losses().size() < 3; ++i)
    ::usleep(10000);
  ::kill(ranks[0].pid(), SIGTERM);
  EXPECT_EQ(ranks[0].wait_exit(), 0);
  EXPECT_EQ(manifest::list(run.checkpoints(), true).size(), 1u) << "the stop leaves a checkpoint";
  EXPECT_THAT(run.log(1, 0), ::testing::HasSubstr("started by hand"));
}

} // namespace
} // namespace nsa::test
