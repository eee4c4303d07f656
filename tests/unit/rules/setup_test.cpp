// How a rank applies toggles: how the model is computed, and which values it reports as effective.
#include "worker/rules/kernel_check.h"
#include "worker/rules/model_setup.h"
#include "worker/rules/toggle_report.h"

#include <gtest/gtest.h>

namespace nsa::train {
namespace {

using choice::Backend;
using choice::KernelPlan;
using choice::Part;
using choice::PlannedKernel;

const wire::EffectiveToggle& toggle(const wire::RankToggles& report, const std::string& name) {
  for (const auto& t : report.toggles)
    if (t.name == name) return t;
  throw std::runtime_error("not reported: " + name);
}

KernelPlan plan(std::vector<PlannedKernel> kernels) {
  return {.kernels = std::move(kernels), .refusals = {}};
}
const KernelPlan kFused = plan({{.part = Part::kSelected, .backend = Backend::kSm90},
                                {.part = Part::kNorm, .backend = Backend::kPortable},
                                {.part = Part::kEmbeddingGradient, .backend = Backend::kPortable}});
const KernelPlan kComposed =
    plan({{.part = Part::kSelected, .backend = Backend::kFlash, .variant = "regrouped"},
          {.part = Part::kNorm, .backend = Backend::kAten},
          {.part = Part::kEmbeddingGradient, .backend = Backend::kAten}});
KernelPlan dense(Backend backend, const char* variant) {
  return plan({{.part = Part::kDense, .backend = backend, .variant = variant}});
}

TEST(ModelSetup, TakesWhatThePlanSays) {
  model::ModelConfig config;
  apply(kFused, config);
  EXPECT_EQ(config.kernels, model::Kernels::kFused);
  EXPECT_TRUE(config.fused_layers && config.joined_embedding_gradient);
  apply(kComposed, config);
  EXPECT_EQ(config.kernels, model::Kernels::kAten);
  EXPECT_FALSE(config.fused_layers || config.joined_embedding_gradient);
  apply(plan({{.part = Part::kSliding, .backend = Backend::kReference}}), config);
  EXPECT_EQ(config.kernels, model::Kernels::kReference);
  config.dense_backend = model::DenseAttention::kCudnn;
  apply(dense(Backend::kSdpa, "cudnn"), config);
  EXPECT_EQ(config.dense_backend, model::DenseAttention::kCudnn);
  apply(dense(Backend::kSm90, "hopper"), config);
  EXPECT_EQ(config.dense_backend, model::DenseAttention::kFused);
}

TEST(ModelSetup, ARefusalNamesTogglesAndWhatToWrite) {
  EXPECT_TRUE(check_refusals(kFused));
  KernelPlan refused = kComposed;
  refused.refusals = {{"attention.kernels", "fused", "aten", {{"heads of 96 dimensions", {}}}},
                      {"layers.kernels", "fused", "aten", {{"a CPU", {}}}}};
  const Status status = check_refusals(refused);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().what,
            "toggles.attention.kernels = \"fused\" is not served: heads of 96 dimensions. "
            "toggles.layers.kernels = \"fused\" is not served: a CPU");
  EXPECT_EQ(status.error().next, "set toggles.attention.kernels = \"auto\" or \"aten\", "
                                 "toggles.layers.kernels = \"auto\" or \"aten\"");
}

TEST(KernelCheck, LooksAtWhatRanSinceTheCheckBefore) {
  choice::KernelCounts counts{};
  const auto ran = [&](Part part, Backend backend) {
    ++counts[static_cast<size_t>(part)][static_cast<size_t>(backend)];
  };
  ran(Part::kDense, Backend::kSdpa); // before the check begins, so it does not count
  KernelCheck check(plan({{.part = Part::kNorm, .backend = Backend::kPortable}}),
                    [&] { return counts; });
  ran(Part::kNorm, Backend::kPortable);
  EXPECT_TRUE(check.ran(choice::Pass::kFirstStep));
  EXPECT_FALSE(check.ran(choice::Pass::kFirstStep)) << "nothing ran";
  EXPECT_TRUE(check.ran(choice::Pass::kTraining)) << "a graph is replayed";
  ran(Part::kNorm, Backend::kAten);
  const Status status = check.ran(choice::Pass::kTraining);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().what.find("layers.norm was computed by aten"), std::string::npos);
  EXPECT_NE(status.error().next.find("layers.kernels"), std::string::npos);
  EXPECT_TRUE(check.ran(choice::Pass::kTraining)) << "told once";
}

TEST(ToggleReport, AutoIsMetByAnyChoiceAndARequestByItselfAlone) {
  const auto meets = [](const char* name, const char* requested, const KernelPlan& kernels) {
    return check_toggles(report_toggles(0, {{name, requested}}, kernels, "off")).has_value();
  };
  for (const char* name : {"attention.kernels", "layers.kernels"}) {
    EXPECT_TRUE(meets(name, "auto", kFused) && meets(name, "auto", kComposed)) << name;
    EXPECT_TRUE(meets(name, "fused", kFused) && meets(name, "aten", kComposed)) << name;
    EXPECT_FALSE(meets(name, "aten", kFused) || meets(name, "fused", kComposed)) << name;
  }
  EXPECT_TRUE(meets("layers.embedding_gradient", "joined", kFused));
  EXPECT_FALSE(meets("layers.embedding_gradient", "joined", kComposed));
  EXPECT_TRUE(meets("layers.embedding_gradient", "separate", kComposed));
  EXPECT_TRUE(meets("layers.embedding_gradient", "auto", kFused));
  const wire::RankToggles report = report_toggles(3, {{"layers.kernels", "auto"}}, kFused, "off");
  EXPECT_EQ(report.rank, 3);
  EXPECT_EQ(toggle(report, "layers.kernels").effective, "fused");
  EXPECT_EQ(report.kernels.at("selected"), "fused hopper");
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
  // The failure of an earlier attempt is passed on as the device's reason, with CUDA's text.
  EXPECT_EQ(chosen("auto", plain, "attempt 1: no (capture)")->why_not, "attempt 1: no (capture)");
  EXPECT_FALSE(
      choose_graphs({{"cuda.graphs", "auto"}, {"cuda.launch_blocking", "true"}}, plain, "")->on);
  refused(plain, "", "reference", "reference");
  spec::RunSpec large = plain; // not refused, but graphs would bring nothing
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
    return report_toggles(0, {{"cuda.graphs", requested}, {"attention.kernels", "fused"}}, kFused,
                          effective);
  };
  EXPECT_EQ(toggle(report("auto", "off"), "cuda.graphs").effective, "off");
  EXPECT_TRUE(check_toggles(report("auto", "off")));
  EXPECT_EQ(toggle(report("auto", "off (attempt 1: no)"), "cuda.graphs").effective, "off");
  EXPECT_EQ(report("auto", "off (attempt 1: no)").kernels.at(kGraphsPart), "off (attempt 1: no)");
  EXPECT_TRUE(check_toggles(report("on", "on")));
  EXPECT_FALSE(check_toggles(report("on", "off")));
  EXPECT_FALSE(check_toggles(report("off", "on")));
  EXPECT_EQ(toggle(report("on", "on"), "attention.kernels").effective, "fused");
}

TEST(ToggleReport, DenseBackendIsWhatComputesIt) {
  const auto report = [](const char* requested, const KernelPlan& kernels) {
    return report_toggles(0, {{"attention.dense", requested}}, kernels, "off");
  };
  const KernelPlan flash = dense(Backend::kSdpa, "flash (no cuDNN is loaded)"),
                   cudnn = dense(Backend::kSdpa, "cudnn"), fused = dense(Backend::kSm90, "hopper");
  EXPECT_EQ(toggle(report("auto", flash), "attention.dense").effective, "flash");
  EXPECT_TRUE(check_toggles(report("auto", flash)));
  EXPECT_TRUE(check_toggles(report("cudnn", cudnn)));
  EXPECT_FALSE(check_toggles(report("cudnn", flash))) << "another cuDNN shadows torch's";
  EXPECT_EQ(toggle(report("auto", fused), "attention.dense").effective, "fused");
  EXPECT_TRUE(check_toggles(report("fused", fused)));
  EXPECT_FALSE(check_toggles(report("fused", cudnn)));
  EXPECT_FALSE(check_toggles(report("cudnn", fused)));
  // NSA has no dense attention, so nothing can differ from the request.
  EXPECT_TRUE(check_toggles(report("cudnn", kFused)));
}

} // namespace
} // namespace nsa::train
