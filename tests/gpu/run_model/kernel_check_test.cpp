// Compares the plan of kernels with the operators' counts: a training step and an evaluation in
// many configurations, on a GPU and on the CPU.
#include "common/spec/toggles.h"
#include "nsa_model/model/language_model.h"
#include "nsa_model/ops/kernel_counts.h"
#include "tests/gpu/gpu_host.h"
#include "worker/model/kernel_setup.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace nsa {
namespace {

using choice::Backend;
using choice::Part;
using choice::Pass;

struct Configuration {
  const char* name;
  std::function<void(spec::RunSpec&)> change;
  bool bf16 = true;
};

// The M7C with one layer, a short batch and a small vocabulary.
spec::RunSpec small_run() {
  spec::RunSpec spec;
  spec.model.layers = 1;
  spec.model.vocabulary = 512;
  spec.train.micro_batch = 2;
  spec.train.sequence_length = 2048;
  return spec;
}

void dense(spec::RunSpec& s) {
  s.model.attention = spec::Attention::kDense;
}
void documents(spec::RunSpec& s) {
  s.data.document_mask = true;
}
void learned(spec::RunSpec& s) {
  s.nsa.compression = spec::Compression::kMlp;
}
void toggle(spec::RunSpec& s, const char* name, const char* value) {
  s.toggles[name] = value;
}

const std::vector<Configuration>& configurations() {
  using spec::RunSpec;
  static const std::vector<Configuration> kAll = {
      {"M7C", [](RunSpec&) {}},
      {"FP32", [](RunSpec&) {}, false},
      {"recompute", [](RunSpec& s) { s.train.activation_recompute = true; }},
      {"documents", documents},
      {"longer", [](RunSpec& s) { s.train.sequence_length = 4096; }},
      {"every block is selected", [](RunSpec& s) { s.train.sequence_length = 1024; }},
      {"heads of 128", [](RunSpec& s) { s.model.head_dimension = 128; }},
      {"heads of 32", [](RunSpec& s) { s.model.head_dimension = 32; }},
      {"narrow", [](RunSpec& s) { s.model.dimension = 96; }},
      {"a window of 256", [](RunSpec& s) { s.nsa.window = 256; }},
      {"two branches",
       [](RunSpec& s) { s.nsa.branches = {spec::Branch::kCompressed, spec::Branch::kSelected}; }},
      {"sliding alone", [](RunSpec& s) { s.nsa.branches = {spec::Branch::kSliding}; }},
      {"sigmoids", [](RunSpec& s) { s.nsa.gate = spec::Gate::kHeadSigmoid; }},
      {"learned compression", learned},
      {"learned compression, documents", [](RunSpec& s) { learned(s), documents(s); }},
      {"ATen attention", [](RunSpec& s) { toggle(s, "attention.kernels", "aten"); }},
      {"ATen attention, documents",
       [](RunSpec& s) { documents(s), toggle(s, "attention.kernels", "aten"); }},
      {"ATen attention, no multiple of the stride",
       [](RunSpec& s) {
         s.train.sequence_length = 1096;
         toggle(s, "attention.kernels", "aten");
       }},
      {"ATen layers", [](RunSpec& s) { toggle(s, "layers.kernels", "aten"); }},
      {"ATen everywhere",
       [](RunSpec& s) {
         toggle(s, "attention.kernels", "aten");
         toggle(s, "layers.kernels", "aten");
       }},
      {"two embedding gradients",
       [](RunSpec& s) { toggle(s, "layers.embedding_gradient", "separate"); }},
      {"rows that are no multiple of 256", [](RunSpec& s) { s.train.sequence_length = 1064; }},
      {"rows that are no multiple of 8",
       [](RunSpec& s) { s.train.micro_batch = 1, s.train.sequence_length = 1061; }},
      {"chunks of logits that are no multiple of 8",
       [](RunSpec& s) { s.model.vocabulary = 250000; }},
      {"a last chunk of logits that alone is a multiple of 8",
       [](RunSpec& s) {
         s.model.vocabulary = 250000; // 2,147 rows per chunk
         s.train.micro_batch = 1, s.train.sequence_length = 2147 + 8;
       }},
      {"dense", dense},
      {"dense, FP32", dense, false},
      {"dense, documents", [](RunSpec& s) { dense(s), documents(s); }},
      {"dense, our kernels, documents",
       [](RunSpec& s) { dense(s), documents(s), toggle(s, "attention.kernels", "fused"); }},
      {"dense, 12 groups", [](RunSpec& s) { dense(s), s.model.kv_groups = 12; }},
      {"dense, flash", [](RunSpec& s) { dense(s), toggle(s, "attention.dense", "flash"); }},
      {"dense, math", [](RunSpec& s) { dense(s), toggle(s, "attention.dense", "math"); }},
      {"dense, math, documents",
       [](RunSpec& s) { dense(s), documents(s), toggle(s, "attention.dense", "math"); }},
  };
  return kAll;
}

// Allows LibTorch's kernels for dense attention in the whole process.
void allow_every_backend() {
  at::Context& context = at::globalContext();
  context.setSDPUseCuDNN(true);
  context.setSDPUseFlash(true);
  context.setSDPUseMemEfficient(true);
  context.setSDPUseMath(true);
}

void expect_as_planned(const Configuration& configuration, at::Device device) {
  SCOPED_TRACE(std::string(configuration.name) + " on " + device.str());
  allow_every_backend();
  spec::RunSpec spec = small_run();
  configuration.change(spec);
  if (device.is_cpu()) { // smaller sizes that take the same ways
    spec.train.sequence_length = spec.train.sequence_length / 8 + 1;
    spec.nsa.selected_blocks = 3;
    spec.model.vocabulary = std::min<int64_t>(spec.model.vocabulary, 512);
    spec.model.dimension = std::min<int64_t>(spec.model.dimension, 256);
    spec.train.micro_batch = 1;
  }
  const auto planned = train::plan_model(spec, spec::resolve_toggles(spec.toggles).value(), device,
                                         configuration.bf16 && device.is_cuda());
  if (!planned && device.is_cpu()) return; // the configuration asks for our kernels
  ASSERT_TRUE(planned) << planned.error().what;
  const at::ScalarType type = configuration.bf16 && device.is_cuda() ? at::kBFloat16 : at::kFloat;
  model::LanguageModel model(planned->config, device, type, 1);
  train::KernelCheck check = train::make_kernel_check(planned->kernels);
  const auto run = [&](int64_t rows, bool training) {
    const at::Tensor tokens =
        at::randint(0, spec.model.vocabulary, {rows, spec.train.sequence_length}, at::kLong);
    std::optional<at::Tensor> starts;
    if (spec.data.document_mask) {
      // A document of 200 tokens, and one with the rest of the sequence.
      const at::Tensor at = at::arange(spec.train.sequence_length, at::kLong);
      starts = at::where(at.lt(200), 0, 200).expand_as(tokens).contiguous();
    }
    const at::Tensor on_device = tokens.to(device);
    at::Tensor loss;
    if (training) {
      loss = model.loss(on_device, on_device, starts);
      loss.backward();
    } else {
      loss = model.token_losses(on_device, on_device, starts).mean();
    }
    EXPECT_TRUE(std::isfinite(loss.item<double>()));
  };
  run(spec.train.micro_batch, true);
  const Status first = check.ran(Pass::kFirstStep);
  EXPECT_TRUE(first) << first.error().what;
  run(spec.train.micro_batch, true);
  const Status next = check.ran(Pass::kTraining);
  EXPECT_TRUE(next) << next.error().what;
  run(1, false);
  const Status evaluation = check.ran(Pass::kEvaluation);
  EXPECT_TRUE(evaluation) << evaluation.error().what;
}

TEST(KernelCheck, WhatRanOnAGpuIsWhatWasPlanned) {
  if (!fused_missing().empty()) GTEST_SKIP() << fused_missing();
  for (const Configuration& configuration : configurations())
    expect_as_planned(configuration, at::Device(at::kCUDA, 0));
}

TEST(KernelCheck, WhatRanOnACpuIsWhatWasPlanned) {
  (void)gpu_missing(); // before a tensor is used
  for (const Configuration& configuration : configurations())
    expect_as_planned(configuration, at::kCPU);
}

TEST(KernelCheck, AnotherWayIsFound) {
  (void)gpu_missing();
  const spec::RunSpec spec = small_run();
  auto planned =
      train::plan_model(spec, spec::resolve_toggles(spec.toggles).value(), at::kCPU, false).value();
  for (choice::PlannedKernel& kernel : planned.kernels.kernels)
    if (kernel.part == Part::kLoss) kernel.backend = Backend::kPortable;
  train::KernelCheck check = train::make_kernel_check(planned.kernels);
  ops::count_kernel(Part::kLoss, Backend::kAten);
  const Status status = check.ran(Pass::kTraining);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().what.find("layers.loss was computed by aten"), std::string::npos);
}

} // namespace
} // namespace nsa
