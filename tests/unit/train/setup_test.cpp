// What a rank makes of toggles: which kernels, and what it reports as in effect.
#include "nsa_model/model/kernel_choice.h"
#include "worker/rules/model_setup.h"
#include "worker/rules/toggle_report.h"

#include <gtest/gtest.h>

namespace nsa::train {
namespace {

using Toggles = std::map<std::string, std::string>;

const wire::EffectiveToggle& toggle(const wire::RankToggles& report, const std::string& name) {
  for (const auto& t : report.toggles)
    if (t.name == name) return t;
  throw std::runtime_error("not reported: " + name);
}

TEST(LayerKernels, AutoTakesWhatIsServed) {
  const model::ModelConfig m7c;
  EXPECT_TRUE(*choose_fused_layers({{"layers.kernels", "auto"}}, m7c, true, true));
  EXPECT_TRUE(*choose_fused_layers({}, m7c, true, true));
  EXPECT_FALSE(*choose_fused_layers({{"layers.kernels", "auto"}}, m7c, false, true)) << "a CPU";
  EXPECT_FALSE(*choose_fused_layers({{"layers.kernels", "auto"}}, m7c, true, false)) << "FP32";
  EXPECT_FALSE(*choose_fused_layers({{"layers.kernels", "aten"}}, m7c, true, true));
}

TEST(LayerKernels, AskedForAndNotServedIsAnError) {
  const Toggles fused{{"layers.kernels", "fused"}};
  const auto refusal = [&](model::ModelConfig config, bool gpu, bool bf16) {
    const auto choice = choose_fused_layers(fused, config, gpu, bf16);
    return choice ? std::string() : choice.error().what;
  };
  model::ModelConfig config;
  EXPECT_EQ(refusal(config, true, true), "");
  EXPECT_NE(refusal(config, false, true).find("a CPU"), std::string::npos);
  EXPECT_NE(refusal(config, true, false).find("FP32"), std::string::npos);
  config.dimension = 2048;
  EXPECT_NE(refusal(config, true, true).find("model.dimension"), std::string::npos);
  config = {};
  config.vocabulary = 50257;
  EXPECT_NE(refusal(config, true, true).find("model.vocabulary"), std::string::npos);
  config = {};
  config.head_dimension = 40;
  EXPECT_NE(refusal(config, true, true).find("model.head_dimension"), std::string::npos);
}

TEST(EmbeddingGradient, IsJoinedWhereTheKernelServes) {
  const auto chosen = [](const char* requested, const model::ModelConfig& config, int64_t rows) {
    return choose_joined_embedding({{"layers.embedding_gradient", requested}}, config, rows);
  };
  const auto refused = [&](const model::ModelConfig& config, int64_t rows, const char* why) {
    EXPECT_FALSE(*chosen("auto", config, rows)) << why;
    const auto asked = chosen("joined", config, rows);
    ASSERT_FALSE(asked) << why;
    EXPECT_NE(asked.error().what.find(why), std::string::npos) << asked.error().what;
  };
  model::ModelConfig config;
  refused(config, 32768, "do not run");
  config.fused_layers = true;
  EXPECT_TRUE(*chosen("auto", config, 32768));
  EXPECT_TRUE(*chosen("joined", config, 65536));
  EXPECT_TRUE(*choose_joined_embedding({}, config, 32768));
  EXPECT_FALSE(*chosen("separate", config, 32768));
  refused(config, 65537, "65,536 tokens");
  config.dimension = 1280;
  refused(config, 32768, "256 columns");
}

TEST(AttentionKernels, AutoTakesTheFusedOnesWhereTheyServe) {
  model::ModelConfig config;
  const auto chosen = [&](Toggles toggles, const std::string& why) {
    return choose_attention_kernels(toggles, config, why).value();
  };
  const Toggles automatic{{"attention.kernels", "auto"}};
  EXPECT_EQ(chosen(automatic, ""), model::Kernels::kFused);
  EXPECT_EQ(chosen({}, ""), model::Kernels::kFused);
  EXPECT_EQ(chosen(automatic, "a CPU"), model::Kernels::kAten);
  EXPECT_EQ(chosen({{"attention.kernels", "aten"}}, ""), model::Kernels::kAten);
  EXPECT_EQ(chosen({{"attention.kernels", "reference"}}, ""), model::Kernels::kReference);
  const Toggles fused{{"attention.kernels", "fused"}};
  EXPECT_EQ(chosen(fused, ""), model::Kernels::kFused);
  const auto refused = choose_attention_kernels(fused, config, "this rank computes in FP32");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("this rank computes in FP32"), std::string::npos);
}

TEST(AttentionKernels, ConfigurationDeviceAndDtypeAreAsked) {
  model::ModelConfig config;
  EXPECT_EQ(why_attention_cannot_be_fused(config, true, true), "");
  EXPECT_NE(why_attention_cannot_be_fused(config, false, true).find("a CPU"), std::string::npos);
  EXPECT_NE(why_attention_cannot_be_fused(config, true, false).find("FP32"), std::string::npos);
  config.attention = model::Attention::kDense;
  EXPECT_NE(why_attention_cannot_be_fused(config, true, true).find("dense"), std::string::npos);
}

TEST(ToggleReport, AutoIsMetByAnyChoiceAndARequestByItselfAlone) {
  const std::map<std::string, std::string> kernels{{"compressed", "fused hopper"},
                                                   {"sliding", "fused hopper"},
                                                   {kLayersPart, "aten (a CPU)"},
                                                   {"layers.gate", "aten (two branches)"},
                                                   {"attention", "aten (no GPU)"}};
  const auto report = [&](const char* layers, const char* attention) {
    return report_toggles(0, {{"layers.kernels", layers}, {"attention.kernels", attention}},
                          kernels);
  };
  EXPECT_EQ(toggle(report("auto", "fused"), "layers.kernels").effective, "aten");
  EXPECT_TRUE(check_toggles(report("auto", "fused")));
  EXPECT_TRUE(check_toggles(report("aten", "fused")));
  EXPECT_FALSE(check_toggles(report("fused", "fused")));
  // The embedding's gradient is joined by the layers' kernels only.
  const auto embedding = [](const char* requested, const std::map<std::string, std::string>& of) {
    return report_toggles(0, {{"layers.embedding_gradient", requested}}, of);
  };
  const std::map<std::string, std::string> joined{{kEmbeddingPart, "joined"}},
      separate{{kEmbeddingPart, "separate (sizes)"}};
  EXPECT_TRUE(check_toggles(embedding("joined", joined)));
  EXPECT_FALSE(check_toggles(embedding("joined", separate)));
  EXPECT_FALSE(check_toggles(embedding("joined", kernels)));
  EXPECT_TRUE(check_toggles(embedding("separate", kernels)));
  EXPECT_FALSE(check_toggles(embedding("separate", joined)));
  EXPECT_EQ(toggle(embedding("auto", joined), "layers.embedding_gradient").effective, "joined");
  EXPECT_TRUE(check_toggles(embedding("auto", separate)));
  // The layers' kernels are not a branch's.
  EXPECT_EQ(toggle(report("auto", "fused"), "attention.kernels").effective, "fused");
  EXPECT_FALSE(check_toggles(report("auto", "aten")));
}

TEST(Graphs, AreTakenWhereLaunchesStayTheSame) {
  const auto chosen = [](const char* requested, const spec::RunSpec& spec,
                         const std::string& device_cannot = "", const char* kernels = "fused") {
    return choose_graphs({{"cuda.graphs", requested}, {"attention.kernels", kernels}}, spec,
                         device_cannot);
  };
  const auto refused = [&](const spec::RunSpec& spec, const std::string& device_cannot,
                           const char* kernels, const char* why) {
    const auto left = chosen("auto", spec, device_cannot, kernels);
    EXPECT_FALSE(left->on) << why;
    EXPECT_NE(left->why_not.find(why), std::string::npos) << left->why_not;
    EXPECT_EQ(chosen("off", spec, device_cannot, kernels)->why_not, "");
    const auto on = chosen("on", spec, device_cannot, kernels);
    ASSERT_FALSE(on) << why;
    EXPECT_NE(on.error().what.find(why), std::string::npos) << on.error().what;
    EXPECT_FALSE(on.error().next.empty());
  };
  spec::RunSpec plain;
  plain.train.micro_batch = 3;
  plain.train.sequence_length = 4096;
  EXPECT_FALSE(chosen("off", plain)->on);
  EXPECT_TRUE(chosen("on", plain)->on);
  EXPECT_TRUE(chosen("auto", plain)->on);
  EXPECT_TRUE(chosen("on", plain, "", "aten")->on);
  refused(plain, "a CPU has no graphs", "fused", "a CPU");
  // What an attempt before has met is handed over as the device's reason, with CUDA's words.
  EXPECT_EQ(chosen("auto", plain, "attempt 1: no (capture)")->why_not, "attempt 1: no (capture)");
  EXPECT_FALSE(
      choose_graphs({{"cuda.graphs", "auto"}, {"cuda.launch_blocking", "true"}}, plain, "")->on);
  refused(plain, "", "reference", "reference");
  spec::RunSpec large = plain; // not refused, only nothing to gain
  large.train.micro_batch = 8;
  EXPECT_FALSE(chosen("auto", large)->on);
  EXPECT_NE(chosen("auto", large)->why_not.find("32768 tokens"), std::string::npos);
  EXPECT_TRUE(chosen("on", large)->on);
  spec::RunSpec spec;
  spec.model.attention = spec::Attention::kDense;
  EXPECT_TRUE(chosen("on", spec, "", "reference")->on) << "nothing of NSA is computed";
  spec = {};
  spec.train.deterministic = true;
  spec.train.activation_recompute = true;
  spec.parallel.static_graph = true;
  EXPECT_TRUE(chosen("on", spec)->on);
  spec.parallel.find_unused = true;
  refused(spec, "", "fused", "find_unused");
  spec = {};
  spec.data.document_mask = true;
  refused(spec, "", "fused", "document_mask");
}

TEST(ToggleReport, GraphsAreReportedBesideTheKernels) {
  const auto report = [](const char* requested, const char* effective) {
    return report_toggles(0, {{"cuda.graphs", requested}, {"attention.kernels", "fused"}},
                          {{"selected", "fused hopper"}, {kGraphsPart, effective}});
  };
  EXPECT_EQ(toggle(report("auto", "off"), "cuda.graphs").effective, "off");
  EXPECT_TRUE(check_toggles(report("auto", "off")));
  EXPECT_EQ(toggle(report("auto", "off (attempt 1: no)"), "cuda.graphs").effective, "off");
  EXPECT_TRUE(check_toggles(report("on", "on")));
  EXPECT_FALSE(check_toggles(report("on", "off")));
  EXPECT_FALSE(check_toggles(report("off", "on")));
  EXPECT_EQ(toggle(report("on", "on"), "attention.kernels").effective, "fused");
}

TEST(DenseAttention, AutoTakesTheFusedKernelsWhereTheyServeAndAreFaster) {
  using model::DenseBackend;
  model::ModelConfig config;
  config.attention = model::Attention::kDense;
  spec::RunSpec spec;
  const auto chosen = [&](const char* kernels, int64_t sequence, bool deterministic = false,
                          const std::string& why = "") {
    spec.train.sequence_length = sequence;
    spec.train.deterministic = deterministic;
    return choose_dense_backend({{"attention.kernels", kernels}}, config, spec, why).value();
  };
  EXPECT_EQ(chosen("auto", kFusedDenseTokens), DenseBackend::kFused);
  EXPECT_EQ(chosen("auto", kFusedDenseTokens + 1), DenseBackend::kAuto);
  EXPECT_EQ(chosen("auto", kFusedDenseTokens + 1, true), DenseBackend::kFused);
  EXPECT_EQ(chosen("auto", 2048, false, "a CPU"), DenseBackend::kAuto);
  EXPECT_EQ(chosen("aten", 2048), DenseBackend::kAuto);
  EXPECT_EQ(chosen("aten", 2048, true), DenseBackend::kAuto);
  EXPECT_EQ(chosen("fused", 65536), DenseBackend::kFused);
  config.kv_groups = config.heads; // one head a group: served, not timed
  EXPECT_EQ(chosen("auto", 2048), DenseBackend::kAuto);
  EXPECT_EQ(chosen("auto", 2048, true), DenseBackend::kFused);
  EXPECT_EQ(chosen("fused", 2048), DenseBackend::kFused);
  config = {};
  config.attention = model::Attention::kDense;
  EXPECT_EQ(chosen("fused", 65536, false, "a CPU"), DenseBackend::kAuto) << "its report says so";
  spec.data.document_mask = true;
  EXPECT_EQ(chosen("auto", 2048), DenseBackend::kAuto);
  EXPECT_EQ(chosen("auto", 2048, true), DenseBackend::kAuto);
  EXPECT_EQ(chosen("fused", 2048), DenseBackend::kFused);
  spec = {};
  spec.train.sequence_length = 2048;
  EXPECT_EQ(*choose_dense_backend({}, config, spec, ""), DenseBackend::kFused);
  for (const DenseBackend asked : {DenseBackend::kCudnn, DenseBackend::kFlash}) {
    config.dense_backend = asked;
    EXPECT_EQ(chosen("auto", 2048), asked);
  }
  config.dense_backend = DenseBackend::kFused;
  EXPECT_EQ(chosen("auto", 65536), DenseBackend::kFused);
  const auto refused = choose_dense_backend({}, config, spec, "heads of 128 dimensions");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("attention.dense"), std::string::npos);
  EXPECT_NE(refused.error().what.find("heads of 128 dimensions"), std::string::npos);
  config.attention = model::Attention::kNsa; // nothing of it is dense
  EXPECT_EQ(chosen("auto", 2048, false, "a CPU"), DenseBackend::kFused);
}

TEST(DenseAttention, ConfigurationDeviceAndDtypeAreAsked) {
  model::ModelConfig config;
  EXPECT_NE(why_dense_cannot_be_fused(config, true, true), "");
  config.attention = model::Attention::kDense;
  EXPECT_EQ(why_dense_cannot_be_fused(config, true, true), "");
  EXPECT_NE(why_dense_cannot_be_fused(config, false, true).find("a CPU"), std::string::npos);
  EXPECT_NE(why_dense_cannot_be_fused(config, true, false).find("FP32"), std::string::npos);
}

TEST(ToggleReport, DenseBackendIsWhatComputesIt) {
  const auto report = [&](const char* requested, const char* kernel) {
    return report_toggles(0, {{"attention.dense", requested}}, {{"dense", kernel}});
  };
  EXPECT_EQ(toggle(report("auto", "aten flash"), "attention.dense").effective, "flash");
  const auto lost = report("auto", "aten flash (no cuDNN is loaded)");
  EXPECT_EQ(toggle(lost, "attention.dense").effective, "flash");
  EXPECT_TRUE(check_toggles(report("auto", "aten flash")));
  EXPECT_TRUE(check_toggles(report("cudnn", "aten cudnn")));
  EXPECT_FALSE(check_toggles(report("cudnn", "aten flash"))) << "another cuDNN shadows torch's";
  EXPECT_EQ(toggle(report("auto", "fused hopper"), "attention.dense").effective, "fused");
  EXPECT_TRUE(check_toggles(report("fused", "fused hopper")));
  EXPECT_FALSE(check_toggles(report("fused", "aten cudnn")));
  EXPECT_FALSE(check_toggles(report("cudnn", "fused hopper")));
  // NSA has no dense attention that could differ from the request.
  EXPECT_TRUE(check_toggles(report_toggles(0, {{"attention.dense", "cudnn"}}, {})));
}

} // namespace
} // namespace nsa::train
