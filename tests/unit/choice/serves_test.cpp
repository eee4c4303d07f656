// Which problems the attention kernels support.
#include "nsa_model/choice/serves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::serves {
namespace {

using testing::HasSubstr;

AttentionProblem problem(int64_t heads, int64_t groups, int64_t dim, int capability = 90,
                         int64_t sequence = 1000, int64_t batch = 1) {
  return {.compute_capability = capability,
          .batch = batch,
          .sequence = sequence,
          .heads = heads,
          .groups = groups,
          .head_dimension = dim};
}
std::string why_not(const AttentionProblem& p) {
  const Reasons reasons = why_not_attention(p);
  return reasons.empty() ? "" : reasons.front().text;
}

TEST(Attention, ServesHeadsDimensionsAndGpus) {
  for (int heads = 1; heads <= kMostGroupHeads; ++heads)
    for (const int dim : {64, 128}) {
      for (const int capability : {80, 86, 89, 90, 100})
        EXPECT_EQ(why_not(problem(2 * heads, 2, dim, capability)), "") << heads << ' ' << dim;
      EXPECT_EQ(why_not(problem(2 * heads, 2, dim, 80, kMostPortableTokens)), "") << heads;
    }
  EXPECT_THAT(why_not(problem(34, 2, 64)), HasSubstr("16 query heads"));
  EXPECT_THAT(why_not(problem(7, 2, 64)), HasSubstr("16 query heads"));
  EXPECT_THAT(why_not(problem(0, 0, 64)), HasSubstr("16 query heads"));
  for (const int dim : {16, 32, 96})
    EXPECT_THAT(why_not(problem(12, 2, dim)), HasSubstr("64 or 128"));
  EXPECT_THAT(why_not(problem(12, 2, 64, 75)), HasSubstr("compute capability 8.0"));
}

TEST(Attention, ServesThePapersSizes) {
  for (const auto member :
       {&NsaSizes::compression_block, &NsaSizes::compression_stride, &NsaSizes::selection_block,
        &NsaSizes::selected_blocks, &NsaSizes::window}) {
    AttentionProblem other = problem(12, 2, 64);
    other.nsa.*member /= 2;
    EXPECT_THAT(why_not(other), HasSubstr("window 512"));
  }
}

TEST(Attention, ServesSequencesByFamilyAndSharedMemory) {
  for (const int dim : {64, 128})
    EXPECT_EQ(why_not(problem(12, 2, dim, 90, kMostTokens)), "");
  EXPECT_THAT(why_not(problem(12, 2, 64, 90, kMostTokens + 1)), HasSubstr("1048576"));
  EXPECT_THAT(why_not(problem(12, 2, 64, 90, 0)), HasSubstr("sequences"));
  EXPECT_THAT(why_not(problem(12, 2, 128, 80, kMostPortableTokens + 1)), HasSubstr("131072"));
  EXPECT_THAT(why_not(problem(12, 2, 64, 80, kMostPortableTokens + 1)), HasSubstr("131072"));
  // The scores of 64K tokens fit into 99 KiB of shared memory in some cases only.
  EXPECT_EQ(why_not(problem(12, 2, 64, 86, 65536)), "");
  EXPECT_THAT(why_not(problem(32, 2, 128, 86, kMostPortableTokens)), HasSubstr("shared memory"));
  // Bitmaps of 64 bytes per block fill the shared memory at 1,584 blocks, for any number of heads.
  for (const int capability : {86, 89, 120}) {
    EXPECT_EQ(why_not(problem(1, 1, 64, capability, 101376)), "");
    EXPECT_THAT(why_not(problem(1, 1, 64, capability, 101377)), HasSubstr("shared memory"));
  }
  EXPECT_EQ(why_not(problem(1, 1, 64, 80, 101377)), "");
}

TEST(Attention, ServesWhatALaunchCounts) {
  // The limits are a grid's second dimension, and slots of tokens counted in 31 bits.
  const auto batch = [](int64_t sequences, int64_t groups, int64_t sequence) {
    return why_not(problem(6 * groups, groups, 64, 90, sequence, sequences));
  };
  EXPECT_EQ(batch(65535, 1, 100), "");
  EXPECT_NE(batch(65536, 1, 100), "");
  EXPECT_NE(batch(32768, 2, 100), "");
  EXPECT_EQ(batch(1023, 1, kMostPortableTokens), "");
  EXPECT_NE(batch(1024, 1, kMostPortableTokens), "");
  EXPECT_NE(batch(0, 2, 1000), "");
  EXPECT_NE(batch(int64_t{1} << 60, 2, 1000), "");
}

TEST(Attention, NamesEverythingAgainstItWithItsKeys) {
  AttentionProblem p = problem(34, 2, 32);
  p.nsa.window = 256;
  const Reasons reasons = why_not_attention(p);
  ASSERT_EQ(reasons.size(), 3u);
  EXPECT_EQ(reasons[0].keys.front(), "model.head_dimension");
  EXPECT_EQ(reasons[1].keys.front(), "model.heads");
  EXPECT_EQ(reasons[2].keys.front(), "nsa.window");
}

TEST(Causal, RefusesWhatItDoesNotServe) {
  EXPECT_TRUE(why_not_causal(problem(12, 2, 64, 90, 4096, 8)).empty());
  EXPECT_TRUE(why_not_causal(problem(16, 1, 64, 90, kMostPortableTokens)).empty());
  for (const AttentionProblem& p :
       {problem(12, 2, 64, 80), problem(12, 2, 64, 100), problem(12, 2, 128), problem(17, 1, 64),
        problem(5, 2, 64), problem(0, 0, 64), problem(12, 2, 64, 90, kMostPortableTokens + 1),
        problem(12, 2, 64, 90, 1000, 0), problem(1, 1, 64, 90, 100, 65536),
        problem(12, 1, 64, 90, kMostPortableTokens, 1024)})
    EXPECT_FALSE(why_not_causal(p).empty());
}

TEST(Regrouped, NamesWhyFlashAttentionDoesNotTakeABranch) {
  RegroupedBranch given{true, true, 64, 2048};
  EXPECT_EQ(why_not_regrouped(given), "");
  given.given_indices = true;
  EXPECT_EQ(why_not_regrouped(given), "the indices are the caller's");
  EXPECT_NE(why_not_regrouped({true, true, 66, 2048}), "");
}

TEST(FlashDocuments, NeedAmpereAndBf16) {
  EXPECT_TRUE(flash_documents(true, true, 80, 64));
  for (const int capability : {0, 70, 75})
    EXPECT_FALSE(flash_documents(true, true, capability, 64)) << capability;
  EXPECT_FALSE(flash_documents(true, false, 80, 64));
  EXPECT_FALSE(flash_documents(false, true, 80, 64));
  for (const int64_t width : {12, 264})
    EXPECT_FALSE(flash_documents(true, true, 80, width)) << width;
}

TEST(LossChunk, HoldsTheSameMemory) {
  EXPECT_EQ(loss_chunk(false, false, 320), 1638);
  EXPECT_EQ(loss_chunk(false, false, 50304), 64);
  EXPECT_EQ(loss_chunk(true, false, 50304), 2668);
  EXPECT_EQ(loss_chunk(true, true, 50304), 4096);
  EXPECT_EQ(loss_chunk(true, true, 250000), 2147);
}

// The MLP keeps SiLU's result only below 65,536 tokens. With more tokens the memory goals of
// docs/performance.md need the space.
TEST(Silu, IsKeptBelow65536Tokens) {
  EXPECT_TRUE(keeps_silu(32768));
  EXPECT_FALSE(keeps_silu(65536));
}

} // namespace
} // namespace nsa::serves
