#include "worker/profile/graph_parts.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>

namespace nsa::profile {
namespace {

using ops::PartScope;
using ops::StepPart;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The test says which kernels were launched.
class Launches : public runtime::Recorder {
public:
  void begin() override {}
  std::unique_ptr<runtime::Graph> end() override { return nullptr; }
  void abandon() noexcept override {}
  std::vector<std::string> take_launched() override { return std::exchange(pending, {}); }
  void launch(const std::string& name = "gemm") { pending.push_back(name); }
  std::vector<std::string> pending;
};

TEST(GraphParts, KernelsCountForTheInnermostScope) {
  Launches device;
  GraphPartRecorder recorder(device);
  device.launch(); // outside of any scope
  {
    const PartScope outer(StepPart::kLoss);
    device.launch();
    {
      const PartScope inner(StepPart::kMlp);
      device.launch();
      device.launch();
    }
    device.launch();
  }
  EXPECT_THAT(recorder.take()->kernels, ElementsAre(std::nullopt, StepPart::kLoss, StepPart::kMlp,
                                                    StepPart::kMlp, StepPart::kLoss));
  EXPECT_THAT(recorder.take()->kernels, IsEmpty());
}

TEST(GraphParts, KernelsOfTheAttentionOperatorAreLeftToTheirNames) {
  Launches device;
  GraphPartRecorder recorder(device);
  const PartScope scope(StepPart::kAttention);
  device.launch("_ZN3nsa7kernels12_GLOBAL__N_120given_indices_kernelENS0_18GivenIndicesParamsEl");
  device.launch("copy_kernel");
  EXPECT_THAT(recorder.take()->kernels, ElementsAre(StepPart::kAttention));
}

// The gradient of a scope's result belongs to that scope, in whichever graph it is.
TEST(GraphParts, ANodeOfAutogradHasThePartOfItsForward) {
  Launches device;
  GraphPartRecorder recorder(device);
  const at::Tensor x = at::ones({4}).set_requires_grad(true);
  struct Watch { // launches a kernel in the backward pass of the product
    Launches& device;
    at::Tensor operator()(const at::Tensor& gradient) const {
      device.launch("within the node before");
      return gradient;
    }
  };
  at::Tensor product, loss;
  {
    const PartScope scope(StepPart::kMlp);
    product = x * 3;
  }
  {
    const PartScope scope(StepPart::kLoss);
    loss = (product * 2).sum();
  }
  const auto forward = recorder.take();
  EXPECT_THAT(forward->kernels, IsEmpty());
  recorder.begin_node(at::RecordFunction::currentThreadId(),
                      static_cast<int64_t>(product.grad_fn()->sequence_nr()));
  device.launch();
  recorder.end_node();
  recorder.begin_node(at::RecordFunction::currentThreadId(),
                      static_cast<int64_t>(loss.grad_fn()->sequence_nr()));
  device.launch();
  recorder.end_node();
  recorder.begin_node(0, -1); // the gradient sum of a leaf
  device.launch();
  recorder.end_node();
  EXPECT_THAT(recorder.take()->kernels,
              ElementsAre(StepPart::kMlp, StepPart::kLoss, StepPart::kReduction));
  // Autograd itself reports its nodes too.
  product.register_hook(Watch{device});
  const at::Tensor again = [&] {
    const PartScope scope(StepPart::kGates);
    return (product * 5).sum();
  }();
  again.backward();
  EXPECT_FALSE(recorder.take()->kernels.empty());
}

} // namespace
} // namespace nsa::profile
