// The configuration without LibTorch: counts, names and refusals.
#include "nsa_model/model_config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::model {
namespace {

TEST(ParameterCount, OfTheM7c) {
  // Embedding 50304 * 768. Each of 12 blocks has q, out, six k/v of 128 rows, the gate 64 -> 32 ->
  // 3, an MLP of 3072 and two norms. The final norm follows.
  const int64_t block =
      768 * 768 + 768 * 768 + 6 * 768 * 128 + 64 * 32 + 32 * 3 + 2 * 768 * 3072 + 2 * 768;
  EXPECT_EQ(parameter_count(ModelConfig{}), 50304 * 768 + 12 * block + 768);
  EXPECT_EQ(parameter_count(ModelConfig{}), 116535168);
  ModelConfig dense;
  dense.attention = Attention::kDense;
  EXPECT_EQ(parameter_count(ModelConfig{}) - parameter_count(dense),
            12 * (4 * 768 * 128 + 64 * 32 + 32 * 3));
}

TEST(Names, AreThoseOfRunFilesAndOperators) {
  EXPECT_EQ(choice_from<Attention>("dense"), Attention::kDense);
  EXPECT_EQ(choice_from<Gate>("head_sigmoid"), Gate::kHeadSigmoid);
  EXPECT_EQ(name_of(Branch::kSliding), "sliding"); // used in the names of parameters in checkpoints
  EXPECT_EQ(choice::kernels_from("fused"), Kernels::kFused);
  EXPECT_EQ(choice::kernels_from("quick"), std::nullopt);
  NsaConfig nsa;
  nsa.sliding = false;
  EXPECT_FALSE(has_branch(nsa, Branch::kSliding));
  EXPECT_EQ(branch_count(nsa), 2);
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

} // namespace
} // namespace nsa::model
