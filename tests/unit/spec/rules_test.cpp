#include "tests/unit/spec/spec_testing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::spec {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Case {
  std::vector<std::string> overrides;
  std::string key, what; // of the one problem; empty if there is none
};

// Prints a case, so a failure names it.
void PrintTo(const Case& c, std::ostream* out) {
  *out << testing::PrintToString(c.overrides) << " -> " << (c.key.empty() ? "fine" : c.key);
}

class Rule : public testing::TestWithParam<Case> {};

TEST_P(Rule, Holds) {
  const Case& c = GetParam();
  const auto problems = problems_with(c.overrides);
  if (c.key.empty()) {
    EXPECT_THAT(formatted(problems), IsEmpty());
    return;
  }
  ASSERT_EQ(problems.size(), 1u) << testing::PrintToString(formatted(problems));
  EXPECT_EQ(problems[0].key, c.key);
  EXPECT_THAT(problems[0].what, HasSubstr(c.what));
}

INSTANTIATE_TEST_SUITE_P(
    All, Rule,
    testing::Values(
        Case{{"model.kv_groups=5"}, "model.heads", "multiple of model.kv_groups"},
        Case{{"model.head_dimension=63"}, "model.head_dimension", "must be even"},
        Case{{"parallel.ranks=2", "parallel.context_ranks=2"}, "", ""},
        Case{{"parallel.ranks=3", "parallel.context_ranks=2"},
             "parallel.context_ranks",
             "must divide parallel.ranks (3)"},
        Case{{"parallel.ranks=4", "parallel.context_ranks=4"},
             "parallel.context_ranks",
             "must divide model.kv_groups (2)"},
        Case{{"parallel.ranks=4", "parallel.context_ranks=2", "train.global_batch=99"},
             "train.global_batch",
             "parallel.ranks / parallel.context_ranks"},
        Case{{"parallel.context_ranks=0"}, "parallel.context_ranks", "at least 1"},
        Case{{"nsa.compression_stride=8"}, "", ""},
        Case{{"nsa.compression_stride=20"}, "nsa.compression_stride", "must divide"},
        Case{{"nsa.compression_block=40"}, "nsa.compression_block", "multiple"},
        Case{{"nsa.selection_block=40", "train.sequence_length=2000"},
             "nsa.selection_block",
             "multiple"},
        Case{{"nsa.compression_block=40", "model.attention=dense"}, "", ""},
        Case{{"nsa.selected_blocks=2"}, "nsa.selected_blocks", "at least 3"},
        Case{{"nsa.selection_block=16"}, "nsa.selection_block", "at least nsa.compression_block"},
        Case{{"parallel.device=cuda", "parallel.nodes=2", "parallel.ranks_per_node=8"}, "", ""},
        Case{{"nsa.branches=[]"}, "nsa.branches", "names no branch"},
        Case{{"nsa.branches=selected,sliding"}, "nsa.branches", "without compressed"},
        Case{{"nsa.branches=sliding,sliding"}, "nsa.branches", "twice"},
        Case{{"nsa.branches=slidng"}, "nsa.branches", "not one of"},
        Case{{"nsa.gate=head_sigmoid", "nsa.gate_temperature=2"},
             "nsa.gate_temperature",
             "no effect"},
        Case{{"train.sequence_length=16", "nsa.branches=compressed"},
             "train.sequence_length",
             "at least nsa.compression_block"},
        Case{{"train.sequence_length=2000"},
             "train.sequence_length",
             "multiple of nsa.selection_block"},
        Case{{"train.sequence_length=2000", "nsa.branches=sliding"}, "", ""},
        Case{{"train.global_batch=16", "train.micro_batch=4", "train.accumulate=2",
              "parallel.ranks=2"},
             "",
             ""},
        Case{{"train.global_batch=8", "train.micro_batch=4", "parallel.ranks=3"},
             "train.global_batch",
             "4 * 1 * 3 = 12, not 8"},
        Case{{"train.warmup_steps=100"}, "", ""},
        Case{{"train.warmup_steps=101"}, "train.warmup_steps", "must not exceed train.steps (100)"},
        Case{{"precision.mode=sr"}, "", ""},
        Case{{"precision.mode=pure", "precision.compute=bf16"}, "", ""},
        Case{{"precision.mode=sr", "precision.compute=fp32"}, "precision.compute", "BF16 weights"},
        Case{
            {"precision.mode=pure", "precision.compute=fp32"}, "precision.compute", "BF16 weights"},
        Case{{"precision.mode=fp16"}, "precision.mode", "FP16 gradients"},
        Case{{"precision.mode=fp32", "precision.compute=bf16"}, "precision.compute", "contradicts"},
        Case{{"parallel.compress=bf16"}, "", ""}, Case{{"parallel.static_graph=true"}, "", ""},
        Case{{"parallel.find_unused=true"}, "", ""},
        Case{{"parallel.collective_timeout_seconds=320"},
             "parallel.collective_timeout_seconds",
             "320.0 s together"},
        Case{{"parallel.collective_timeout_seconds=321"}, "", ""},
        Case{{"hang.floor_seconds=301"}, "hang.floor_seconds", "must not exceed"},
        Case{{"restart.delay_seconds=61"}, "restart.max_delay_seconds", "must not be below"},
        Case{{"checkpoint.keep_every_steps=30", "checkpoint.interval_steps=20"},
             "checkpoint.keep_every_steps",
             "multiple of checkpoint.interval_steps (20)"},
        Case{{"checkpoint.keep_every_steps=40", "checkpoint.interval_steps=20"}, "", ""},
        Case{{"checkpoint.keep_every_steps=40"}, "checkpoint.keep_every_steps", "multiple"},
        Case{{"inject.rank=1"}, "inject.rank", "below parallel.ranks (1)"},
        Case{{"inject.step=101"}, "inject.step", "must not exceed"},
        Case{{"inject.step=0"}, "inject.step", "count from 1"},
        Case{{"inject.kind=skip_collective"}, "inject.kind", "at least 2 ranks"},
        Case{{"inject.kind=skip_collective", "parallel.ranks=2"}, "", ""},
        Case{{"inject.kind=stop_in_all_gather"}, "inject.kind", "ranks that update shards"},
        Case{{"inject.kind=kill_in_all_gather", "parallel.ranks=2", "parallel.shard_update=false"},
             "inject.kind",
             "ranks that update shards"},
        Case{{"inject.kind=kill_in_all_gather", "parallel.ranks=2"}, "", ""},
        Case{{"inject.kind=kill_in_collect", "parallel.ranks=2"}, "", ""}, // its old name
        Case{{"run.pass_environment=JOB_NAME"}, "", ""},
        Case{{"run.pass_environment=HF_TOKEN"}, "run.pass_environment", "read by nothing"},
        Case{{"run.pass_environment=NCCL_IB_HCA"}, "", ""},
        Case{{"run.pass_environment=JOB_"}, "run.pass_environment", "not on the list"},
        Case{{"run.pass_environment=LD_PRELOAD"}, "run.pass_environment", "load code"},
        Case{{"run.pass_environment=LD_AUDIT"}, "run.pass_environment", "load code"},
        Case{{"run.pass_environment=PYTHONSTARTUP"}, "run.pass_environment", "load code"},
        Case{{"run.pass_environment=NCCL_NET_PLUGIN"}, "run.pass_environment", "load code"},
        Case{{"run.pass_environment=CUDA_INJECTION64_PATH"}, "run.pass_environment", "load code"},
        Case{{"run.pass_environment=GCONV_PATH"}, "run.pass_environment", "look for code"},
        Case{{"run.pass_environment=GLIBC_TUNABLES"}, "run.pass_environment", "C library"},
        Case{{"run.pass_environment=HOME"}, "run.pass_environment", "submitter's account"},
        Case{{"run.pass_environment=EDITOR"}, "run.pass_environment", "not on the list"},
        Case{{"run.pass_environment=A=b"}, "run.pass_environment", "not the name of a variable"},
        Case{{"run.pass_environment=RANK"}, "run.pass_environment", "set by nsad"},
        Case{{"run.pass_environment=NCCL_DEBUG"}, "run.pass_environment", "is a toggle"},
        Case{{"run.pass_environment=NSA_USE_FA2"}, "run.pass_environment", "read by nothing"},
        Case{{"toggles.attention.kernel=aten"}, "toggles.attention.kernel", "no toggle"},
        Case{{"toggles.attention.kernels=flash"}, "toggles.attention.kernels", "not one of"},
        Case{{"run.name=na\nme"}, "run.name", "not a valid name of a run"},
        Case{{"run.name=@last"}, "run.name", "not a valid name of a run"},
        Case{{"run.name=a/b"}, "run.name", "not a valid name of a run"},
        Case{{"run.name=..\xe2\x80\xaegnp"}, "run.name", "not a valid name of a run"},
        Case{{"run.name=A-name_2.b"}, "", ""},
        Case{{"origin.checkpoint=k3fm2@400", "origin.optimizer=true"}, "", ""},
        Case{{"origin.checkpoint=k3fm2"}, "origin.checkpoint", "names no checkpoint of a run"},
        Case{{"origin.optimizer=true"}, "origin.optimizer", "without origin.checkpoint"},
        Case{{"run.name=" + std::string(65, 'x')}, "run.name", "longer than 64"},
        Case{{"run.name=na\x1b[31mme"},
             "run.name",
             "\"na\\x1b[31mme\" is not a valid name of a run"},
        Case{{"run.note=\xc3\xa4 note"}, "", ""},
        Case{{"run.note=a\xc2\x9b"
              "31mb"},
             "run.note",
             "control character"},
        Case{{"run.note=a\tb"}, "run.note", "control character"},
        Case{{"run.tags=a,b\x7f"}, "run.tags", "control character"},
        Case{{"toggles.attention.kernels=reference"}, "", ""},
        Case{{"toggles.attention.kernels=reference", "model.attention=dense"},
             "toggles.attention.kernels",
             "oracle of NSA"},
        Case{{"toggles.attention.dense=fused", "parallel.device=cuda", "model.attention=dense"},
             "",
             ""},
        Case{{"toggles.attention.dense=fused", "parallel.device=cuda", "model.head_dimension=128"},
             "",
             ""}, // the model has no dense attention
        Case{{"toggles.attention.dense=fused", "parallel.device=cpu", "model.attention=dense"},
             "parallel.device",
             "a GPU"},
        Case{{"toggles.attention.dense=fused", "parallel.device=cuda", "model.attention=dense",
              "model.head_dimension=128"},
             "model.head_dimension",
             "heads of 64 dimensions, not 128"},
        Case{{"toggles.attention.dense=fused", "parallel.device=cuda", "model.attention=dense",
              "model.heads=34", "model.kv_groups=2"},
             "model.heads",
             "16 query heads"},
        Case{{"toggles.attention.dense=fused", "parallel.device=cuda", "model.attention=dense",
              "precision.compute=fp32"},
             "precision.compute",
             "compute in BF16"},
        Case{{"train.recompute_attention=false", "train.activation_recompute=true"}, "", ""},
        Case{{"train.recompute_attention=false"},
             "train.recompute_attention",
             "no effect without NSA and train.activation_recompute"},
        Case{{"train.recompute_attention=false", "train.activation_recompute=true",
              "model.attention=dense"},
             "train.recompute_attention",
             "no effect"},
        Case{{"toggles.attention.kernels=fused", "parallel.device=cuda"}, "", ""},
        Case{{"toggles.cuda.graphs=on", "parallel.device=cuda"}, "", ""},
        Case{{"toggles.cuda.graphs=on", "parallel.device=cpu"}, "toggles.cuda.graphs", "a GPU"},
        Case{{"toggles.cuda.graphs=auto", "parallel.device=cpu"}, "", ""},
        Case{{"toggles.cuda.graphs=on", "parallel.device=cuda", "data.document_mask=true"},
             "toggles.cuda.graphs",
             "documents begin"},
        Case{{"toggles.cuda.graphs=on", "parallel.device=cuda", "parallel.ranks=2",
              "parallel.context_ranks=2"},
             "toggles.cuda.graphs",
             "exchange heads"},
        Case{{"toggles.cuda.graphs=on", "parallel.device=cuda", "parallel.find_unused=true"},
             "toggles.cuda.graphs",
             "find_unused"},
        Case{{"toggles.cuda.graphs=on", "parallel.device=cuda",
              "toggles.attention.kernels=reference"},
             "toggles.cuda.graphs",
             "reference"},
        Case{
            {"toggles.attention.kernels=fused", "parallel.device=cuda", "model.head_dimension=128"},
            "",
            ""},
        Case{{"toggles.attention.kernels=fused", "parallel.device=cuda", "model.head_dimension=32"},
             "model.head_dimension",
             "64 or 128 dimensions, not 32"},
        Case{{"toggles.attention.kernels=aten", "parallel.device=cuda", "model.head_dimension=32"},
             "",
             ""},
        Case{{"toggles.attention.kernels=fused", "parallel.device=cuda", "model.heads=34",
              "model.kv_groups=2"},
             "model.heads",
             "16 query heads"},
        Case{{"toggles.attention.kernels=fused", "parallel.device=cuda", "nsa.window=256"},
             "nsa.window",
             "window 512"},
        Case{{"toggles.attention.kernels=fused", "parallel.device=cuda",
              "train.sequence_length=1048640"},
             "train.sequence_length",
             "1048576"},
        Case{{"toggles.attention.kernels=fused", "parallel.device=cuda", "model.head_dimension=128",
              "train.sequence_length=1048640"},
             "train.sequence_length",
             "1048576"},
        Case{{"toggles.attention.kernels=fused", "parallel.device=cuda", "precision.mode=fp32"},
             "precision.mode",
             "compute in BF16"},
        Case{{"toggles.attention.kernels=fused", "parallel.device=cuda", "precision.compute=fp32"},
             "precision.compute",
             "compute in BF16"},
        Case{{"toggles.attention.kernels=aten", "parallel.device=cuda", "precision.mode=fp32"},
             "",
             ""},
        Case{{"eval.samples=2", "eval.at_end=false"}, "eval.samples", "has no effect"},
        Case{{"eval.samples=2", "eval.at_end=false", "eval.interval_steps=5"}, "", ""},
        Case{{"eval.needles=2", "eval.at_end=false"}, "eval.needles", "has no effect"},
        Case{{"toggles.attention.kernels=fused", "parallel.device=cpu"},
             "parallel.device",
             "toggles.attention.kernels = \"fused\" is not served: our kernels need a GPU"},
        Case{{"toggles.layers.kernels=fused", "model.vocabulary=50257"},
             "model.vocabulary",
             "multiple of 8"},
        Case{{"toggles.layers.embedding_gradient=joined", "toggles.layers.kernels=aten"},
             "toggles.layers.kernels",
             "layers.embedding_gradient = \"joined\" is not served"},
        Case{{"toggles.attention.kernels=fused", "parallel.device=cpu", "model.attention=dense"},
             "parallel.device",
             "need a GPU"},
        Case{{"toggles.attention.kernels=auto", "nsa.window=256"}, "", ""}));

TEST(Rules, ABadFieldIsReportedOnceAndNeverDividedBy) {
  EXPECT_THAT(formatted(problems_with({"nsa.compression_stride=0", "model.kv_groups=0"})),
              ElementsAre(HasSubstr("model.kv_groups: must be at least 1, not 0"),
                          HasSubstr("nsa.compression_stride: must be at least 1, not 0")));
}

TEST(Rules, BatchHintNamesTheAccumulationThatFits) {
  const auto problems =
      problems_with({"train.global_batch=32", "train.micro_batch=4", "parallel.ranks=2"});
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].next, "train.accumulate = 4 would fit");
}

TEST(Rules, ValidateFindsTheSameWithoutPlaces) {
  RunSpec spec;
  spec.train.steps = 10;
  spec.data.path = "x";
  EXPECT_THAT(formatted(validate(spec)), IsEmpty());
  spec.model.heads = 7;
  const auto problems = validate(spec);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].key, "model.heads");
  EXPECT_EQ(problems[0].line, 0);
}

TEST(Rules, WarningsNameTheInjectedFault) {
  RunSpec spec;
  spec.train.steps = 1000;
  EXPECT_THAT(warnings(spec), ElementsAre(HasSubstr("checkpoint.interval_steps is 0")));
  spec.checkpoint.interval_steps = 100;
  spec.inject.kind = FaultKind::kSpin;
  EXPECT_THAT(warnings(spec), ElementsAre(HasSubstr("given a fault on purpose: spin")));
}

} // namespace
} // namespace nsa::spec
