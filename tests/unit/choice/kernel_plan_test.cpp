// Which kernel computes each part in each configuration, and what a rank reports about it.
#include "nsa_model/choice/kernel_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::choice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const Capabilities kCpu{};

Capabilities hopper() {
  return {.gpu = true, .bf16 = true, .compute_capability = 90, .sdpa = SdpaKernel::kCudnn};
}

// The sizes of the M7C.
struct Case {
  Capabilities on = hopper();
  ModelSizes model{.vocabulary = 50304,
                   .dimension = 768,
                   .heads = 12,
                   .kv_groups = 2,
                   .head_dimension = 64,
                   .mlp_ratio = 4};
  KernelRequest request{.micro_batch = 8, .sequence = 2048};

  KernelPlan plan() const { return plan_kernels(on, model, request); }
  Backend backend(Part part) const {
    const KernelPlan all = plan();
    const PlannedKernel* kernel = all.find(part);
    if (kernel == nullptr) throw std::runtime_error("not planned: " + std::string(part_name(part)));
    return kernel->backend;
  }
  std::string text(const char* part) const { return report_of(plan()).at(part); }
  // Returns the first refusal as "attention.kernels: why".
  std::string refusal() const {
    const KernelPlan all = plan();
    return all.refusals.empty() ? ""
                                : std::string(all.refusals.front().toggle) + ": " +
                                      all.refusals.front().reasons.front().text;
  }
};

Case dense_case() {
  Case c;
  c.model.dense = true;
  return c;
}

std::vector<std::string> parts_of(const KernelPlan& plan) {
  std::vector<std::string> parts;
  for (const PlannedKernel& kernel : plan.kernels)
    parts.push_back(std::string(part_name(kernel.part)) + " " +
                    std::string(backend_name(kernel.backend)));
  return parts;
}

// Each of two ranks has half of the tokens, and computes attention for half of the heads.
TEST(KernelPlan, OfRanksThatShareSequences) {
  Case shared;
  shared.request.context_ranks = 2;
  EXPECT_EQ(parts_of(shared.plan()), parts_of(Case().plan()));
  shared.request.micro_batch = 1;
  shared.request.sequence = 4 * 64; // 128 tokens per rank: not a multiple of 256
  EXPECT_EQ(shared.backend(Part::kMlp), Backend::kAten);
  shared.request.sequence = 2 * 64 * 64;
  EXPECT_EQ(shared.backend(Part::kMlp), Backend::kSm90);
  shared.model.heads = 64; // 32 per group are too many, also for several ranks
  EXPECT_FALSE(shared.plan().fused_attention());
}

TEST(KernelPlan, OfTheM7COnHopper) {
  const Case m7c;
  EXPECT_THAT(parts_of(m7c.plan()),
              ElementsAre("compressed sm90", "selected sm90", "sliding sm90", "selection sm90",
                          "layers.norm portable", "layers.rotation portable",
                          "layers.compression sm90", "layers.gate portable",
                          "layers.products cublaslt", "layers.mlp sm90", "layers.loss sm90",
                          "layers.embedding portable"));
  EXPECT_TRUE(m7c.plan().fused_attention());
  EXPECT_TRUE(m7c.plan().fused_layers());
  EXPECT_TRUE(m7c.plan().joined_embedding());
  EXPECT_TRUE(m7c.plan().refusals.empty());
  for (const auto& [part, text] : report_of(m7c.plan()))
    EXPECT_EQ(text, part == "layers.embedding"   ? "joined"
                    : part.starts_with("layers") ? "fused"
                                                 : "fused hopper")
        << part;
}

TEST(KernelPlan, OfItsDenseTwin) {
  EXPECT_THAT(parts_of(dense_case().plan()),
              ElementsAre("dense sm90", "layers.norm portable", "layers.rotation portable",
                          "layers.products cublaslt", "layers.mlp sm90", "layers.loss sm90",
                          "layers.embedding portable"));
  EXPECT_EQ(dense_case().text("dense"), "fused hopper");
  EXPECT_FALSE(dense_case().plan().fused_attention());
  EXPECT_TRUE(dense_case().plan().fused_dense());
}

TEST(KernelPlan, TheLossHasExponentialsWhereTheKernelServes) {
  const Case m7c;
  EXPECT_EQ(m7c.plan().find(Part::kLoss)->in_evaluation, Backend::kPortable);
  Case separate, ampere, narrow, longer;
  separate.request.embedding = EmbeddingGradient::kSeparate;
  ampere.on.compute_capability = 80;
  narrow.model.vocabulary = 50264; // a multiple of 8, and not of 128
  longer.request = {.micro_batch = 1, .sequence = 2 * serves::kMostExponentialTokens};
  for (const Case& c : {separate, ampere, narrow, longer}) {
    EXPECT_EQ(c.backend(Part::kLoss), Backend::kPortable);
    EXPECT_EQ(c.plan().find(Part::kLoss)->in_evaluation, std::nullopt);
  }
}

TEST(KernelPlan, OfACpuIsLibTorchsAndSaysWhy) {
  Case c;
  c.on = kCpu;
  for (const PlannedKernel& kernel : c.plan().kernels) {
    EXPECT_EQ(kernel.backend, Backend::kAten) << part_name(kernel.part);
    EXPECT_FALSE(kernel.reason.empty()) << part_name(kernel.part);
  }
  const std::string why = "aten (our kernels need a GPU, and the ranks compute on a CPU)";
  EXPECT_EQ(c.text("attention"), why);
  EXPECT_EQ(c.text("layers"), why);
  EXPECT_EQ(c.text("sliding"), "aten chunked (FlashAttention is of GPUs)");
  EXPECT_EQ(report_of(c.plan()).size(), 6u) << "no parts of layers that are not fused";
  c = dense_case();
  c.on = kCpu;
  c.on.sdpa = SdpaKernel::kFlash;
  EXPECT_EQ(c.text("dense"), "aten flash");
  EXPECT_EQ(c.backend(Part::kDense), Backend::kSdpa);
}

TEST(KernelPlan, OfFp32OnAGpuAndOfAMissingLibrary) {
  Case c;
  c.on.bf16 = false;
  EXPECT_FALSE(c.plan().fused_attention() || c.plan().fused_layers());
  EXPECT_EQ(c.text("layers"), "aten (our kernels compute in BF16, and the ranks compute in FP32)");
  EXPECT_THAT(c.text("selected"), HasSubstr("aten chunked (FlashAttention takes"));
  c = {};
  c.on.kernels_loaded = false;
  EXPECT_FALSE(c.plan().fused_attention() || c.plan().fused_layers());
  EXPECT_EQ(c.text("selected"), "aten regrouped");
  EXPECT_THAT(c.text("attention"), HasSubstr("libnsa_ops_cuda.so"));
}

TEST(KernelPlan, OfOtherGpusIsPortable) {
  Case c;
  for (const int capability : {80, 86, 89, 100}) {
    c.on.compute_capability = capability;
    EXPECT_EQ(c.backend(Part::kSelected), Backend::kPortable) << capability;
    EXPECT_EQ(c.backend(Part::kSelection), Backend::kPortable) << capability;
    EXPECT_EQ(c.backend(Part::kCompression), Backend::kPortable) << capability;
    EXPECT_EQ(c.text("selected"), "fused portable");
    EXPECT_THAT(c.text("layers.mlp"), HasSubstr("aten (the products with SiLU need"));
  }
  c.on.compute_capability = 75;
  EXPECT_THAT(c.text("attention"), HasSubstr("compute capability 8.0"));
  c = dense_case();
  c.on.compute_capability = 80;
  EXPECT_EQ(c.backend(Part::kDense), Backend::kSdpa);
}

TEST(KernelPlan, OfHeadsOf128DimensionsIsHoppersOnHopper) {
  Case c;
  c.model.head_dimension = 128;
  EXPECT_EQ(c.backend(Part::kSliding), Backend::kSm90);
  EXPECT_THAT(c.text("layers.gate"), HasSubstr("head_dimension of 64"));
  c.on.compute_capability = 80;
  EXPECT_EQ(c.backend(Part::kSliding), Backend::kPortable);
  c.on.compute_capability = 90;
  c.model.head_dimension = 32;
  EXPECT_EQ(c.backend(Part::kSliding), Backend::kFlash);
  EXPECT_THAT(c.text("attention"), HasSubstr("64 or 128 dimensions, not 32"));
}

// If other parts are fused, a part that is not fused reports the reason.
TEST(KernelPlan, APartThatFallsBackSaysWhy) {
  Case c;
  c.request = {.micro_batch = 1, .sequence = 64};
  EXPECT_THAT(c.text("layers.mlp"), HasSubstr("256 tokens"));
  EXPECT_EQ(c.text("layers.products"), "fused");
  EXPECT_EQ(c.plan().find(Part::kSelection), nullptr) << "all blocks are selected";
  c.request.sequence = 12;
  EXPECT_THAT(c.text("layers.products"), HasSubstr("multiple of 8"));
  c.request = {.micro_batch = 64, .sequence = 2048};
  EXPECT_EQ(c.text("layers.embedding"), "joined");
  c.request = {.micro_batch = 513, .sequence = 2048};
  EXPECT_THAT(c.text("layers.embedding"), HasSubstr("separate (it serves"));
  c = {};
  c.model.sliding = false;
  EXPECT_THAT(c.text("layers.gate"), HasSubstr("three branches"));
  c.model.selected = false;
  EXPECT_EQ(c.plan().find(Part::kGate), nullptr) << "a softmax over one branch is 1";
  c.model.group_gate = false;
  EXPECT_THAT(c.text("layers.gate"), HasSubstr("group softmax"));
  c = {};
  c.model.dimension = 256;
  c.model.mlp_ratio = 1;
  EXPECT_EQ(c.backend(Part::kMlp), Backend::kSm90);
  c.model.dimension = 96;
  EXPECT_THAT(c.text("layers"), HasSubstr("model.dimension"));
  EXPECT_EQ(report_of(c.plan()).count("layers.mlp"), 0u);
}

TEST(KernelPlan, ALearnedCompressionReadsWholeSequencesInPlace) {
  Case c;
  c.model.learned_compression = true;
  EXPECT_EQ(c.text("layers.compression"), "fused");
  EXPECT_TRUE(c.plan().compression_in_place());
  EXPECT_FALSE(c.plan().find(Part::kCompression)->falls_back);
  c.request.attention = AttentionKernels::kAten;
  EXPECT_EQ(c.backend(Part::kCompression), Backend::kPortable) << "it needs no attention kernel";
  c.request.layers = LayerKernels::kAten;
  EXPECT_EQ(c.backend(Part::kCompression), Backend::kAten);
  c.request = {.micro_batch = 8, .sequence = 2048, .documents = true};
  EXPECT_THAT(c.text("layers.compression"), HasSubstr("data.document_mask"));
  c.request = {.micro_batch = 8, .sequence = 31};
  EXPECT_THAT(c.text("layers.compression"), HasSubstr("no whole block"));
  c.request = {.micro_batch = 8, .sequence = 2048};
  EXPECT_TRUE(c.plan().compression_in_place());
  c.model.head_dimension = 128;
  EXPECT_THAT(c.text("layers.compression"), HasSubstr("model.head_dimension of 64"));
}

TEST(KernelPlan, LogitsInChunksOfOtherRowsMayBeComposed) {
  Case c; // 2^29 / 200,000 = 2,684 tokens per chunk, which is not a multiple of 8
  c.model.vocabulary = 200000;
  const KernelPlan plan = c.plan();
  EXPECT_EQ(plan.find(Part::kProducts)->backend, Backend::kCublasLt);
  EXPECT_EQ(plan.find(Part::kProducts)->other, Backend::kAten);
  EXPECT_EQ(Case().plan().find(Part::kProducts)->other, std::nullopt);
  c = {};
  c.request = {.micro_batch = 1, .sequence = 8201};
  EXPECT_EQ(c.plan().find(Part::kProducts)->backend, Backend::kAten);
  EXPECT_EQ(c.plan().find(Part::kProducts)->other, Backend::kCublasLt) << "the whole chunk";
}

TEST(KernelPlan, TogglesAreObeyed) {
  Case c;
  c.request.attention = AttentionKernels::kAten;
  EXPECT_EQ(c.backend(Part::kCompressed), Backend::kFlash);
  EXPECT_EQ(c.backend(Part::kSelection), Backend::kAten);
  EXPECT_EQ(c.backend(Part::kCompression), Backend::kAten);
  EXPECT_EQ(report_of(c.plan()).count("attention"), 0u) << "nothing fell back";
  EXPECT_TRUE(c.plan().fused_layers());
  c.request = {.layers = LayerKernels::kAten, .micro_batch = 8, .sequence = 2048};
  EXPECT_TRUE(c.plan().fused_attention());
  EXPECT_EQ(c.text("layers"), "aten");
  EXPECT_EQ(c.backend(Part::kCompression), Backend::kAten);
  EXPECT_EQ(c.backend(Part::kGate), Backend::kAten);
  c.request = {.embedding = EmbeddingGradient::kSeparate, .micro_batch = 8, .sequence = 2048};
  EXPECT_EQ(c.text("layers.embedding"), "separate");
  c = {};
  c.on = kCpu;
  c.request.attention = AttentionKernels::kReference;
  EXPECT_EQ(c.backend(Part::kSelected), Backend::kReference);
  EXPECT_EQ(c.text("selected"), "reference");
}

TEST(KernelPlan, WhatCannotBeHadIsRefused) {
  Case c;
  c.request.attention = AttentionKernels::kFused;
  c.request.layers = LayerKernels::kFused;
  c.request.embedding = EmbeddingGradient::kJoined;
  EXPECT_EQ(c.refusal(), "");
  c.model.nsa.window = 256;
  c.model.heads = 34;
  EXPECT_EQ(c.plan().refusals.size(), 1u);
  EXPECT_EQ(c.plan().refusals.front().reasons.size(), 2u) << "everything that is against it";
  c.model.nsa.window = 512;
  c.model.heads = 12;
  c.model.vocabulary = 50257;
  EXPECT_THAT(c.refusal(), HasSubstr("layers.embedding_gradient: it is one of our kernels"));
  c.request.embedding = EmbeddingGradient::kAuto;
  EXPECT_THAT(c.refusal(), HasSubstr("layers.kernels: the loss serves"));
  c.model.vocabulary = 50304;
  c.request.embedding = EmbeddingGradient::kJoined;
  c.request.micro_batch = 513;
  EXPECT_THAT(c.refusal(), HasSubstr("layers.embedding_gradient: it serves"));
  c.request.micro_batch = 8;
  c.on.bf16 = false;
  EXPECT_THAT(c.refusal(), HasSubstr("attention.kernels: our kernels compute in BF16"));
  c.on = kCpu;
  EXPECT_THAT(c.refusal(), HasSubstr("need a GPU"));
  EXPECT_EQ(c.plan().refusals.size(), 3u);
  c = dense_case();
  c.request.dense = DenseAttention::kFused;
  c.model.head_dimension = 128;
  EXPECT_THAT(c.refusal(), HasSubstr("attention.dense: our kernels serve heads of 64"));
  c.request.dense = DenseAttention::kAuto;
  c.request.attention = AttentionKernels::kFused;
  EXPECT_THAT(c.refusal(), HasSubstr("attention.kernels: our kernels serve heads of 64"));
}

TEST(KernelPlan, AutoTakesOurDenseKernelsWhereTheyAreFasterOrDeterministic) {
  const auto fused = [](const auto& change) {
    Case c = dense_case();
    change(c);
    const KernelPlan plan = c.plan();
    EXPECT_FALSE(plan.find(Part::kDense)->reason.empty());
    return plan.fused_dense();
  };
  EXPECT_TRUE(fused([](Case& c) { c.request.sequence = 131'072; }));
  EXPECT_FALSE(fused([](Case& c) { c.request.sequence = 131'073; })); // not supported
  EXPECT_FALSE(fused([](Case& c) { c.request.attention = AttentionKernels::kAten; }));
  EXPECT_FALSE(fused([](Case& c) { c.request.dense = DenseAttention::kCudnn; }));
  EXPECT_FALSE(fused([](Case& c) { c.request.documents = c.request.deterministic = true; }));
  // One head per group: the kernels support it, but their time was not measured.
  const auto others = [](Case& c) { c.model.kv_groups = 12; };
  EXPECT_FALSE(fused(others));
  EXPECT_TRUE(fused([&](Case& c) { others(c), c.request.deterministic = true; }));
  EXPECT_TRUE(fused([&](Case& c) { others(c), c.request.attention = AttentionKernels::kFused; }));
  EXPECT_TRUE(fused([&](Case& c) { others(c), c.request.dense = DenseAttention::kFused; }));
}

TEST(KernelPlan, OfPackedDocuments) {
  Case c = dense_case();
  c.request.documents = true;
  EXPECT_EQ(c.backend(Part::kDense), Backend::kFlash);
  EXPECT_EQ(c.text("dense"), "aten flash (all documents)");
  c.on.flash = false;
  EXPECT_EQ(c.text("dense"), "aten cudnn (each document)");
  c.on.sdpa = SdpaKernel::kEfficient;
  c.on.why_not_cudnn = "no cuDNN is loaded";
  EXPECT_EQ(c.text("dense"), "aten efficient (no cuDNN is loaded) (each document)");
  c.request.dense = DenseAttention::kFused;
  EXPECT_EQ(c.text("dense"), "fused hopper (each document)");
  c = {};
  c.request.documents = true;
  EXPECT_EQ(c.text("compressed"), "fused hopper");
  c.request.attention = AttentionKernels::kAten;
  EXPECT_THAT(c.text("compressed"), HasSubstr("chunked in documents"));
  EXPECT_EQ(c.plan().find(Part::kCompressed)->other, Backend::kAten);
  EXPECT_EQ(c.plan().find(Part::kSliding)->other, std::nullopt);
  c.request.sequence = 2056;
  EXPECT_THAT(c.text("compressed"), HasSubstr("aten chunked (the sequence"));
  EXPECT_EQ(c.plan().find(Part::kCompressed)->other, Backend::kFlash);
}

TEST(KernelPlan, SizesThatAreNoneAreAnswered) {
  Case c;
  c.model = {};
  c.request = {};
  EXPECT_FALSE(c.plan().fused_attention());
  c.model.dense = true;
  EXPECT_FALSE(c.plan().fused_dense());
}

TEST(EffectiveToggles, AreThePlans) {
  Case c;
  using Map = std::map<std::string, std::string>;
  EXPECT_EQ(effective_toggles(c.plan()), (Map{{"attention.kernels", "fused"},
                                              {"layers.kernels", "fused"},
                                              {"layers.embedding_gradient", "joined"}}));
  c.on = kCpu;
  EXPECT_EQ(effective_toggles(c.plan()), (Map{{"attention.kernels", "aten"},
                                              {"layers.kernels", "aten"},
                                              {"layers.embedding_gradient", "separate"}}));
  c = dense_case();
  EXPECT_EQ(effective_toggles(c.plan()).at("attention.dense"), "fused");
  EXPECT_EQ(effective_toggles(c.plan()).at("attention.kernels"), "fused");
  c.request.dense = DenseAttention::kCudnn;
  c.on.sdpa = SdpaKernel::kFlash;
  c.on.why_not_cudnn = "another one shadows it";
  EXPECT_EQ(effective_toggles(c.plan()).at("attention.dense"), "flash");
  EXPECT_EQ(effective_toggles(c.plan()).at("attention.kernels"), "aten");
}

// ---- what ran ----

class Counts {
public:
  explicit Counts(const KernelPlan& plan) : plan_(plan) {
    for (const PlannedKernel& kernel : plan.kernels)
      of(kernel.part, kernel.backend) = 12;
  }
  uint64_t& of(Part part, Backend backend) {
    return counts_[static_cast<size_t>(part)][static_cast<size_t>(backend)];
  }
  std::string difference(Pass pass) const { return choice::difference(plan_, counts_, pass); }

private:
  KernelPlan plan_;
  KernelCounts counts_{};
};

TEST(Difference, IsNothingWherePlannedKernelsRan) {
  for (const Case& c : {Case(), dense_case()})
    for (const Pass pass : {Pass::kFirstStep, Pass::kTraining, Pass::kEvaluation})
      EXPECT_EQ(Counts(c.plan()).difference(pass), "");
}

TEST(Difference, NamesPartAndBothBackends) {
  Counts counts(Case().plan());
  counts.of(Part::kNorm, Backend::kAten) = 1;
  for (const Pass pass : {Pass::kFirstStep, Pass::kTraining, Pass::kEvaluation})
    EXPECT_THAT(counts.difference(pass),
                HasSubstr("layers.norm was computed by aten, and the plan says portable ("));
  Counts dense(Case().plan());
  dense.of(Part::kDense, Backend::kSdpa) = 1;
  EXPECT_THAT(dense.difference(Pass::kTraining),
              "dense was computed by sdpa, and the plan has no such part");
}

TEST(Difference, APlannedPartMustRunInTheFirstStep) {
  Counts counts(Case().plan());
  counts.of(Part::kLoss, Backend::kSm90) = 0;
  EXPECT_THAT(counts.difference(Pass::kFirstStep), HasSubstr("layers.loss was computed by no"));
  // Replays of graphs are not counted, and an evaluation computes no gradients.
  EXPECT_EQ(counts.difference(Pass::kTraining), "");
  EXPECT_EQ(counts.difference(Pass::kEvaluation), "");
}

TEST(Difference, SomeOfAPartMayBeComputedByAnother) {
  Case c;
  c.request.attention = AttentionKernels::kAten;
  c.request.documents = true;
  Counts counts(c.plan());
  counts.of(Part::kCompressed, Backend::kAten) = 3;
  EXPECT_EQ(counts.difference(Pass::kFirstStep), "");
  counts.of(Part::kCompressed, Backend::kFlash) = 0; // every document has another length
  EXPECT_EQ(counts.difference(Pass::kFirstStep), "");
}

// 64 times 2,052 rows are a multiple of 256; 2,052 rows are not even a multiple of 8.
TEST(Difference, AnEvaluationsLastBatchMayHaveFewerRows) {
  Case c;
  c.request = {.micro_batch = 64, .sequence = 2052};
  Counts counts(c.plan());
  counts.of(Part::kMlp, Backend::kAten) = 1;
  counts.of(Part::kProducts, Backend::kAten) = 1;
  EXPECT_EQ(counts.difference(Pass::kEvaluation), "");
  EXPECT_NE(counts.difference(Pass::kTraining), "");
  counts.of(Part::kMlp, Backend::kAten) = 0;
  counts.of(Part::kProducts, Backend::kFlash) = 1;
  EXPECT_THAT(counts.difference(Pass::kEvaluation), HasSubstr("layers.products")) << "no such way";
  // With these sizes the kernels support the rows of every batch.
  Counts served(Case().plan());
  served.of(Part::kProducts, Backend::kAten) = 1;
  EXPECT_NE(served.difference(Pass::kEvaluation), "");
}

} // namespace
} // namespace nsa::choice
