// Runs verbs from their words to the exit code, over a real socket to a service in memory.
#pragma once

#include "cli/command.h"
#include "cli/verbs.h"
#include "tests/support/fake_service.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace nsa::cli {

using nlohmann::json;
using testing_support::FakeDaemon;

struct Outcome {
  int exit = -1;
  std::string out, err;
};

class Commands : public ::testing::Test {
protected:
  Outcome run(std::vector<std::string> words, const std::string& input = "") {
    words.insert(words.begin(), {"--socket", daemon.socket});
    std::ostringstream out, err;
    std::istringstream in(input);
    Outcome outcome;
    outcome.exit = run_command(all_verbs(), words, {out, err, in});
    outcome.out = out.str();
    outcome.err = err.str();
    return outcome;
  }
  // Runs as at a terminal where a person types `input`.
  Outcome run_on_terminal(std::vector<std::string> words, const std::string& input) {
    words.insert(words.begin(), {"--socket", daemon.socket});
    std::ostringstream out, err;
    std::istringstream in(input);
    Terminal terminal{out, err, in};
    terminal.err_is_terminal = terminal.in_is_terminal = true;
    Outcome outcome;
    outcome.exit = run_command(all_verbs(), words, terminal);
    outcome.out = out.str();
    outcome.err = err.str();
    return outcome;
  }
  std::string run_file(const std::string& text) {
    const std::string path = daemon.folder + "/run.toml";
    std::ofstream(path) << text;
    return path;
  }
  void add_run(const std::string& id, const std::string& state) {
    daemon.on_loop([&] {
      wire::RunDetail& detail = daemon.service.add_run(id, state);
      if (state == "completed" || state == "failed") detail.summary.ended_at = 1;
      return 0;
    });
  }
  // Calls `work` when there is a follower.
  template <class Work> std::thread when_followed(Work work) {
    return std::thread([this, work] {
      EXPECT_TRUE(daemon.wait_until([this] { return !daemon.service.followers.empty(); }));
      daemon.on_loop([&] {
        work();
        return 0;
      });
    });
  }

  // When there is a follower, kills nsad: connections break, the socket file stays, and the next
  // nsad binds again. `meanwhile` runs before the next one starts. When there is a follower again,
  // the run ends.
  template <class Work> std::thread kill_and_end(Work meanwhile, const RunId& id = "kaaaa") {
    return std::thread([this, meanwhile, id] {
      when_followed([this, meanwhile] {
        daemon.server.reset();
        meanwhile();
        auto again = net::HttpServer::listen_unix(daemon.loop, daemon.socket, 0600,
                                                  daemon.routes->handler());
        ASSERT_TRUE(again);
        daemon.server = std::move(*again);
      }).join();
      when_followed([this, id] { daemon.service.emit_state(id, "completed", "end"); }).join();
    });
  }

  FakeDaemon daemon;
};

} // namespace nsa::cli
