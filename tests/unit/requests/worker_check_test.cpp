// What nsad finds out about the worker program before a run starts.
#include "daemon/requests/worker_check.h"

#include "common/base/file.h"
#include "daemon/run_metrics/provenance.h"
#include "tests/support/temporary_folder.h"

#include <filesystem>
#include <gtest/gtest.h>

namespace nsa::control {
namespace {

using test::TemporaryFolder;

TEST(WorkerCheck, FindsWhatTheLoaderDoesNot) {
  EXPECT_FALSE(program_interpreter("/proc/self/exe").empty());
  EXPECT_TRUE(find_libraries("/proc/self/exe"));
  TemporaryFolder folder;
  const auto script = folder.write("worker.sh", "#!/bin/sh\nexit 1\n");
  EXPECT_TRUE(find_libraries(script)) << "a script has no libraries";
  // A copy of this program that needs another library. The new name has the same number of bytes.
  std::string program = *read_file("/proc/self/exe", 1ull << 32);
  const std::string before = std::string("libstdc++.so.6") + '\0';
  for (size_t at = 0; (at = program.find(before, at)) != std::string::npos;)
    program.replace(at, before.size() - 1, "libtorch_cp.so");
  const auto broken = folder.write("broken", program);
  std::filesystem::permissions(broken, std::filesystem::perms(0755));
  const Status found = find_libraries(broken);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(found.error().what.find("LibTorch is missing"), std::string::npos)
      << found.error().what;
  EXPECT_NE(found.error().what.find("libtorch_cp.so"), std::string::npos) << found.error().what;
  EXPECT_NE(found.error().next.find("make setup"), std::string::npos) << found.error().next;
}

TEST(WorkerCheck, LooksAgainWhenTheProgramChanges) {
  EXPECT_EQ(WorkerCheck("/nowhere/nsa-worker").check().error().code, ErrorCode::kUnsupported);
  TemporaryFolder folder;
  const auto program = folder.path() / "worker";
  std::filesystem::copy_file("/bin/sh", program);
  WorkerCheck check(program.string());
  EXPECT_TRUE(check.check());
  EXPECT_TRUE(check.check()) << "known";
  std::filesystem::permissions(program, std::filesystem::perms(0644));
  EXPECT_FALSE(check.check()) << "nobody can start that";
}

} // namespace
} // namespace nsa::control
