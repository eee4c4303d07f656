// Pieces, the point at which a transfer resumes, and the effects of a cut link, a damaged byte and
// a full disk.
#include "common/base/checksum.h"
#include "common/base/file.h"
#include "common/transfer/receive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace nsa::transfer {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(Pace, DoublesWhilePiecesAreQuickAndHalvesWhenTheyAreSlow) {
  Pace pace;
  EXPECT_EQ(pace.limit(), 1u);
  for (int i = 0; i < 10; ++i)
    pace.arrived(std::chrono::milliseconds(10));
  EXPECT_EQ(pace.limit(), Pace::kMost);
  pace.arrived(std::chrono::milliseconds(500));
  EXPECT_EQ(pace.limit(), Pace::kMost) << "neither quick nor slow";
  for (int i = 0; i < 10; ++i)
    pace.arrived(std::chrono::seconds(2));
  EXPECT_EQ(pace.limit(), 1u);
}

TEST(FilePlan, BeginsWhereTheUnfinishedCopyEnds) {
  FilePlan plan(2 * kPieceBytes + 10, kPieceBytes + 1);
  const Range first{kPieceBytes + 1, kPieceBytes}, last{2 * kPieceBytes + 1, 9};
  EXPECT_EQ(plan.next(1), first);
  EXPECT_EQ(plan.next(1), std::nullopt) << "one is under way";
  EXPECT_EQ(plan.next(2), last);
  EXPECT_EQ(plan.next(9), std::nullopt) << "all are";
  EXPECT_FALSE(plan.arrived(last)) << "the other one is due";
  ASSERT_TRUE(plan.arrived(first));
  EXPECT_FALSE(plan.complete());
  EXPECT_FALSE(plan.arrived({last.offset, 8})) << "too short";
  ASSERT_TRUE(plan.arrived(last));
  EXPECT_TRUE(plan.complete());
  EXPECT_FALSE(plan.arrived(last)) << "none is due";
}

TEST(FilePlan, AWholeOrEmptyFileIsComplete) {
  EXPECT_TRUE(FilePlan(0, 0).complete());
  EXPECT_TRUE(FilePlan(5, 5).complete());
  EXPECT_TRUE(FilePlan(5, 9).complete());
  EXPECT_EQ(FilePlan(5, 5).next(1), std::nullopt);
}

TEST(Files, NamesThatLeadOutOfTheFolderAreRefused) {
  const std::string sum(32, '0');
  EXPECT_TRUE(check({{"a", 1, sum}, {"b", 1, sum}}));
  EXPECT_FALSE(check({{"a", 1, sum}, {"a", 1, sum}}));
  for (const char* name : {"", ".", "..", "../a", "/etc/passwd", "a/b"})
    EXPECT_FALSE(check({{name, 1, sum}})) << name;
  EXPECT_FALSE(check({{"a", 1, "short"}}));
}

// The files of a sender in memory. It can fail like a link.
class Memory final : public Source {
public:
  explicit Memory(std::vector<std::string> contents) : contents_(std::move(contents)) {}

  Status ask(size_t file, Range range, uint64_t) override {
    asked_.push_back({file, range});
    asked_bytes += range.bytes;
    return {};
  }
  Result<Piece> next() override {
    if (cut_after-- == 0) return fail(ErrorCode::kUnavailable, "the link was cut");
    const auto [file, range] = asked_.front();
    asked_.pop_front();
    return Piece{file, range.offset, contents_[file].substr(range.offset, range.bytes)};
  }
  void reconnect() {
    asked_.clear();
    cut_after = -1;
    asked_bytes = 0;
  }
  std::vector<std::string>& contents() { return contents_; }

  int cut_after = -1; // in pieces; negative: never
  uint64_t asked_bytes = 0;

private:
  std::vector<std::string> contents_;
  std::deque<std::pair<size_t, Range>> asked_;
};

class ReceiveTest : public testing::Test {
protected:
  void SetUp() override {
    char name[] = "/tmp/transfer_test.XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    root_ = name;
    folder_ = root_ / "checkpoints" / "step-00000010";
    partial_ = folder_.string() + ".partial";
    std::string weights(10 * kPieceBytes + 77, '\0');
    for (size_t i = 0; i < weights.size(); ++i)
      weights[i] = static_cast<char>(i * 31 + i / 4096);
    memory_ = Memory({std::move(weights), "", "manifest"});
    const char* names[] = {"model.safetensors", "empty", "manifest.json"};
    for (size_t i = 0; i < 3; ++i) {
      const std::string& content = memory_.contents()[i];
      files_.push_back({names[i], content.size(), checksum_hex(content)});
    }
  }
  void TearDown() override { fs::remove_all(root_); }

  void expect_whole() {
    EXPECT_FALSE(fs::exists(partial_));
    for (size_t i = 0; i < files_.size(); ++i)
      EXPECT_EQ(read_file(folder_ / files_[i].name).value_or("?"), memory_.contents()[i]);
  }
  void flip_byte(const fs::path& path) {
    auto text = read_file(path);
    ASSERT_TRUE(text);
    (*text)[text->size() / 2] ^= 1;
    ASSERT_TRUE(write_file_atomic(path, *text));
  }

  fs::path root_, folder_, partial_;
  Memory memory_{{}};
  std::vector<File> files_;
};

TEST_F(ReceiveTest, AFolderComesWhole) {
  const auto received = receive(files_, folder_, memory_);
  ASSERT_TRUE(received) << received.error().what;
  EXPECT_EQ(received->bytes, total_bytes(files_));
  EXPECT_EQ(received->fetched, received->bytes);
  EXPECT_EQ(received->damaged, 0);
  expect_whole();
}

TEST_F(ReceiveTest, ACutLinkLeavesWhatHasComeAndTheNextCallGoesOnThere) {
  memory_.cut_after = 4;
  const auto cut = receive(files_, folder_, memory_);
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(fs::exists(folder_)) << "nobody takes a part for the whole";
  EXPECT_EQ(fs::file_size(partial_ / files_[0].name), 4 * kPieceBytes);

  memory_.reconnect();
  const auto received = receive(files_, folder_, memory_);
  ASSERT_TRUE(received) << received.error().what;
  EXPECT_EQ(received->fetched, received->bytes - 4 * kPieceBytes);
  EXPECT_EQ(memory_.asked_bytes, received->fetched);
  expect_whole();
}

TEST_F(ReceiveTest, ADamagedByteOfAnUnfinishedCopyCostsThatFileAlone) {
  memory_.cut_after = 4;
  ASSERT_FALSE(receive(files_, folder_, memory_));
  flip_byte(partial_ / files_[0].name);
  memory_.reconnect();
  const auto received = receive(files_, folder_, memory_);
  ASSERT_TRUE(received) << received.error().what;
  EXPECT_EQ(received->damaged, 1);
  expect_whole();
}

TEST_F(ReceiveTest, AWholeCopyIsCheckedAndNothingIsFetchedAgain) {
  ASSERT_TRUE(receive(files_, folder_, memory_));
  memory_.reconnect();
  const auto again = receive(files_, folder_, memory_);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->fetched, 0u);
  flip_byte(folder_ / files_[2].name);
  const auto mended = receive(files_, folder_, memory_);
  ASSERT_TRUE(mended);
  EXPECT_EQ(mended->damaged, 1);
  EXPECT_EQ(mended->fetched, files_[2].bytes) << "the good files stay";
  expect_whole();
}

TEST_F(ReceiveTest, ASendersDamagedFileIsNamedAndTheFolderIsNotThere) {
  memory_.contents()[0][5] ^= 1;
  const auto received = receive(files_, folder_, memory_);
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(received.error().what, HasSubstr("model.safetensors"));
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(ReceiveTest, WhatIsNoFileOfTheListIsNotKept) {
  ASSERT_TRUE(make_folder(partial_ / "model.safetensors" / "deep"));
  ASSERT_TRUE(write_file_atomic(partial_ / "other", "x"));
  ASSERT_TRUE(write_file_atomic(partial_ / "manifest.json", std::string(100, 'x')));
  const auto received = receive(files_, folder_, memory_);
  ASSERT_TRUE(received) << received.error().what;
  EXPECT_FALSE(fs::exists(folder_ / "other"));
  expect_whole();
}

TEST_F(ReceiveTest, MoreThanTheDiskHoldsIsRefusedBeforeAnythingIsAskedFor) {
  files_[0].bytes = uint64_t{1} << 60;
  const auto received = receive(files_, folder_, memory_);
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().code, ErrorCode::kExhausted);
  EXPECT_THAT(received.error().next, HasSubstr("df -h"));
  EXPECT_EQ(memory_.asked_bytes, 0u);
}

} // namespace
} // namespace nsa::transfer
