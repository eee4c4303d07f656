// What a resume refuses, and of what it warns. The rules get plain values.
#include "daemon/requests/resume_rules.h"

#include "common/spec/fields.h"
#include "common/spec/schedule.h"

#include <gmock/gmock.h>

namespace nsa::control {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

spec::RunSpec cosine(int64_t steps) {
  spec::RunSpec spec;
  spec.train.steps = steps;
  spec.train.warmup_steps = 5;
  spec.train.learning_rate = 1e-3;
  spec.train.final_learning_rate_ratio = 0.1;
  spec.train.schedule = spec::Schedule::kCosine;
  return spec;
}

ResumeFacts stopped_at(uint64_t step) {
  ResumeFacts facts;
  facts.run = "kaaaa";
  facts.reached_step = step;
  facts.checkpoint_step = step;
  return facts;
}

TEST(ResumeRules, ACompletedRunNeedsMoreSteps) {
  ResumeFacts facts = stopped_at(60);
  facts.completed = true;
  const auto again = check_resume(facts, cosine(60), cosine(60));
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::kConflict);
  EXPECT_THAT(again.error().what, HasSubstr("completed all its 60 steps"));
  EXPECT_THAT(again.error().next, HasSubstr("nsactl resume kaaaa --set train.steps=120"));
  EXPECT_TRUE(check_resume(facts, cosine(60), cosine(61)));
  facts.completed = false;
  EXPECT_TRUE(check_resume(facts, cosine(60), cosine(60)));
}

TEST(ResumeRules, WithoutACheckpointTheBeginningMustBeMeant) {
  ResumeFacts facts = stopped_at(36);
  facts.checkpoint_step.reset();
  const auto lost = check_resume(facts, cosine(60), cosine(60));
  ASSERT_FALSE(lost);
  EXPECT_THAT(lost.error().what, HasSubstr("its 36 steps would be computed again"));
  EXPECT_THAT(lost.error().next, HasSubstr("nsactl resume kaaaa --from-start"));
  facts.from_start = true;
  EXPECT_TRUE(check_resume(facts, cosine(60), cosine(60)));
  facts.checkpoint_step = 30;
  EXPECT_FALSE(check_resume(facts, cosine(60), cosine(60))) << "there is one to go on from";
  facts.checkpoint_step.reset();
  facts.from_start = false;
  facts.reached_step = 0;
  EXPECT_TRUE(check_resume(facts, cosine(60), cosine(60))) << "nothing is lost";
}

TEST(ResumeRules, TheGlobalBatchStays) {
  spec::RunSpec before = cosine(60), after = cosine(60);
  before.train.micro_batch = 8;
  after.train.micro_batch = 4;
  EXPECT_FALSE(check_resume(stopped_at(10), before, after));
  after.train.accumulate = 2 * before.train.accumulate;
  EXPECT_TRUE(check_resume(stopped_at(10), before, after));
  EXPECT_FALSE(check_resume(stopped_at(10), before, cosine(9))) << "ends before its checkpoint";
}

TEST(ResumeRules, OnlyWhatIsTrainedStays) {
  EXPECT_TRUE(check_changed_keys({"train.learning_rate=1e-4", "toggles.nccl.debug=INFO",
                                  "hang.floor_seconds=9", "train.micro_batch=1", "parallel.ranks=1",
                                  "data.path=/more", "train.activation_recompute=true"}));
  for (const char* key : {"model.layers", "nsa.window", "train.seed", "parallel.device", "run.name",
                          "precision.mode", "data.source[0].weight"}) {
    const auto refused = check_changed_keys({std::string(key) + "=1"});
    ASSERT_FALSE(refused) << key;
    EXPECT_THAT(refused.error().what, HasSubstr(std::string(key) + " (")) << "with the reason";
  }
  EXPECT_TRUE(check_changed_keys({"train.learning_rates=1"}))
      << "apply_overrides() knows a nearer name";
  const auto both = check_changed_keys({"model.layers=1", "train.steps=9", "train.seed=2"});
  ASSERT_FALSE(both);
  EXPECT_THAT(both.error().what, HasSubstr("model.layers (the weights in the checkpoint"));
  EXPECT_THAT(both.error().what, HasSubstr("train.seed (the order of the text")) << "all at once";
}

// A row without `on_resume` stays fixed, and each refusal has a reason.
TEST(ResumeRules, EveryFixedKeyHasItsReason) {
  spec::RunSpec spec;
  size_t fixed = 0;
  for (const spec::Field& field : spec::run_fields(spec)) {
    const auto status = check_changed_keys({std::string(field.key) + "=1"});
    EXPECT_EQ(status.has_value(), field.on_resume != spec::OnResume::kFixed) << field.key;
    if (status) continue;
    ++fixed;
    EXPECT_THAT(status.error().what, HasSubstr(std::string(field.key) + " ("));
  }
  EXPECT_GT(fixed, 20u);
  EXPECT_TRUE(check_changed_keys({"hang.flor_seconds=9"})) << "told with the nearest name later";
  EXPECT_FALSE(check_changed_keys({"hanging.floor_seconds=9"}));
}

spec::RunSpec batch_of(int64_t micro_batch, int64_t accumulate, int64_t ranks) {
  spec::RunSpec spec = cosine(60);
  spec.data.path = "/data";
  spec.parallel.device = spec::Device::kCpu;
  spec.train.micro_batch = micro_batch;
  spec.train.accumulate = accumulate;
  spec.parallel.ranks = ranks;
  return spec;
}

using Overrides = std::vector<std::string>;

TEST(ResumeRules, AccumulationFollowsWhatKeepsTheGlobalBatch) {
  const spec::RunSpec before = batch_of(4, 1, 2); // 8 sequences per step
  EXPECT_EQ(complete_overrides(before, {"parallel.ranks=1"}).value(),
            (Overrides{"parallel.ranks=1", "train.accumulate=2"}));
  EXPECT_EQ(complete_overrides(before, {"train.micro_batch=1"}).value(),
            (Overrides{"train.micro_batch=1", "eval.batches=32", "train.accumulate=4"}));
  EXPECT_EQ(complete_overrides(before, {"parallel.ranks=1", "train.micro_batch=8"}).value(),
            (Overrides{"parallel.ranks=1", "train.micro_batch=8", "eval.batches=4"}))
      << "accumulate stays 1";
  EXPECT_EQ(complete_overrides(before, {"train.micro_batch=2", "eval.batches=8"}).value()[1],
            "eval.batches=8")
      << "who says how much is evaluated means it";
  EXPECT_EQ(complete_overrides(before, {"train.learning_rate=1"}).value(),
            Overrides{"train.learning_rate=1"});
  EXPECT_EQ(complete_overrides(before, {"train.micro_batch=2", "train.accumulate=9"}).value(),
            (Overrides{"train.micro_batch=2", "train.accumulate=9", "eval.batches=16"}))
      << "who says it is judged by check_resume";
  EXPECT_EQ(complete_overrides(before, {"parallel.context_ranks=2"}).value(),
            (Overrides{"parallel.context_ranks=2", "train.accumulate=2"}))
      << "both ranks read the same sequences";
  const auto refused = complete_overrides(before, {"parallel.ranks=3"});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().what,
              HasSubstr("8 sequences does not divide over micro_batch * ranks = 4 * 3 = 12"));
  EXPECT_THAT(refused.error().next, HasSubstr("--set train.global_batch=12"));
}

TEST(ResumeRules, AnotherGlobalBatchMustBeSaid) {
  const spec::RunSpec before = batch_of(4, 1, 2);
  EXPECT_EQ(complete_overrides(before, {"train.global_batch=16"}).value(),
            (Overrides{"train.global_batch=16", "train.accumulate=2"}));
  spec::RunSpec after = batch_of(4, 2, 2);
  ResumeFacts facts = stopped_at(10);
  EXPECT_FALSE(check_resume(facts, before, after)) << "nobody said so";
  facts.overrides = {"train.global_batch=16"};
  after.train.global_batch = 16;
  EXPECT_TRUE(check_resume(facts, before, after));
}

TEST(ResumeRules, FromTakesAnyKeptCheckpoint) {
  EXPECT_TRUE(check_from("kaaaa", 20, {40, 20}));
  const auto refused = check_from("kaaaa", 30, {40, 20});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().what, HasSubstr("no usable checkpoint of step 30; it keeps 40, 20"));
  // A completed run that resumes from an earlier checkpoint needs no more steps.
  ResumeFacts facts = stopped_at(60);
  facts.completed = true;
  facts.from = facts.checkpoint_step = 20;
  EXPECT_TRUE(check_resume(facts, cosine(60), cosine(60)));
  facts.from = facts.checkpoint_step = 60;
  EXPECT_FALSE(check_resume(facts, cosine(60), cosine(60)));
}

TEST(ResumeRules, SaysWhatIsExactAndWhatIsNot) {
  const spec::RunSpec before = batch_of(4, 1, 2);
  EXPECT_EQ(exactness(40, before, before),
            "exact after step 40: weights, optimizer state and counters, and the order of the "
            "text; losses are the same bit for bit");
  EXPECT_EQ(exactness(40, before, batch_of(4, 2, 1)),
            "exact after step 40: weights, optimizer state and counters, and the order of the "
            "text; not bit for bit: train.accumulate 1 -> 2, parallel.ranks 2 -> 1");
  spec::RunSpec after = before;
  after.train.learning_rate = 2e-3;
  after.toggles["nccl.debug"] = "INFO";
  EXPECT_THAT(exactness(40, before, after),
              HasSubstr("; changed on purpose: train.learning_rate 0.001 -> 0.002; not bit for "
                        "bit: toggles.nccl.debug default -> INFO"));
  after = before;
  after.data.path = "/more";
  EXPECT_EQ(exactness(40, before, after),
            "exact after step 40: weights, optimizer state and counters; changed on purpose: "
            "data.path \"/data\" -> \"/more\"; the new text is read from its beginning");
  spec::RunSpec gpu = before;
  gpu.parallel.device = spec::Device::kCuda;
  EXPECT_THAT(exactness(40, gpu, gpu), HasSubstr("train.deterministic is false on a GPU"));
}

TEST(ResumeRules, AStretchedScheduleIsWarnedOfWithWhatToType) {
  ResumeFacts facts = stopped_at(60);
  facts.overrides = {"train.steps=400"};
  const auto warnings = resume_warnings(facts, cosine(60), cosine(400));
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("at step 61 the learning rate jumps from 0.0001 to 0.000956"));
  EXPECT_THAT(warnings[0], HasSubstr("nsactl resume kaaaa --set train.steps=400 --set "
                                     "train.schedule=constant --set train.learning_rate=0.0001"));
  // The command that the warning suggests causes no jump and no warning.
  spec::RunSpec advised = cosine(400);
  advised.train.schedule = spec::Schedule::kConstant;
  advised.train.learning_rate = 1e-4;
  EXPECT_NEAR(spec::learning_rate(advised.train, 61), spec::learning_rate(cosine(60).train, 60),
              1e-9);
  facts.overrides = {"train.steps=400", "train.schedule=constant", "train.learning_rate=0.0001"};
  EXPECT_THAT(resume_warnings(facts, cosine(60), advised), IsEmpty());
  EXPECT_THAT(resume_warnings(stopped_at(30), cosine(60), cosine(60)), IsEmpty());
  spec::RunSpec constant = cosine(60), longer = cosine(400);
  constant.train.schedule = longer.train.schedule = spec::Schedule::kConstant;
  facts.overrides = {"train.steps=400"};
  EXPECT_THAT(resume_warnings(facts, constant, longer), IsEmpty()) << "nothing jumps";
}

TEST(ResumeRules, AScheduleThatEndedAtZeroLeavesNoRateToKeep) {
  ResumeFacts facts = stopped_at(60);
  facts.overrides = {"train.steps=400"};
  spec::RunSpec before = cosine(60), after = cosine(400);
  before.train.final_learning_rate_ratio = after.train.final_learning_rate_ratio = 0;
  const auto warnings = resume_warnings(facts, before, after);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("to choose a low one: nsactl resume kaaaa"));
  EXPECT_THAT(warnings[0], HasSubstr("--set train.learning_rate=0.0001")) << "no rate is 0";
}

} // namespace
} // namespace nsa::control
