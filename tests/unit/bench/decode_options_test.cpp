// nsa-bench decode: its command line and the bytes that it counts.
#include "bench/decode/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(DecodeOptions, SetWhatTheyName) {
  DecodeOptions o;
  const auto words = read(decode_command(o), {"--context", "4096,32768", "--batch=2", "--heads",
                                              "4", "--groups", "1", "--no-dense", "--json"});
  ASSERT_TRUE(words) << words.error().what;
  EXPECT_THAT(o.contexts, ElementsAre(4096, 32768));
  EXPECT_THAT(o.batches, ElementsAre(2));
  EXPECT_EQ(o.heads, 4);
  EXPECT_EQ(o.groups, 1);
  EXPECT_FALSE(o.dense);
  EXPECT_TRUE(o.json);
}

TEST(DecodeOptions, HelpHasExamplesAndMistakesTheNearestName) {
  DecodeOptions o;
  EXPECT_THAT(o.contexts, ElementsAre(4096, 8192, 16384, 32768, 65536, 131072));
  EXPECT_THAT(o.batches, ElementsAre(1, 64));
  const std::string text = help(decode_command(o));
  EXPECT_THAT(text, HasSubstr("Usage: nsa-bench decode [options]\n"));
  EXPECT_THAT(text, HasSubstr("  nsa-bench decode --context 32768 --batch 1,8,64\n"));
  const auto wrong = read(decode_command(o), {"--contexts", "4096"});
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().next, HasSubstr("did you mean --context?"));
  EXPECT_FALSE(read(decode_command(o), {"--batch", "1,x"}));
}

// S / 16 + 1,024 + 512 keys, and the same number of values.
TEST(DecodeOptions, CountsWhatThePaperCounts) {
  EXPECT_EQ(keys_read(4096), 256 + 1536);
  EXPECT_EQ(keys_read(131072), 8192 + 1536);
  EXPECT_EQ(keys_read(600), 37 + 600 + 512);
  EXPECT_EQ(bytes_read(4096, 1, 2, 64), 1792.0 * 2 * 128 * 2);
  EXPECT_EQ(bytes_read(65536, 64, 2, 64), 64 * bytes_read(65536, 1, 2, 64));
}

} // namespace
} // namespace nsa::bench
