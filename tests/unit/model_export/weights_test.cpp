// Names and number types of exported weights.
#include "cli/model_export/weights.h"

#include <gtest/gtest.h>

#include <cstring>

namespace nsa::model_export {
namespace {

namespace fs = std::filesystem;

TEST(ExportedNames, AreThoseOfHuggingFace) {
  for (const auto& [ours, theirs] : std::initializer_list<std::pair<const char*, const char*>>{
           {"embedding.weight", "model.embed_tokens.weight"},
           {"final_norm.weight", "model.norm.weight"},
           {"blocks.0.attention_norm.weight", "model.layers.0.input_layernorm.weight"},
           {"blocks.11.mlp_norm.weight", "model.layers.11.post_attention_layernorm.weight"},
           {"blocks.3.attention.w_q.weight", "model.layers.3.self_attn.q_proj.weight"},
           {"blocks.3.attention.w_k.weight", "model.layers.3.self_attn.k_proj.weight"},
           {"blocks.3.attention.w_v_sliding.weight",
            "model.layers.3.self_attn.v_proj_sliding.weight"},
           {"blocks.3.attention.w_out.weight", "model.layers.3.self_attn.o_proj.weight"},
           {"blocks.3.attention.gate.fc1.weight", "model.layers.3.self_attn.gate.fc1.weight"},
           {"blocks.3.attention.phi_k.position", "model.layers.3.self_attn.phi_k.position"},
           {"blocks.3.mlp.fc1.weight", "model.layers.3.mlp.up_proj.weight"},
           {"blocks.3.mlp.fc2.weight", "model.layers.3.mlp.down_proj.weight"}})
    EXPECT_EQ(exported_name(ours).value(), theirs);
  for (const char* other :
       {"", "blocks.", "blocks.3", "blocks.3.attention.", "blocks.3.other.weight", "head.weight",
        "blocks.3.attention.other.weight"})
    EXPECT_FALSE(exported_name(other)) << other;
}

class WeightsTest : public ::testing::Test {
protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "nsa-weights-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path folder_;
};

TEST_F(WeightsTest, AreRoundedToTheNearestEven) {
  // Values below, at and above the middle of two BF16 numbers; the largest number; a NaN.
  const std::vector<uint32_t> bits = {0x3f800000, 0x3f807fff, 0x3f808000, 0x3f818000,
                                      0x3f808001, 0xff7fffff, 0x7f800001};
  std::vector<float> values(bits.size());
  std::memcpy(values.data(), bits.data(), bits.size() * sizeof(float));
  ASSERT_TRUE(safetensors::write(
      folder_ / "a",
      {{"final_norm.weight", safetensors::DataType::kF32, {7}, std::as_bytes(std::span(values))}},
      {}));
  const auto from = safetensors::Reader::open(folder_ / "a");
  ASSERT_TRUE(from);
  const auto written = write_weights(*from, folder_ / "b", NumberType::kBf16, {{"run", "abcde"}});
  ASSERT_TRUE(written) << written.error().what;
  EXPECT_EQ(written->parameters, 7);
  EXPECT_EQ(written->type, "bfloat16");
  const auto narrow = safetensors::Reader::open(folder_ / "b");
  ASSERT_TRUE(narrow);
  EXPECT_EQ(narrow->metadata().at("format"), "pt");
  std::vector<uint16_t> rounded(7);
  ASSERT_TRUE(narrow->read("model.norm.weight", safetensors::DataType::kBF16, {7},
                           std::as_writable_bytes(std::span(rounded))));
  EXPECT_EQ(rounded,
            (std::vector<uint16_t>{0x3f80, 0x3f80, 0x3f80, 0x3f82, 0x3f81, 0xff80, 0x7fc0}));
}

TEST_F(WeightsTest, OfAnUnknownModelAreRefused) {
  const std::vector<float> one = {1};
  ASSERT_TRUE(safetensors::write(
      folder_ / "a",
      {{"router.weight", safetensors::DataType::kF32, {1}, std::as_bytes(std::span(one))}}, {}));
  const auto from = safetensors::Reader::open(folder_ / "a");
  ASSERT_TRUE(from);
  const auto written = write_weights(*from, folder_ / "b", NumberType::kStored, {});
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, ErrorCode::kUnsupported);
}

} // namespace
} // namespace nsa::model_export
