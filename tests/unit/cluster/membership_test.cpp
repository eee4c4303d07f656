// The files on a node's disk, damaged in every way.
#include "cluster_fixture.h"
#include "common/base/file.h"

#include <sys/stat.h>

namespace nsa::cluster {
namespace {

TEST_F(ClusterTest, AMembershipIsReadAsItWasWritten) {
  const auto made = join("node-1", *head_->make_token());
  ASSERT_TRUE(made) << made.error().what;
  const auto read = Membership::load(folder_ / "node-1");
  ASSERT_TRUE(read) << read.error().what;
  EXPECT_EQ(read->node, "node-1");
  EXPECT_EQ(read->head.text(), made->head.text());
  EXPECT_EQ(read->identity.certificate.serial(), made->identity.certificate.serial());
  struct stat info{};
  ASSERT_EQ(::stat((folder_ / "node-1/membership.json").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(ClusterTest, ADamagedMembershipSaysHowToJoinAgain) {
  EXPECT_EQ(Membership::load(folder_ / "none").error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(join("node-1", *head_->make_token()));
  const auto path = folder_ / "node-1/membership.json";
  const std::string whole = *read_file(path);
  for (size_t length = 0; length < whole.size() - 2; length += 37) {
    ASSERT_TRUE(write_file_atomic(path, whole.substr(0, length), 0600));
    const auto read = Membership::load(folder_ / "node-1");
    ASSERT_FALSE(read) << length;
    EXPECT_EQ(read.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(read.error().next.find("nsactl node token"), std::string::npos);
  }
}

} // namespace
} // namespace nsa::cluster
