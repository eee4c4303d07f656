// The configuration without LibTorch: counts, names and refusals.
#include "nsa_model/choice/serves.h"
#include "nsa_model/model/config.h"
#include "nsa_model/model/kernel_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::model {
namespace {

TEST(ParameterCount, OfTheM7c) {
  // 50304 * 768 embedding, 12 * (4 * 768^2 / 3 ... written out: q, out, six k/v of 128 rows, gate
  // 64 -> 32 -> 3, MLP of 3072, two norms) and the final norm.
  const int64_t block =
      768 * 768 + 768 * 768 + 6 * 768 * 128 + 64 * 32 + 32 * 3 + 2 * 768 * 3072 + 2 * 768;
  EXPECT_EQ(parameter_count(ModelConfig{}), 50304 * 768 + 12 * block + 768);
  EXPECT_EQ(parameter_count(ModelConfig{}), 116535168);
  ModelConfig dense;
  dense.attention = Attention::kDense;
  EXPECT_EQ(parameter_count(ModelConfig{}) - parameter_count(dense),
            12 * (4 * 768 * 128 + 64 * 32 + 32 * 3));
}

TEST(Names, RoundTripAndRefuseWithTheChoices) {
  EXPECT_EQ(parse_attention("dense").value(), Attention::kDense);
  EXPECT_EQ(parse_compression("mlp").value(), Compression::kMlp);
  EXPECT_EQ(parse_gate("head_sigmoid").value(), Gate::kHeadSigmoid);
  EXPECT_EQ(parse_kernels(kernels_name(Kernels::kFused)).value(), Kernels::kFused);
  EXPECT_THAT(parse_kernels("quick").error().next, testing::HasSubstr("aten, reference, fused"));
  NsaConfig nsa;
  ASSERT_TRUE(set_branch(nsa, "sliding", false));
  EXPECT_FALSE(has_branch(nsa, Branch::kSliding));
  EXPECT_EQ(branch_count(nsa), 2);
  EXPECT_FALSE(set_branch(nsa, "window", true));
}

TEST(FlashOverDocuments, NeedsAmpereBf16AndNoOtherRequest) {
  ModelConfig config;
  config.attention = Attention::kDense;
  const Place a100{.gpu = true, .bf16 = true, .compute_capability = 80};
  EXPECT_TRUE(flash_serves_documents(config, a100));
  for (const int capability : {0, 70, 75}) {
    Place older = a100;
    older.compute_capability = capability;
    EXPECT_FALSE(flash_serves_documents(config, older)) << capability;
  }
  Place fp32 = a100, cpu = a100;
  fp32.bf16 = false;
  cpu.gpu = false;
  EXPECT_FALSE(flash_serves_documents(config, fp32));
  EXPECT_FALSE(flash_serves_documents(config, cpu));
  for (const int64_t width : {12, 264}) {
    ModelConfig other = config;
    other.head_dimension = width;
    EXPECT_FALSE(flash_serves_documents(other, a100)) << width;
  }
  for (const DenseBackend backend :
       {DenseBackend::kAuto, DenseBackend::kFlash, DenseBackend::kCudnn, DenseBackend::kEfficient,
        DenseBackend::kMath, DenseBackend::kFused}) {
    config.dense_backend = backend;
    EXPECT_EQ(flash_serves_documents(config, a100),
              backend == DenseBackend::kAuto || backend == DenseBackend::kFlash);
  }
}

std::string refusal(const ModelConfig& config) {
  const Status status = validate(config);
  return status ? "" : status.error().what;
}

TEST(Validate, NamesTheKeyThatIsWrong) {
  EXPECT_EQ(refusal({}), "");
  ModelConfig c;
  c.heads = 7;
  EXPECT_THAT(refusal(c), testing::HasSubstr("model.heads"));
  c = {};
  c.head_dimension = 63;
  EXPECT_THAT(refusal(c), testing::HasSubstr("model.head_dimension"));
  c = {};
  c.nsa.compression_block = 24;
  EXPECT_THAT(refusal(c), testing::HasSubstr("nsa.compression_block"));
  c = {};
  c.nsa.selection_block = 40;
  EXPECT_THAT(refusal(c), testing::HasSubstr("nsa.selection_block"));
  c = {};
  c.nsa.selected_blocks = 2;
  EXPECT_THAT(refusal(c), testing::HasSubstr("nsa.selected_blocks"));
  c = {};
  c.nsa.compressed = false;
  EXPECT_THAT(refusal(c), testing::HasSubstr("selected without compressed"));
  c.nsa.selected = c.nsa.sliding = false;
  EXPECT_THAT(refusal(c), testing::HasSubstr("nsa.branches is empty"));
  c.attention = Attention::kDense; // the dense twin has no branches
  EXPECT_EQ(refusal(c), "");
}

// What a rank says of itself.
std::map<std::string, std::string> report(const ModelConfig& config, const Place& place) {
  return kernels_in_effect(config, place,
                           config.attention == Attention::kDense ? "aten cudnn" : "hopper");
}
const Place kHopper{true, true, 90, 2048, 32768, false};

TEST(KernelChoice, EveryPartOfTheM7CIsFusedOnHopper) {
  ModelConfig config;
  config.fused_layers = true;
  config.kernels = Kernels::kFused;
  config.joined_embedding_gradient = true;
  auto parts = report(config, kHopper);
  EXPECT_EQ(parts.size(), 11u);
  EXPECT_EQ(parts.extract("layers.embedding").mapped(), "joined");
  for (const auto& [part, kernel] : parts)
    EXPECT_EQ(kernel, part.starts_with("layers") ? "fused" : "fused hopper") << part;
  config.attention = Attention::kDense;
  const auto dense = report(config, kHopper);
  EXPECT_EQ(dense.at("dense"), "aten cudnn");
  EXPECT_EQ(dense.count("layers.gate") + dense.count("compressed"), 0u);
}

// Beside fused parts nothing is composed in silence.
TEST(KernelChoice, APartThatIsComposedSaysWhy) {
  ModelConfig config;
  config.fused_layers = true;
  const auto part = [&](const char* name, const Place& place = kHopper) {
    return report(config, place).at(name);
  };
  using testing::HasSubstr;
  EXPECT_THAT(part("layers.mlp", {true, true, 80, 2048, 32768}), HasSubstr("aten (the products"));
  EXPECT_THAT(part("layers.mlp", {true, true, 90, 64, 64}), HasSubstr("256 tokens"));
  EXPECT_EQ(part("layers.products", {true, true, 90, 64, 64}), "fused");
  EXPECT_THAT(part("layers.products", {true, true, 90, 12, 12}), HasSubstr("multiple of 8"));
  EXPECT_EQ(part("layers.embedding"), "separate") << "as the configuration has it";
  EXPECT_THAT(part("layers.embedding", {true, true, 90, 2048, 131072}), HasSubstr("65,536 tokens"));
  config.nsa.sliding = false;
  EXPECT_THAT(part("layers.gate"), HasSubstr("three branches"));
  config.nsa.sliding = true;
  config.head_dimension = 128;
  EXPECT_THAT(part("layers.gate"), HasSubstr("head_dimension of 64"));
  config.nsa.gate = Gate::kHeadSigmoid;
  EXPECT_THAT(part("layers.gate"), HasSubstr("group softmax"));
  config.nsa.compression = Compression::kMlp;
  EXPECT_THAT(part("layers.compression"), HasSubstr("aten ("));
  config.dimension = 96;
  config.mlp_ratio = 1;
  EXPECT_THAT(part("layers.mlp"), HasSubstr("columns"));
  config.fused_layers = false;
  EXPECT_THAT(part("layers"), HasSubstr("model.dimension")) << "and no parts of it";
  EXPECT_EQ(report(config, kHopper).count("layers.mlp"), 0u);
}

TEST(KernelChoice, ATensWayIsSaidBranchByBranch) {
  const ModelConfig config;
  const auto branches = [&](const Place& place) {
    const auto parts = report(config, place);
    return std::vector{parts.at("compressed"), parts.at("selected"), parts.at("sliding")};
  };
  EXPECT_THAT(branches(kHopper), testing::Each("aten regrouped"));
  EXPECT_THAT(branches({true, false, 90, 2048, 2048}),
              testing::Each(testing::HasSubstr("aten chunked (FlashAttention takes")));
  EXPECT_THAT(branches({}), testing::Each("aten chunked (FlashAttention is of GPUs)"));
  EXPECT_THAT(branches({true, true, 90, 2056, 2056}),
              testing::ElementsAre(testing::HasSubstr("aten chunked (the sequence"),
                                   "aten regrouped", "aten regrouped"));
  EXPECT_THAT(branches({true, true, 90, 2048, 2048, true}).front(),
              testing::HasSubstr("chunked in documents"));
  serves::RegroupedBranch given{true, true, 64, 2048};
  EXPECT_EQ(serves::why_not_regrouped(given), "");
  given.given_indices = true;
  EXPECT_EQ(serves::why_not_regrouped(given), "the indices are the caller's");
  EXPECT_NE(serves::why_not_regrouped({true, true, 66, 2048}), "");
}

} // namespace
} // namespace nsa::model
