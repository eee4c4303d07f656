#include "worker/profile/kernel_parts.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

namespace nsa::profile {
namespace {

using ops::StepPart;

TEST(KernelParts, TheRangeOfKeysTellsTheBranch) {
  const std::string tile = "void nsa::kernels::tile_forward::(anonymous namespace)::"
                           "tile_forward_kernel<(nsa::kernels::KeyRange)";
  const std::string rest = ", false, nsa::kernels::SixHeads>(nsa::kernels::TileForwardParams, int)";
  EXPECT_EQ(part_of_attention_kernel(tile + "0" + rest), StepPart::kSliding);
  EXPECT_EQ(part_of_attention_kernel(tile + "1" + rest), StepPart::kCompressed);
  EXPECT_EQ(part_of_attention_kernel(tile + "2" + rest), StepPart::kSelected);
  const std::string range = "void nsa::kernels::range_backward::(anonymous namespace)::"
                            "range_backward_kernel<(nsa::kernels::KeyRange)0, ";
  EXPECT_EQ(part_of_attention_kernel(range + "true, nsa::kernels::SixHeads>(int)"),
            StepPart::kSliding);
  EXPECT_EQ(part_of_attention_kernel(range + "false, nsa::kernels::SixHeads>(int)"),
            StepPart::kSelected);
  const std::string joint = "void nsa::kernels::tile_backward::(anonymous namespace)::"
                            "tile_backward_kernel<nsa::kernels::tile_backward::KeyPass<"
                            "(nsa::kernels::KeyRange)0";
  EXPECT_EQ(part_of_attention_kernel(joint + ">, nsa::kernels::SixHeads>(int)"),
            StepPart::kSliding);
  EXPECT_EQ(part_of_attention_kernel(joint + ", (nsa::kernels::KeyRange)1>, int>(int)"),
            StepPart::kAttention);
}

TEST(KernelParts, NamesThatEndAlikeAreToldApart) {
  const std::string ours = "nsa::kernels::(anonymous namespace)::";
  EXPECT_EQ(part_of_attention_kernel(ours + "count_kernel(nsa::kernels::BlockListsParams, int)"),
            StepPart::kLists);
  EXPECT_EQ(part_of_attention_kernel(ours + "count_kernel(nsa::kernels::EmbeddingGradientParams)"),
            std::nullopt);
  EXPECT_EQ(part_of_attention_kernel("void other::selection_kernel<64>(int)"), std::nullopt);
  EXPECT_EQ(part_of_attention_kernel("sm90_xmma_gemm_bf16bf16"), std::nullopt);
}

TEST(KernelParts, TheDriversMemsetsAreNoKernelsOfAGraph) {
  EXPECT_TRUE(is_memset_kernel("memset32"));
  EXPECT_TRUE(is_memset_kernel("memset32_aligned1D"));
  EXPECT_FALSE(is_memset_kernel("nsa::kernels::memset(int)"));
  EXPECT_FALSE(is_memset_kernel("void at::native::fill_kernel<float>(int)"));
}

#ifdef NSA_KERNELS
// Every kernel of the library belongs to the attention operator or to an operator around it, whose
// scope is known. A new kernel must be listed in kernel_parts.cpp or here.
TEST(KernelParts, KnowEveryKernelOfTheAttentionOperator) {
  constexpr const char* kAround[] = {
      "add_gradients_kernel", "control_kernel",  "EmbeddingGradientParams",
      "cross_entropy_kernel", "head_split",      "partial_squares",
      "square_sum_kernel",    "sum_gain_kernel", "group_gate",
      "sum_weights",          "adamw_kernel",    "add_rms_norm",
      "silu_product",         "decode_kernel",   "learned_compression",
      "vocabulary_product",   "layer_sample",    "scale_gradient"};
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> names(
      ::popen("nm -C '" NSA_KERNELS "' 2>/dev/null | cut -c20-", "r"), &::pclose);
  ASSERT_NE(names, nullptr);
  std::string line;
  int kernels = 0;
  for (int c = 0; (c = std::fgetc(names.get())) != EOF;) {
    if (c != '\n') {
      line += static_cast<char>(c);
      continue;
    }
    const std::string name = std::exchange(line, "");
    const bool is_kernel =
        name.find("_kernel(") != std::string::npos || name.find("_kernel<") != std::string::npos;
    if (!is_kernel || name.find("nsa::kernels::") == std::string::npos ||
        name.find("__device_stub__") != std::string::npos ||
        name.find("cudaError") != std::string::npos || name.find("::launch") != std::string::npos ||
        name.find("[clone") != std::string::npos)
      continue;
    ++kernels;
    bool known = part_of_attention_kernel(name).has_value();
    for (const char* around : kAround)
      known = known || name.find(around) != std::string::npos;
    EXPECT_TRUE(known) << name;
  }
  if (kernels == 0) GTEST_SKIP() << "nm shows no symbols of " NSA_KERNELS;
}
#endif

} // namespace
} // namespace nsa::profile
