// attention.kernels = "aten" on a GPU. Chunked FP64 and FP32 are compared with the CPU, and
// regrouped BF16 with FP64 from the same rounded inputs. The tests are skipped, with the reason, if
// there is no GPU.
#include "nsa_model/ops/attention.h"
#include "tests/gpu/gpu_host.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace nsa::ops {
namespace {

using at::Tensor;

class Gpu : public testing::Test {
protected:
  void SetUp() override {
    if (!gpu_missing().empty()) GTEST_SKIP() << gpu_missing();
    at::manual_seed(1);
  }
};

struct Problem {
  std::vector<Tensor> leaves; // q, then k and v of each branch, then gates, as FP64 on the CPU
  Tensor direction;
  Settings settings;
  OptionalTensor documents;

  Problem(int64_t batch, int64_t length, int64_t dimension, const Sizes& sizes,
          at::ScalarType rounded)
      : settings{sizes, 0} {
    const auto random = [&](int64_t tokens, int64_t heads) {
      return at::randn({batch, tokens, heads, dimension}).to(rounded).to(at::kDouble);
    };
    leaves.push_back(random(length, 12));
    for (int branch = 0; branch < 6; ++branch)
      leaves.push_back(random(branch < 2 ? reference::compressed_count(length, sizes) : length, 2));
    leaves.push_back(at::rand({batch, length, 2, 3}).to(at::kDouble));
    direction = random(length, 12);
  }

  // Returns the output and the gradients of all leaves, as FP64 on the CPU.
  std::vector<Tensor> run(at::Device device, at::ScalarType type, Kernels kernels) const {
    std::vector<Tensor> x;
    for (size_t i = 0; i < leaves.size(); ++i)
      x.push_back(leaves[i].to(i == 7 ? compute_type(type) : type).to(device).requires_grad_());
    const AttentionInputs in{x[0], {x[1], x[3], x[5]}, {x[2], x[4], x[6]},
                             x[7], documents,          std::nullopt};
    const Tensor out = attention(in, settings, kernels);
    std::vector<Tensor> result = torch::autograd::grad({out}, x, {direction.to(type).to(device)});
    result.insert(result.begin(), out.detach());
    for (Tensor& t : result)
      t = t.to(at::kCPU).to(at::kDouble);
    return result;
  }
};

// Relative root mean square error. A single key has gradients of exactly zero, hence the added
// 1e-3.
double error(const Tensor& found, const Tensor& exact) {
  if (exact.numel() == 0) return 0;
  const double size = exact.pow(2).mean().sqrt().item<double>();
  return (found - exact).pow(2).mean().sqrt().item<double>() / (size + 1e-3);
}

TEST_F(Gpu, ChunkedAgreesWithTheCpu) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat})
    for (const bool documents : {false, true}) {
      Problem problem(2, 300, 32, {8, 4, 16, 4, 12}, type);
      if (documents) {
        Tensor starts = at::zeros({2, 300}, at::kLong);
        starts.narrow(1, 37, 263).fill_(37);
        starts.narrow(1, 180, 120).fill_(180);
        problem.documents = starts;
      }
      const auto exact = problem.run(at::kCPU, at::kDouble, Kernels::kAten);
      const auto found = problem.run(at::Device("cuda"), type, Kernels::kAten);
      for (size_t i = 0; i < exact.size(); ++i)
        EXPECT_LE(error(found[i], exact[i]), type == at::kDouble ? 1e-12 : 1e-5) << i;
    }
}

// Rounding the result to BF16 gives a relative error of about 0.0017. The ways that compute in BF16
// also round probabilities and partial results.
constexpr double kBf16 = 0.005;

TEST_F(Gpu, RegroupedBf16AgreesWithFp64) {
  for (const int64_t length : {1, 32, 64, 65, 68, 300}) {
    const Problem problem(2, length, 64, {8, 4, 16, 4, 12}, at::kBFloat16);
    const auto exact = problem.run(at::kCPU, at::kDouble, Kernels::kAten);
    const auto found = problem.run(at::Device("cuda"), at::kBFloat16, Kernels::kAten);
    for (size_t i = 0; i < exact.size(); ++i)
      EXPECT_LE(error(found[i], exact[i]), kBf16) << length << ' ' << i;
  }
}

} // namespace
} // namespace nsa::ops
