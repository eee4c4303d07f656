// Readings of the node, and the bytes of a folder.
#include "daemon/proc/node_readings.h"

#include "daemon/privilege/direct_host.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace nsa {
namespace {

TEST(NodeReadings, TokensDifferAndReadingsAreSane) {
  EXPECT_EQ(proc::random_token().size(), 32u);
  EXPECT_NE(proc::random_token(), proc::random_token());
  EXPECT_GT(proc::disk_space("/").second, 0u);
  test::TemporaryFolder folder;
  folder.write("a", "12345");
  folder.write("b/c", "123");
  EXPECT_EQ(privilege::folder_bytes(folder.path()), 8u);
  EXPECT_EQ(privilege::folder_bytes((folder.path() / "none").string()), 0u);
  EXPECT_GE(proc::read_run_delay_seconds(::getpid()), 0);
  EXPECT_EQ(proc::read_run_delay_seconds(0), 0);
}

} // namespace
} // namespace nsa
