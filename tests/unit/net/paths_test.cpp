#include "common/net/paths.h"

#include <cstdlib>
#include <filesystem>
#include <gtest/gtest.h>
#include <unistd.h>

namespace nsa::net {
namespace {

class Paths : public ::testing::Test {
protected:
  void SetUp() override {
    char name[] = "/tmp/nsa-paths-XXXXXX";
    folder_ = ::mkdtemp(name);
    ::setenv("XDG_STATE_HOME", (folder_ + "/state").c_str(), 1);
    ::setenv("XDG_CONFIG_HOME", (folder_ + "/config").c_str(), 1);
    ::setenv("XDG_RUNTIME_DIR", folder_.c_str(), 1);
    ::unsetenv("NSA_SOCKET");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(Paths, FollowTheXdgVariables) {
  const auto paths = user_paths();
  ASSERT_TRUE(paths);
  EXPECT_EQ(paths->state, folder_ + "/state/nsa");
  EXPECT_EQ(paths->log, folder_ + "/state/nsa/nsad.log");
  EXPECT_EQ(paths->config, folder_ + "/config/nsa/nsad.toml");
  EXPECT_EQ(paths->socket, folder_ + "/nsa/nsad.sock");
  EXPECT_EQ(paths->socket_candidates, (std::vector<std::string>{folder_ + "/nsa/nsad.sock",
                                                                folder_ + "/state/nsa/nsad.sock"}))
      << "the system daemon is another one";
  EXPECT_FALSE(paths->named);
}

TEST_F(Paths, WithoutARuntimeFolderTheSocketIsBesideTheState) {
  ::unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(user_paths()->socket, folder_ + "/state/nsa/nsad.sock");
  ::setenv("XDG_RUNTIME_DIR", (folder_ + "/missing").c_str(), 1);
  EXPECT_EQ(user_paths()->socket, folder_ + "/state/nsa/nsad.sock");
}

TEST_F(Paths, RelativeVariablesAreRefused) {
  ::setenv("XDG_STATE_HOME", "state", 1);
  EXPECT_FALSE(user_paths());
}

TEST_F(Paths, AGivenSocketIsTheOnlyOne) {
  ::setenv("NSA_SOCKET", "/x/y.sock", 1);
  EXPECT_EQ(user_paths()->socket_candidates, std::vector<std::string>{"/x/y.sock"});
  EXPECT_TRUE(user_paths()->named);
}

TEST_F(Paths, TheSocketIsPublishedBesideTheState) {
  const auto paths = user_paths();
  std::filesystem::create_directories(paths->state);
  ASSERT_TRUE(publish_socket(*paths));
  ASSERT_TRUE(publish_socket(*paths)) << "again, after a restart";
  EXPECT_EQ(std::filesystem::read_symlink(paths->state + "/nsad.sock"), paths->socket);
}

} // namespace
} // namespace nsa::net
