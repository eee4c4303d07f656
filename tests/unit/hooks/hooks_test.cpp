// Hooks as real processes: what they get, and what is reported of those that fail. A hook that
// never ends is killed with its children.
#include "daemon/hooks/hooks.h"

#include "common/base/file.h"
#include "tests/support/temporary_folder.h"

#include <csignal>
#include <gmock/gmock.h>
#include <thread>

namespace nsa::hooks {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class HooksTest : public testing::Test {
protected:
  std::unique_ptr<Hooks> make(const std::string& script,
                              Duration limit = std::chrono::seconds(60)) {
    return std::make_unique<Hooks>(loop_, HookOptions{{"/bin/sh", "-c", script}, "", limit},
                                   failed());
  }
  Hooks::Failed failed() {
    return
        [this](const RunId& run, const std::string& what) { told_.push_back(run + ": " + what); };
  }
  // Runs the loop until the condition holds.
  template <class Condition> void wait_until(Condition condition) {
    const net::Timer look = loop_.every(std::chrono::milliseconds(2), [&] {
      if (condition()) loop_.stop();
    });
    ASSERT_TRUE(loop_.run_for(std::chrono::seconds(60)));
  }
  void wait_for_end(const Hooks& hooks) {
    wait_until([&] { return hooks.running() == 0; });
    loop_.post([this] { loop_.stop(); }); // after everything that was posted before
    ASSERT_TRUE(loop_.run_for(std::chrono::seconds(60)));
  }

  const test::TemporaryFolder folder_;
  net::EventLoop loop_;
  std::vector<std::string> told_;
};

TEST_F(HooksTest, ACommandGetsTheNoticeOnStandardInput) {
  const std::string file = (folder_.path() / "notice").string();
  auto hooks = make("cat > " + file);
  hooks->tell({"kaaaa", {{"event", "end"}, {"run", {{"name", "a \"b\""}}}}});
  wait_for_end(*hooks);
  EXPECT_EQ(*read_file(file), "{\"event\":\"end\",\"run\":{\"name\":\"a \\\"b\\\"\"}}\n");
  EXPECT_THAT(told_, IsEmpty());
}

TEST_F(HooksTest, AFailureIsToldWithWhatTheCommandSaid) {
  auto hooks = make("echo nobody is there >&2; exit 3");
  hooks->tell({"kaaaa", {}});
  wait_for_end(*hooks);
  EXPECT_THAT(told_, ElementsAre("kaaaa: the command: exit 3: nobody is there"));
}

TEST_F(HooksTest, OneThatNeverEndsIsKilledWithItsChildren) {
  const std::string file = (folder_.path() / "pid").string();
  const auto child_of_hook = [&] { // 0: on a busy machine the hook was killed before it had a child
    const auto text = read_file(file);
    return text && text->ends_with('\n') ? std::stoi(*text) : 0;
  };
  for (auto limit = std::chrono::milliseconds(500); child_of_hook() == 0; limit *= 4) {
    ASSERT_LT(limit, std::chrono::seconds(60)) << "the hook does not even begin";
    told_.clear();
    auto hooks = make("sleep 1000 & echo $! > " + file + "; wait", limit);
    hooks->tell({"kaaaa", {}});
    wait_for_end(*hooks);
    EXPECT_THAT(told_, ElementsAre(AllOf(HasSubstr("kaaaa: the command: it took longer than "),
                                         HasSubstr(" and was killed"))));
  }
  const pid_t child = child_of_hook();
  const auto is_gone = [&] { // a zombie counts, since nobody reaps it here
    const auto stat = read_file("/proc/" + std::to_string(child) + "/stat");
    return !stat || stat->find(") Z ") != std::string::npos;
  };
  wait_until(is_gone);
}

TEST_F(HooksTest, AProgramThatIsMissingIsTold) {
  Hooks hooks(loop_, {{"/nonexistent/tell"}, "", std::chrono::seconds(1)}, failed());
  hooks.tell({"kaaaa", {}});
  EXPECT_THAT(told_, IsEmpty()) << "called from inside tell()";
  wait_until([this] { return !told_.empty(); });
  EXPECT_THAT(told_, ElementsAre(HasSubstr("kaaaa: cannot start the hook: ")));
}

TEST_F(HooksTest, AWebhookThatNobodyServesIsToldWithoutItsUrl) {
  Hooks hooks(loop_, {{}, "http://127.0.0.1:1/secret", std::chrono::seconds(60)}, failed());
  hooks.tell({"kaaaa", {}});
  wait_until([this] { return !told_.empty(); });
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_THAT(told_[0], testing::Not(HasSubstr("secret")));
}

TEST_F(HooksTest, ManyNoticesWaitAndEachIsGiven) {
  const std::string file = (folder_.path() / "notices").string();
  auto hooks = make("cat >> " + file);
  for (int i = 0; i < 40; ++i)
    hooks->tell({"kaaaa", {{"number", i}}});
  EXPECT_EQ(hooks->running(), Hooks::kMostRunning);
  wait_for_end(*hooks);
  const std::string all = *read_file(file);
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 40);
}

TEST_F(HooksTest, ALeavingDaemonKillsWhatGoesOn) {
  const std::string file = (folder_.path() / "pid").string();
  auto hooks = make("echo $$ > " + file + "; sleep 1000");
  hooks->tell({"kaaaa", {}});
  wait_until([&] {
    const auto text = read_file(file);
    return text && text->ends_with('\n');
  });
  const pid_t pid = std::stoi(*read_file(file));
  hooks.reset();
  EXPECT_EQ(::kill(pid, 0), -1) << "the hook goes on";
}

} // namespace
} // namespace nsa::hooks
