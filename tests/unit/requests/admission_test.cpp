// Which runs are refused at submission.
#include "daemon/requests/admission.h"

#include "tests/support/temporary_folder.h"

#include <algorithm>
#include <filesystem>
#include <gtest/gtest.h>
#include <sys/stat.h>

namespace nsa::control {
namespace {

class ControlTest : public testing::Test {
protected:
  test::TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(ControlTest, AFifoInThePlaceOfADataSetIsAMistakeAtItsPlace) {
  ASSERT_EQ(::mkfifo((folder_ / "dataset.json").c_str(), 0600), 0);
  const RunFile file{"schema = 1\n[data]\npath = \"" + folder_.string() +
                         "\"\n[train]\nsteps = 10\n[parallel]\ndevice = \"cpu\"\n",
                     "run.toml",
                     "/",
                     {}};
  const auto refused = admit(file, {4, 0, false});
  ASSERT_FALSE(refused);
  ASSERT_FALSE(refused.error().problems.empty());
  EXPECT_EQ(refused.error().problems[0].line, 3);
  EXPECT_NE(refused.error().problems[0].what.find("is a FIFO"), std::string::npos);
  std::filesystem::remove(folder_ / "dataset.json");
  std::filesystem::create_symlink("/dev/zero", folder_ / "dataset.json");
  EXPECT_NE(admit(file, {4, 0, false}).error().problems[0].what.find("is a device"),
            std::string::npos);
}

TEST_F(ControlTest, AnAnswerTellsABoundedNumberOfMistakes) {
  std::string toml = "schema = 1\n";
  for (int i = 0; i < 1000; ++i)
    toml += "unknown" + std::to_string(i) + " = 1\n";
  const auto refused = admit({toml, "run.toml", "/", {}}, {4, 0, false});
  ASSERT_FALSE(refused);
  const auto& problems = refused.error().problems;
  EXPECT_LT(problems.size(), 60u);
  EXPECT_TRUE(std::any_of(problems.begin(), problems.end(), [](const wire::ProblemView& problem) {
    return problem.what == "and 950 more keys or tables that nothing reads";
  }));
}

} // namespace
} // namespace nsa::control
