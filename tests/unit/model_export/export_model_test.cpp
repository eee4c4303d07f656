// An exported folder is complete or absent. The model card escapes texts that people wrote.
#include "cli/model_export/export_model.h"
#include "cli/model_export/tokenizer_files.h"

#include "common/base/checksum.h"
#include "common/base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::model_export {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class ExportModelTest : public ::testing::Test {
protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "nsa-export-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    request_.checkpoint = folder_ / "step-00000004";
    request_.out = folder_ / "out";
    request_.facts.spec.model.vocabulary = 2;
    request_.facts.spec.model.dimension = 3;
    request_.facts.detail.summary.name = "tiny";
    request_.facts.checkpoint.step = 4;
    fs::create_directory(request_.checkpoint);
    const std::vector<float> embedding(6, 0.5f);
    const auto written = safetensors::write(request_.checkpoint / "model.safetensors",
                                            {{"embedding.weight",
                                              safetensors::DataType::kF32,
                                              {2, 3},
                                              std::as_bytes(std::span(embedding))}},
                                            {});
    ASSERT_TRUE(written);
    request_.facts.checkpoint.files = {{"model.safetensors", written->bytes, written->checksum}};
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Returns the names beside the checkpoint.
  std::vector<std::string> left() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_))
      if (entry.path() != request_.checkpoint) names.push_back(entry.path().filename());
    return names;
  }

  fs::path folder_;
  Request request_;
};

TEST_F(ExportModelTest, WritesAWholeFolder) {
  const auto written = export_model(request_);
  ASSERT_TRUE(written) << written.error().what;
  EXPECT_EQ(written->parameters, 6);
  EXPECT_EQ(left(), std::vector<std::string>{"out"});
  for (const char* name : {"config.json", "generation_config.json", "model.safetensors",
                           "modeling_nsa.py", "README.md"})
    EXPECT_TRUE(fs::exists(request_.out / name)) << name;
  EXPECT_FALSE(fs::exists(request_.out / "tokenizer.json"));
}

TEST_F(ExportModelTest, LeavesWhatIsThereUnlessItIsToReplaceIt) {
  fs::create_directory(request_.out);
  ASSERT_TRUE(write_file_atomic(request_.out / "mine", "x"));
  const auto refused = export_model(request_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_TRUE(fs::exists(request_.out / "mine"));
  request_.replace = true;
  ASSERT_FALSE(export_model(request_)) << "it is no model that is to be replaced";
  EXPECT_TRUE(fs::exists(request_.out / "mine"));
  ASSERT_TRUE(write_file_atomic(request_.out / "config.json", "x"));
  ASSERT_TRUE(write_file_atomic(request_.out / "model.safetensors", "x"));
  ASSERT_TRUE(export_model(request_));
  EXPECT_FALSE(fs::exists(request_.out / "mine"));
  EXPECT_TRUE(fs::file_size(request_.out / "config.json") > 1);
}

TEST_F(ExportModelTest, TakesNoDamagedCheckpoint) {
  const fs::path file = request_.checkpoint / "model.safetensors";
  auto bytes = read_file(file);
  ASSERT_TRUE(bytes);
  bytes->back() ^= 1;
  ASSERT_TRUE(write_file_atomic(file, *bytes));
  const auto refused = export_model(request_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(left().empty());
}

TEST_F(ExportModelTest, LeavesNothingWhereItFailsHalfWay) {
  request_.facts.tokenizer =
      // Its ranks file is missing, which the export notices after the weights.
      dataset::TokenizerKind::kGpt2;
  request_.ranks_file = folder_ / "nowhere";
  const auto refused = export_model(request_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(left().empty());
}

TEST_F(ExportModelTest, TheCardNamesFaultsAndNoStops) {
  wire::AttemptView stopped, failed;
  stopped.attempt = 1;
  stopped.reason = "stopped by ann";
  failed.attempt = 2;
  failed.failure_class = wire::FailureClass::kHang;
  failed.reason = "rank 1 stopped";
  request_.facts.spec.origin.checkpoint = "k3fm2@400";
  request_.facts.detail.attempts = {stopped};
  request_.facts.checkpoint.attempt = 2;
  const std::string card = model_card(request_.facts, 6, "float32", kSeparatorText);
  EXPECT_THAT(card, HasSubstr("None: the run was stopped and continued"));
  EXPECT_THAT(card, Not(HasSubstr("stopped by ann")));
  EXPECT_THAT(card, HasSubstr("| began with the weights of | k3fm2@400 |"));
  request_.facts.detail.attempts = {stopped, failed};
  request_.facts.checkpoint.attempt = 3;
  const std::string other = model_card(request_.facts, 6, "float32", kSeparatorText);
  EXPECT_THAT(other, HasSubstr("hang: rank 1 stopped"));
  EXPECT_THAT(other, Not(HasSubstr("stopped by ann")));
}

TEST_F(ExportModelTest, TheCardEscapesWhatPeopleWrote) {
  request_.facts.detail.summary.note = "a | b <script> \x1b[2J";
  request_.facts.detail.summary.inject = "kill rank 1";
  wire::AttemptView first;
  first.attempt = 1;
  first.failure_class = wire::FailureClass::kHang;
  first.reason = "rank 1 stopped";
  request_.facts.detail.attempts = {first};
  request_.facts.checkpoint.attempt = 2;
  const std::string card = model_card(request_.facts, 6, "float32", kSeparatorText);
  EXPECT_THAT(card, HasSubstr("a \\| b \\<script>"));
  EXPECT_THAT(card, Not(HasSubstr("\x1b")));
  EXPECT_THAT(card, HasSubstr("injected on purpose: kill rank 1"));
  EXPECT_THAT(card, HasSubstr("hang: rank 1 stopped"));
}

} // namespace
} // namespace nsa::model_export
