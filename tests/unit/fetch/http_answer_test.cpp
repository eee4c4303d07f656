#include "fetch/http_answer.h"

#include <gtest/gtest.h>

namespace nsa::fetch {
namespace {

HttpAnswer answer_with(const std::string& name, const std::string& value) {
  HttpAnswer answer;
  answer.headers[name] = value;
  return answer;
}

TEST(ContentRange, ReadsFirstByteAndTotal) {
  const auto range = content_range("bytes 100-199/1000");
  ASSERT_TRUE(range);
  EXPECT_EQ(range->first, 100u);
  EXPECT_EQ(range->total, 1000u);
}

TEST(ContentRange, ATotalMayBeUnknownAndAFileEmpty) {
  const auto unknown = content_range("bytes 0-0/*");
  ASSERT_TRUE(unknown);
  EXPECT_FALSE(unknown->total);
  const auto empty = content_range("bytes */0");
  ASSERT_TRUE(empty);
  EXPECT_EQ(empty->total, 0u);
}

TEST(ContentRange, WhatIsNoRangeOfBytesIsRefused) {
  for (const char* text : {"", "items 0-1/2", "bytes 0-1", "bytes x-1/2", "bytes -1/2"})
    EXPECT_FALSE(content_range(text)) << text;
}

TEST(WantedWait, TakesSecondsADateOrTheHubsHeader) {
  EXPECT_EQ(wanted_wait(answer_with("retry-after", "7")), 7);
  // This time is in the past.
  EXPECT_EQ(wanted_wait(answer_with("retry-after", "Thu, 01 Jan 1970 00:00:10 GMT")), 0);
  EXPECT_EQ(wanted_wait(answer_with("ratelimit", "\"api\";r=0;t=55")), 55);
}

TEST(WantedWait, IsNegativeWhereTheServerSaysNothing) {
  EXPECT_LT(wanted_wait({}), 0);
  EXPECT_LT(wanted_wait(answer_with("retry-after", "soon")), 0);
  EXPECT_LT(wanted_wait(answer_with("ratelimit", "\"api\";r=0")), 0);
}

TEST(MayPass, TellsFaultsOfTheMomentFromThoseThatStay) {
  for (int status : {408, 429, 500, 502, 503, 504})
    EXPECT_TRUE(may_pass(status)) << status;
  for (int status : {400, 401, 403, 404, 410, 501, 505})
    EXPECT_FALSE(may_pass(status)) << status;
}

} // namespace
} // namespace nsa::fetch
