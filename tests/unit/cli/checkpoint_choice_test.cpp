// RUN[@STEP], and the checkpoint that it selects.
#include "cli/checkpoint_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::cli {
namespace {

using ::testing::HasSubstr;
using wire::CheckpointState;

wire::CheckpointView view(uint64_t step, CheckpointState state, bool finite = true) {
  wire::CheckpointView view;
  view.step = step;
  view.state = state;
  view.finite = finite;
  return view;
}

TEST(RunAndStepText, NamesAStepBehindTheLastAt) {
  EXPECT_EQ(parse_run_and_step("k3fm2")->run, "k3fm2");
  EXPECT_FALSE(parse_run_and_step("k3fm2")->step);
  EXPECT_EQ(parse_run_and_step("k3fm2@400")->step, 400u);
  EXPECT_EQ(parse_run_and_step("@last")->run, "@last");
  EXPECT_FALSE(parse_run_and_step("@last")->step);
  EXPECT_EQ(parse_run_and_step("@last@7")->run, "@last");
  EXPECT_EQ(parse_run_and_step("@last@7")->step, 7u);
  for (const char* wrong :
       {"k3fm2@", "k3fm2@x", "k3fm2@-1", "k3fm2@1.5", "k3fm2@99999999999999999999"})
    EXPECT_FALSE(parse_run_and_step(wrong)) << wrong;
}

TEST(PickCheckpoint, TakesTheNewestFiniteOneThatIsKept) {
  const std::vector<wire::CheckpointView> views = {
      view(50, CheckpointState::kCorrupt), view(40, CheckpointState::kUnverified, false),
      view(30, CheckpointState::kVerified), view(20, CheckpointState::kUnverified),
      view(10, CheckpointState::kDeleted)};
  EXPECT_EQ(pick_checkpoint(views, {"r", std::nullopt})->step, 30u);
  // A named checkpoint is taken although its values are not finite.
  EXPECT_EQ(pick_checkpoint(views, {"r", 40})->step, 40u);
  const auto other = pick_checkpoint(views, {"r", 7});
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().next, HasSubstr("40, 30, 20"));
  EXPECT_THAT(pick_checkpoint(views, {"r", 10}).error().what, HasSubstr("deleted"));
  EXPECT_THAT(pick_checkpoint(views, {"r", 50}).error().what, HasSubstr("corrupt"));
}

TEST(PickCheckpoint, SaysWhatToDoWhereThereIsNone) {
  EXPECT_THAT(pick_checkpoint({}, {"r", std::nullopt}).error().next, HasSubstr("ckpt now r"));
  EXPECT_THAT(
      pick_checkpoint({view(10, CheckpointState::kDeleted)}, {"r", std::nullopt}).error().what,
      HasSubstr("deleted or damaged"));
  const auto broken =
      pick_checkpoint({view(10, CheckpointState::kVerified, false)}, {"r", std::nullopt});
  ASSERT_FALSE(broken);
  EXPECT_THAT(broken.error().next, HasSubstr("10"));
}

} // namespace
} // namespace nsa::cli
