#include "common/tls/certificates.h"

#include "common/base/file.h"

#include <filesystem>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

namespace nsa::tls {
namespace {

constexpr Duration kDay = std::chrono::hours(24);

class CertificatesTest : public testing::Test {
protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "nsa-certificates-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
  WallTime now_ = WallTime::now();
};

TEST_F(CertificatesTest, ASignedCertificateNamesItsNodeAndItsEnd) {
  const Authority authority = *Authority::make(now_);
  const PrivateKey key = *PrivateKey::make();
  const auto made = authority.sign(*key.request("ignored"), "node-7", now_, 30 * kDay);
  ASSERT_TRUE(made) << made.error().what;
  EXPECT_EQ(made->node(), "node-7");
  EXPECT_EQ(made->serial().size(), 32u);
  EXPECT_EQ(made->fingerprint().size(), 64u);
  EXPECT_NEAR(to_seconds(made->expires() - now_), to_seconds(30 * kDay), 2);
}

TEST_F(CertificatesTest, NoSerialNumberIsGivenTwice) {
  const Authority authority = *Authority::make(now_);
  const std::string request = *PrivateKey::make()->request("a");
  EXPECT_NE(authority.sign(request, "a", now_, kDay)->serial(),
            authority.sign(request, "a", now_, kDay)->serial());
}

TEST_F(CertificatesTest, ARequestThatAnotherKeySignedIsRefused) {
  const Authority authority = *Authority::make(now_);
  std::string request = *PrivateKey::make()->request("a");
  // Changes one character of the signature, near the end of the text.
  char& changed = request[request.find("-----END") - 20];
  changed = changed == 'A' ? 'B' : 'A';
  const auto made = authority.sign(request, "a", now_, kDay);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
}

TEST_F(CertificatesTest, NamesThatAreNoneAreRefused) {
  const Authority authority = *Authority::make(now_);
  const std::string request = *PrivateKey::make()->request("a");
  for (const std::string name : {"", "-x", "..", "a/b", "a b", "a\nb", "a,DNS:head"}) {
    const auto made = authority.sign(request, name, now_, kDay);
    ASSERT_FALSE(made) << name;
    EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument) << name;
  }
  EXPECT_TRUE(is_node_name(std::string(63, 'a')));
  EXPECT_FALSE(is_node_name(std::string(64, 'a')));
}

TEST_F(CertificatesTest, TheAuthorityIsTheSameAfterARestart) {
  const auto first = Authority::load_or_make(folder_ / "cluster", now_);
  ASSERT_TRUE(first) << first.error().what;
  const auto second = Authority::load_or_make(folder_ / "cluster", now_);
  ASSERT_TRUE(second) << second.error().what;
  EXPECT_EQ(first->certificate().fingerprint(), second->certificate().fingerprint());
  struct stat info{};
  ASSERT_EQ(::stat((folder_ / "cluster/authority.key").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(CertificatesTest, ADamagedAuthorityIsNeverReplaced) {
  const auto first = Authority::load_or_make(folder_, now_);
  ASSERT_TRUE(first);
  for (const char* broken : {"authority.key", "authority.crt"}) {
    const auto kept = *read_file(folder_ / broken);
    for (const std::string& text : {std::string(), kept.substr(0, kept.size() / 2)}) {
      ASSERT_TRUE(write_file_atomic(folder_ / broken, text, 0600));
      const auto read = Authority::load_or_make(folder_, now_);
      ASSERT_FALSE(read) << broken;
      EXPECT_EQ(read.error().code, ErrorCode::kCorrupt) << read.error().what;
      EXPECT_EQ(*read_file(folder_ / broken), text);
    }
    std::filesystem::remove(folder_ / broken);
    EXPECT_FALSE(Authority::load_or_make(folder_, now_)) << "without " << broken;
    ASSERT_TRUE(write_file_atomic(folder_ / broken, kept, 0600));
  }
  EXPECT_TRUE(Authority::load_or_make(folder_, now_));
}

TEST_F(CertificatesTest, AKeyOfAnotherAuthorityIsNoticed) {
  ASSERT_TRUE(Authority::load_or_make(folder_ / "a", now_));
  ASSERT_TRUE(Authority::load_or_make(folder_ / "b", now_));
  std::filesystem::copy_file(folder_ / "b/authority.key", folder_ / "a/authority.key",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_FALSE(Authority::load_or_make(folder_ / "a", now_));
}

TEST_F(CertificatesTest, TextsThatAreNoneAreRefused) {
  for (const std::string text : {"", "-----BEGIN CERTIFICATE-----\n", "\x00\xff"}) {
    EXPECT_FALSE(Certificate::from_pem(text));
    EXPECT_FALSE(PrivateKey::from_pem(text));
  }
}

} // namespace
} // namespace nsa::tls
