// The report when a device is out of memory: the contents of the file, and the text of the error.
#include "worker/runtime/out_of_memory.h"

#include "common/base/file.h"
#include "common/base/json.h"
#include "tests/support/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::runtime {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

nlohmann::json written(const std::filesystem::path& file) {
  return parse_json(read_file(file).value(), file.string()).value();
}

TEST(OutOfMemory, SizesThatTakeMostComeFirst) {
  const test::TemporaryFolder folder;
  const auto file = out_of_memory_file(folder.path(), 3);
  EXPECT_EQ(file.filename(), "out-of-memory-3.json");
  OutOfMemory held{.asked_bytes = 900 * kMiB,
                   .device_bytes = 4000 * kMiB,
                   .free_bytes = 5 * kMiB,
                   .reserved_bytes = 3000 * kMiB};
  held.live_blocks = {kMiB, 512 * kMiB, 700 * kMiB, kMiB, 512 * kMiB, 2 * kMiB};
  write_out_of_memory(file, held);
  const auto report = written(file);
  EXPECT_EQ(report.at("asked_bytes"), 900 * kMiB);
  EXPECT_EQ(report.at("reserved_bytes"), 3000 * kMiB);
  EXPECT_EQ(report.at("live_bytes"), (2 + 2 + 700 + 1024) * kMiB);
  EXPECT_EQ(report.at("live_blocks"), 6);
  ASSERT_EQ(report.at("largest").size(), 4u);
  EXPECT_EQ(report.at("largest")[0], nlohmann::json({{"bytes", 512 * kMiB}, {"blocks", 2}}));
  EXPECT_EQ(report.at("largest")[1], nlohmann::json({{"bytes", 700 * kMiB}, {"blocks", 1}}));
  EXPECT_EQ(largest_blocks_text(file),
            ". Most is in 2 blocks of 512.0 MiB, 1 block of 700.0 MiB, 2 blocks of 1.0 MiB. See " +
                file.string());
}

TEST(OutOfMemory, AHundredSizesAreThirtyTwoLines) {
  const test::TemporaryFolder folder;
  const auto file = out_of_memory_file(folder.path(), 0);
  OutOfMemory held;
  for (uint64_t i = 1; i <= 100; ++i)
    held.live_blocks.push_back(i * 512);
  write_out_of_memory(file, held);
  const auto report = written(file);
  ASSERT_EQ(report.at("largest").size(), 32u);
  EXPECT_EQ(report.at("largest")[0].at("bytes"), 51200);
}

TEST(OutOfMemory, WithoutAFileTheTextIsEmptyAndNothingThrows) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(largest_blocks_text(folder.path() / "none.json"), "");
  // Writes only a warning in the log.
  write_out_of_memory(folder.path() / "no" / "such" / "folder.json", {});
  const auto torn = folder.path() / "torn.json";
  ASSERT_TRUE(write_file_atomic(torn, "{\"largest\": [", 0644, Survives::kProcessCrash));
  EXPECT_EQ(largest_blocks_text(torn), "");
}

} // namespace
} // namespace nsa::runtime
