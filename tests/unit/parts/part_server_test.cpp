// How a node answers calls for attempts that are not its newest one. Stand-ins play the shims.
#include "daemon/parts/part_server.h"

#include "common/base/build_info.h"
#include "daemon/plan/plan.h"
#include "tests/support/shim_stand_in.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

namespace nsa::parts {
namespace {

namespace fs = std::filesystem;

class PartServerTest : public testing::Test {
protected:
  static constexpr const char* kRun = "k3fm2";

  pid_t start_shim(AttemptNumber attempt) {
    const std::string run = (state_.path() / "runs" / kRun).string();
    fs::create_directories(run);
    return shims_.start(plan::attempt_folder(run, attempt));
  }
  // Starts an nsad that finds the shims of the nsad before it.
  void serve() {
    PartServer::Options options;
    options.state_folder = state_.path().string();
    options.head = "ant";
    options.config.programs.worker = "/bin/true";
    options.send = [this](const wire::Frame& frame) {
      if (frame.type == static_cast<uint8_t>(Message::kAnswer))
        if (auto answer = cluster::read_frame<Answer>(frame)) answers_.push_back(*answer);
      return Status();
    };
    server_ = std::make_unique<PartServer>(loop_, std::move(options));
  }
  Answer ask(CallKind what, AttemptNumber attempt, const nlohmann::json& body) {
    const size_t before = answers_.size();
    server_->take(frame_of(Message::kCall, Call{before + 1, what, {kRun, attempt}, body}));
    const MonotonicTime end = MonotonicTime::now() + std::chrono::seconds(30);
    while (answers_.size() == before && MonotonicTime::now() < end)
      (void)loop_.run_for(std::chrono::milliseconds(10));
    EXPECT_EQ(answers_.size(), before + 1);
    return answers_.size() > before ? answers_.back() : Answer();
  }
  static Preparation preparation() {
    Preparation wanted;
    wanted.build = build_text();
    wanted.run_folder =
        "/nonexistent/runs/k3fm2"; // a private folder, so nothing is offered or fetched
    return wanted;
  }

  net::EventLoop loop_;
  test::TemporaryFolder state_;
  test::ShimStandIns shims_;
  std::vector<Answer> answers_;
  std::unique_ptr<PartServer> server_;
};

TEST_F(PartServerTest, AnOlderEpochIsRefusedAndTheNewerRanksStay) {
  const pid_t shim = start_shim(3);
  serve();
  for (const CallKind what : {CallKind::kPrepare, CallKind::kStart}) {
    const Answer answer = ask(what, 2, preparation());
    EXPECT_FALSE(answer.ok) << text_of(what);
    EXPECT_EQ(answer.code, static_cast<int>(ErrorCode::kConflict)) << answer.what;
    EXPECT_EQ(answer.newer, 3);
    EXPECT_EQ(answer.what, "it has ranks of attempt 3 of run k3fm2, which is newer than attempt 2");
  }
  EXPECT_TRUE(test::ShimStandIns::lives(shim));
}

// For example this nsad is just starting the shim, so no list has it yet.
TEST_F(PartServerTest, NewerRanksThatOnlyTheirProcessShowsStayToo) {
  serve();
  const pid_t shim = start_shim(3);
  const Answer answer = ask(CallKind::kPrepare, 2, preparation());
  EXPECT_FALSE(answer.ok);
  EXPECT_EQ(answer.newer, 3) << answer.what;
  EXPECT_TRUE(test::ShimStandIns::lives(shim));
}

TEST_F(PartServerTest, ANewerEpochEndsOlderRanks) {
  const pid_t shim = start_shim(3);
  serve();
  const Answer answer = ask(CallKind::kPrepare, 4, preparation());
  EXPECT_EQ(answer.newer, 0);
  EXPECT_TRUE(answer.ok) << answer.what;
  EXPECT_FALSE(test::ShimStandIns::lives(shim));
}

} // namespace
} // namespace nsa::parts
