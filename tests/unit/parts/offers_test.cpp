// Folders that one node fetches from another. Both ends are real; the test plays the link.
#include "common/base/checksum.h"
#include "daemon/parts/fetches.h"
#include "daemon/parts/nodes_launcher.h"
#include "daemon/parts/offers.h"
#include "daemon/parts/private_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace nsa::parts {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class OffersTest : public testing::Test {
protected:
  void SetUp() override {
    char name[] = "/tmp/offers_test.XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    root_ = name;
    ASSERT_TRUE(make_folder(root_ / "runs/k3fm2/checkpoints/step-00000020"));
    offered_.node = "bee";
    offered_.folder = root_ / "runs/k3fm2/checkpoints/step-00000020";
    const std::string weights(5 * transfer::kPieceBytes + 3, 'w');
    ASSERT_TRUE(write_file_atomic(fs::path(offered_.folder) / "model.safetensors", weights));
    offered_.files = {{"model.safetensors", weights.size(), checksum_hex(weights)}};
    offered_.is_wanted = [this] { return wanted_; };
    offered_.progress = [this](uint64_t here, uint64_t) { here_.push_back(here); };
    offers_ = std::make_unique<Offers>(
        loop_, [this](const std::string&, const wire::Frame& frame) { return deliver(frame); });
    fetches_ = std::make_unique<Fetches>(loop_, [this](const wire::Frame& frame) {
      if (!cut_) offers_->take("bee", frame);
      return Status();
    });
  }
  void TearDown() override { fs::remove_all(root_); }

  // Delivers a frame to the node that fetches.
  Status deliver(const wire::Frame& frame) {
    if (refusals_-- > 0) return fail(ErrorCode::kExhausted, "too much waits");
    sent_.push_back(frame);
    fetches_->take(frame);
    return {};
  }
  Result<transfer::Received> fetch(uint64_t offer) {
    Preparation wanted;
    wanted.offers = {{offer, "checkpoints/step-00000020", offered_.files}};
    wanted.texts = {{"run.toml", "schema = 1"}};
    wanted.open_runs = {"k3fm2"};
    const std::vector<std::shared_ptr<transfer::Source>> sources = {fetches_->open(offer)};
    std::optional<Result<transfer::Received>> result;
    calls_.run(
        {"", "a fetch"},
        [state = root_ / "agent", wanted, sources] {
          return fill_private_folder(state, "k3fm2", wanted, sources);
        },
        [&](Result<transfer::Received> received) {
          result = std::move(received);
          loop_.stop();
        });
    EXPECT_TRUE(loop_.run_for(std::chrono::seconds(20)));
    return result ? std::move(*result) : fail(ErrorCode::kInternal, "no answer");
  }
  std::string reason_of_refusal(const std::string& node, const Ask& ask) {
    sent_.clear();
    offers_->take(node, frame_of(Message::kAsk, ask));
    if (sent_.size() != 1 || sent_[0].type != static_cast<uint8_t>(Message::kNoPiece)) return "";
    return cluster::read_frame<NoPiece>(sent_[0])->why;
  }

  net::EventLoop loop_;
  fs::path root_;
  OfferedFolder offered_;
  bool wanted_ = true, cut_ = false;
  int refusals_ = 0;
  std::vector<uint64_t> here_;
  std::vector<wire::Frame> sent_;
  std::unique_ptr<Offers> offers_;
  std::unique_ptr<Fetches> fetches_;
  net::Offload calls_{loop_, {1, 1, 8, 8, Duration::zero()}};
};

TEST_F(OffersTest, AFolderComesWholeAndItsProgressIsTold) {
  refusals_ = 2; // the link refuses two frames, as if its queue were full
  const auto received = fetch(offers_->add(offered_));
  ASSERT_TRUE(received) << received.error().what;
  EXPECT_EQ(received->fetched, offered_.files[0].bytes);
  const fs::path copy = root_ / "agent/private/k3fm2";
  EXPECT_EQ(read_file(copy / "run.toml").value_or(""), "schema = 1");
  EXPECT_EQ(fs::file_size(copy / "checkpoints/step-00000020/model.safetensors"),
            offered_.files[0].bytes);
  ASSERT_FALSE(here_.empty());
  EXPECT_EQ(here_.front(), 0u);
  EXPECT_TRUE(std::is_sorted(here_.begin(), here_.end()));
}

TEST_F(OffersTest, AnotherNodeGetsNothingAndNobodyGetsWhatIsNotOffered) {
  const uint64_t id = offers_->add(offered_);
  EXPECT_THAT(reason_of_refusal("cat", {id, 0, 0, 10, 0}), HasSubstr("nothing is offered"));
  EXPECT_THAT(reason_of_refusal("bee", {id + 1, 0, 0, 10, 0}), HasSubstr("nothing is offered"));
  const uint64_t size = offered_.files[0].bytes;
  for (const Ask& ask : {Ask{id, 1, 0, 10, 0}, Ask{id, 0, size, 1, 0}, Ask{id, 0, size - 1, 2, 0},
                         Ask{id, 0, ~uint64_t{0}, 10, 0}, Ask{id, 0, 0, 0, 0},
                         Ask{id, 0, 0, transfer::kPieceBytes + 1, 0}})
    EXPECT_THAT(reason_of_refusal("bee", ask), HasSubstr("no piece")) << ask.offset;
  offers_->remove(id);
  EXPECT_THAT(reason_of_refusal("bee", {id, 0, 0, 10, 0}), HasSubstr("nothing is offered"));
}

TEST_F(OffersTest, ACancelledRunsFilesAreNotSentAnyMore) {
  wanted_ = false;
  const auto received = fetch(offers_->add(offered_));
  ASSERT_FALSE(received);
  EXPECT_THAT(received.error().what, HasSubstr("nobody waits"));
}

TEST_F(OffersTest, AFileThatGrewShorterEndsTheFetch) {
  fs::resize_file(fs::path(offered_.folder) / "model.safetensors", 10);
  const auto received = fetch(offers_->add(offered_));
  ASSERT_FALSE(received);
  EXPECT_THAT(received.error().what, HasSubstr("shorter than it was"));
}

TEST_F(OffersTest, ACutLinkEndsTheFetchAtOnce) {
  cut_ = true;
  const net::Timer timer =
      loop_.after(std::chrono::milliseconds(50), [this] { fetches_->on_cut(); });
  const auto received = fetch(offers_->add(offered_));
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().code, ErrorCode::kUnavailable);
}

TEST_F(OffersTest, OldCheckpointsAndRunsThatAreOverAreDeleted) {
  const fs::path copies = root_ / "agent/private";
  ASSERT_TRUE(make_folder(copies / "old01/checkpoints"));
  ASSERT_TRUE(make_folder(copies / "k3fm2/checkpoints/step-00000010.partial"));
  ASSERT_TRUE(fetch(offers_->add(offered_)));
  EXPECT_FALSE(fs::exists(copies / "old01"));
  EXPECT_FALSE(fs::exists(copies / "k3fm2/checkpoints/step-00000010.partial"));
}

TEST(PrivateFolder, TakesTheRunsPlaceInThePlan) {
  wire::LaunchPlan plan;
  plan.run_folder = "/head/runs/a";
  plan.checkpoint_folder = "/head/runs/a/checkpoints/step-00000020";
  plan.ranks.resize(1);
  plan.ranks[0].arguments = {"w", "--run-folder", "/head/runs/a", "--resume", "x"};
  use_private_folder(plan, private_folder("/state", "a"));
  EXPECT_EQ(plan.run_folder, "/state/private/a");
  EXPECT_THAT(plan.ranks[0].arguments,
              ElementsAre("w", "--run-folder", "/state/private/a", "--resume",
                          "/state/private/a/checkpoints/step-00000020"));
  EXPECT_EQ(plan.ranks[0].working_folder, "/state/private/a");
}

TEST(FetchingText, SaysWhoWhatAndHowFar) {
  EXPECT_EQ(fetching_text("bee", "checkpoints/step-00000020", 1 << 20, 4 << 20),
            "node bee fetches checkpoints/step-00000020: 25 % of 4.0 MiB");
  EXPECT_EQ(fetched_text("bee", {4 << 20, 0, 0, 0.1}),
            "node bee has the checkpoint, 4.0 MiB: it was there already");
}

TEST(PieceFrame, ThatIsTooShortIsNoPiece) {
  const wire::Frame frame = piece_frame({7, 1, 128, "abc"});
  const auto read = read_piece_frame(frame);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->offer, 7u);
  EXPECT_EQ(read->file, 1u);
  EXPECT_EQ(read->offset, 128u);
  EXPECT_EQ(read->bytes, "abc");
  EXPECT_FALSE(read_piece_frame({frame.type, 0, std::string(23, 'x')}));
}

} // namespace
} // namespace nsa::parts
