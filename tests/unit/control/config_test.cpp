// nsad.toml as nsad reads it, together with facts about the host.
#include "daemon/control/config.h"

#include "common/base/file.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_paths.h"

#include <filesystem>
#include <gtest/gtest.h>

namespace nsa::control {
namespace {

using test::TemporaryFolder;

class ControlTest : public testing::Test {
protected:
  test::TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(ControlTest, AMissingNodeFileGivesDefaultsThatFitTheQuickstart) {
  const auto node = read_node_file((folder_ / "nsad.toml").string(), false);
  ASSERT_TRUE(node) << node.error().what;
  EXPECT_GE(node->resources.cpu_slots, 2);
  EXPECT_FALSE(read_node_file((folder_ / "nsad.toml").string(), true))
      << "one that was named must be there";
}

TEST_F(ControlTest, EveryMistakeOfANodeFileIsTold) {
  const auto path = folder_ / "nsad.toml";
  ASSERT_TRUE(
      write_file_atomic(path, "schema = 1\n[resources]\ncpu_slot = 2\n[metrics]\nport = 70000\n"));
  const auto node = read_node_file(path.string(), false);
  ASSERT_FALSE(node);
  EXPECT_NE(node.error().what.find("cpu_slot"), std::string::npos);
  EXPECT_NE(node.error().what.find("port"), std::string::npos);
}

TEST(NodeFile, TheShippedOneIsRight) {
  EXPECT_TRUE(read_node_file(test::source_folder() + "/configs/nsad.toml", true));
}

TEST(NodeFile, AnUnknownGroupOfAdministratorsIsRefused) {
  spec::NodeSpec node;
  EXPECT_FALSE(administrators_of(node)->has_value());
  node.access.administrators = "root";
  EXPECT_EQ(**administrators_of(node), 0u);
  node.access.administrators = "no-such-group-here";
  EXPECT_FALSE(administrators_of(node));
}

TEST(NodeFile, ATokenThatOthersMayReadIsRefused) {
  TemporaryFolder folder;
  spec::NodeSpec node;
  EXPECT_EQ(*metrics_token_of(node), "");
  const auto path = folder.write("token", "0123456789abcdef0123\n");
  node.metrics.token_file = path.string();
  std::filesystem::permissions(path, std::filesystem::perms(0644));
  EXPECT_EQ(metrics_token_of(node).error().code, ErrorCode::kPermission);
  std::filesystem::permissions(path, std::filesystem::perms(0600));
  EXPECT_EQ(metrics_token_of(node).value_or(""), "0123456789abcdef0123");
  folder.write("token", "short\n");
  EXPECT_FALSE(metrics_token_of(node));
  node.metrics.token_file = (folder.path() / "none").string();
  EXPECT_FALSE(metrics_token_of(node));
}

} // namespace
} // namespace nsa::control
