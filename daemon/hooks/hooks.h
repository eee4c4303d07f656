// Tells people of a run's end or hang. It starts what [notify] of nsad.toml names: a command, or
// curl for a webhook. The notice is JSON on standard input.
//
// All functions run on the loop's thread, and nothing waits for a hook. At most kMostRunning hooks
// run at a time, and at most kMostWaiting notices wait. More are dropped and reported as failures.
// A hook that exceeds its time limit is killed with its process group. Destroying the object kills
// running hooks. A notice is given at most once, so one that a crash of nsad interrupts is lost.
#pragma once

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/json.h"
#include "common/net/event_loop.h"
#include "daemon/proc/launch.h"

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace nsa::hooks {

struct HookOptions {
  std::vector<std::string> command; // [0] is an absolute path; empty if there is no command
  std::string webhook;              // URL to which the notice is posted; empty if there is none
  Duration limit = std::chrono::seconds(30);
};

struct Notice {
  RunId run;
  nlohmann::json body;
};

class Hooks {
public:
  // `failed` is called on the loop, never from inside tell(). It gets the notice's run and one
  // clause that says what went wrong.
  using Failed = std::function<void(const RunId& run, const std::string& what)>;
  Hooks(net::EventLoop& loop, HookOptions options, Failed failed);
  ~Hooks();
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;

  bool wanted() const { return !options_.command.empty() || !options_.webhook.empty(); }
  void tell(const Notice& notice);
  size_t running() const { return running_.size(); }

  static constexpr size_t kMostRunning = 8, kMostWaiting = 1000;

private:
  enum class Kind { kCommand, kWebhook };
  struct Waiting {
    Kind kind = Kind::kCommand;
    RunId run;
    std::string text;
  };
  struct Running {
    std::string name; // "the command" or "the webhook"
    RunId run;
    proc::ChildProcess child;
    UniqueFd output; // the hook's output
    net::Watch ended;
    net::Timer limit;
    bool too_long = false;
  };
  void start_waiting();
  Status start(const Waiting& hook);
  void on_ended(uint64_t number);
  void fail_later(const RunId& run, std::string what);

  net::EventLoop& loop_;
  HookOptions options_;
  Failed failed_;
  std::deque<Waiting> waiting_;
  std::map<uint64_t, Running> running_;
  uint64_t next_ = 1;
  // Posted calls check through it that this object still exists.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

} // namespace nsa::hooks
