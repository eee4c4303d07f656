// What nsad reads from a run's folder.
#include "daemon/queries/run_files.h"

#include "common/base/checksum.h"
#include "common/base/file.h"
#include "common/manifest/manifest.h"
#include "daemon/privilege/direct_host.h"
#include "tests/support/temporary_folder.h"

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

TEST_F(ControlTest, CheckpointsAreVerifiedFromTheirFiles) {
  manifest::Manifest manifest;
  manifest.run_id = "krun1";
  std::vector<store::CheckpointRow> rows;
  for (const uint64_t step : {10, 20, 30}) {
    manifest.step = step;
    const auto folder = folder_ / "checkpoints" / manifest::folder_name(step);
    ASSERT_TRUE(make_folder(folder));
    ASSERT_TRUE(write_file_atomic(folder / "weights", "weights"));
    manifest.files = {{"weights", 7, checksum_hex("weights")}};
    ASSERT_TRUE(write_file_atomic(folder / "manifest.json", manifest::to_json(manifest).dump()));
    store::CheckpointRow& row = rows.emplace_back();
    row.step = step;
    row.folder = folder.string();
    row.state = wire::CheckpointState::kUnverified;
  }
  const auto folder_of = [&](size_t i) { return std::filesystem::path(rows[i].folder); };
  ASSERT_TRUE(write_file_atomic(folder_of(1) / "weights", "weighTs")); // changed by one bit
  std::filesystem::remove_all(folder_of(2));
  const auto states = [&](bool verify) {
    std::string text;
    const auto found = privilege::DirectHost().list_checkpoints(0, folder_.string(), verify);
    for (const auto& view : checkpoints_on_disk(rows, "krun1", *found, verify))
      text += std::to_string(view.step) + " " + view.state.text() + "; ";
    return text;
  };
  EXPECT_EQ(states(false), "30 deleted; 20 unverified; 10 unverified; ");
  EXPECT_EQ(states(true), "30 deleted; 20 corrupt; 10 verified; ");
  // A FIFO instead of a manifest makes that checkpoint unusable, but delays nothing.
  std::filesystem::remove(folder_of(0) / "manifest.json");
  ASSERT_EQ(::mkfifo((folder_of(0) / "manifest.json").c_str(), 0600), 0);
  EXPECT_EQ(states(false), "30 deleted; 20 unverified; 10 corrupt; ");
}

TEST_F(ControlTest, WhatARunTookIsReadFromItsSummaryWhateverLiesThere) {
  EXPECT_TRUE(read_came(folder_.string()).is_null());
  ASSERT_TRUE(write_file_atomic(folder_ / "summary.json", R"({"came": {"tokens": 7}})"));
  EXPECT_EQ(read_came(folder_.string())["tokens"], 7);
  const auto damage = [&] { return read_came(folder_.string()).value("damaged", ""); };
  ASSERT_TRUE(write_file_atomic(folder_ / "summary.json", "[1"));
  EXPECT_NE(damage().find("summary.json, line 1, column 3: not JSON"), std::string::npos);
  ASSERT_TRUE(write_file_atomic(folder_ / "summary.json", std::string(200000, '[')));
  EXPECT_NE(damage().find("summary.json, line 1, column 65: nested"), std::string::npos);
  std::filesystem::remove(folder_ / "summary.json");
  ASSERT_EQ(::mkfifo((folder_ / "summary.json").c_str(), 0600), 0);
  EXPECT_NE(damage().find("is a FIFO"), std::string::npos);
}

} // namespace
} // namespace nsa::control
