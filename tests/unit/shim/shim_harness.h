// Shared parts of the shim's tests: an attempt in a temporary folder, a real shim with fake ranks,
// and a test that plays nsad. All waits are for conditions and have a limit.
#pragma once

#include "common/base/clock.h"
#include "common/wire/launch_plan.h"
#include "daemon/shim/client/client.h"

#include <filesystem>
#include <functional>
#include <gtest/gtest.h>
#include <optional>
#include <string>
#include <vector>

namespace nsa::shim::test {

// Only a broken program takes so long.
constexpr Duration kWaitLimit = std::chrono::seconds(60);

// Polls `condition` for at most `limit`. Returns true if it held.
bool eventually(const std::function<bool()>& condition, Duration limit = kWaitLimit);

class Attempt {
public:
  explicit Attempt(int ranks = 1, const std::string& below = "");
  ~Attempt(); // kills the processes that are left

  wire::LaunchPlan plan;
  StartOptions options;

  // Adds `--fake` arguments to a rank.
  void fake(Rank rank, const std::vector<std::string>& arguments);
  void fake_all(const std::vector<std::string>& arguments);
  void start();

  const std::filesystem::path& folder() const { return folder_; }
  const StartedShim& shim() const { return *shim_; }
  pid_t shim_pid() const { return shim_->identity.pid; }
  bool shim_ended() { return proc::has_ended(shim_->pidfd.get()); }
  // Texts of stdout, joined; the oldest rotated file comes first.
  std::string log_text(Rank rank) const;

private:
  std::filesystem::path root_, folder_;
  std::optional<StartedShim> shim_;
};

// The nsad that a test plays: one connection, and everything received on it.
class Daemon {
public:
  Daemon(const Attempt& attempt, uint64_t acknowledged = 0);

  ShimClient& client() { return *client_; }
  // Reads messages until the condition holds.
  bool hear_until(const std::function<bool(const Daemon&)>& condition, Duration limit = kWaitLimit);
  const std::vector<wire::Message>& heard() const { return heard_; }
  bool closed() const { return closed_; }
  uint64_t last_sequence() const;
  wire::ShimHello hello() const;
  std::vector<progress::Page>& pages() { return pages_; }

  // Returns the first numbered message of a type (and rank) that was received.
  template <class T>
  std::optional<T> find(wire::MessageType type, std::optional<Rank> rank = {}) const {
    for (const auto& m : heard_)
      if (m.type == type && (!rank || m.body.value("rank", -1) == *rank))
        return m.body.template get<T>();
    return std::nullopt;
  }
  std::vector<wire::RankMessage> rank_messages(wire::MessageType type) const;
  bool exited(Rank rank) const {
    return find<wire::RankExited>(wire::MessageType::kRankExited, rank).has_value();
  }

private:
  std::optional<ShimClient> client_;
  std::vector<wire::Message> heard_;
  std::vector<progress::Page> pages_;
  bool closed_ = false;
};

// Starts "/bin/sh -c script" as the rank, instead of the fake worker.
void use_shell(Attempt& attempt, Rank rank, const std::string& script);
char state_of(pid_t pid); // as in /proc/<pid>/stat; '-' if there is no such process
bool lives(pid_t pid);    // false for a zombie, and if there is no such process
// Waits until the rank has been started. Returns -1 if it has not.
pid_t started_pid(Daemon& nsad, Rank rank);
void release_and_wait(Attempt& attempt, Daemon& daemon);

} // namespace nsa::shim::test
