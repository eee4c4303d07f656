#include "daemon/cluster/join_token.h"

#include "daemon/cluster/agent.h"

#include <gtest/gtest.h>

namespace nsa::cluster {
namespace {

const std::string kFingerprint(64, 'a');

TEST(JoinToken, IsReadAsItWasWritten) {
  const JoinToken made = *JoinToken::make(kFingerprint);
  const auto read = JoinToken::parse(made.text());
  ASSERT_TRUE(read) << read.error().what;
  EXPECT_EQ(read->secret, made.secret);
  EXPECT_EQ(read->fingerprint, kFingerprint);
  EXPECT_EQ(read->digest(), made.digest());
  EXPECT_NE(JoinToken::make(kFingerprint)->secret, made.secret);
}

TEST(JoinToken, TheDigestDoesNotHoldTheSecret) {
  const JoinToken made = *JoinToken::make(kFingerprint);
  EXPECT_EQ(made.digest().size(), 64u);
  EXPECT_EQ(made.digest().find(made.secret.substr(0, 8)), std::string::npos);
}

TEST(JoinToken, EveryCutOrChangedTextIsRefused) {
  const std::string text = JoinToken::make(kFingerprint)->text();
  for (size_t length = 0; length < text.size(); ++length)
    EXPECT_FALSE(JoinToken::parse(text.substr(0, length))) << length;
  EXPECT_FALSE(JoinToken::parse(text + "a"));
  for (size_t at = 0; at < text.size(); ++at) {
    std::string changed = text;
    changed[at] = '!';
    EXPECT_FALSE(JoinToken::parse(changed)) << at;
  }
}

TEST(HeadAddress, TakesNamesAndBothKindsOfAddresses) {
  for (const std::string text : {"head:9465", "10.0.0.1:1", "[fe80::1]:65535"}) {
    const auto head = HeadAddress::parse(text);
    ASSERT_TRUE(head) << text;
    EXPECT_EQ(head->text(), text);
  }
  EXPECT_EQ(HeadAddress::parse("[fe80::1]:65535")->host, "fe80::1");
  for (const std::string text : {"", "head", "head:", ":1", "head:0", "head:65536", "head:1x"})
    EXPECT_FALSE(HeadAddress::parse(text)) << text;
}

} // namespace
} // namespace nsa::cluster
