// Follows streams through restarts of nsad: reconnects when a stream breaks. watch_run() follows
// one run to its end, and also fetches the events that were missed. It blocks.
#pragma once

#include "cli/client/daemon.h"
#include "cli/verb.h"

#include <functional>
#include <vector>

namespace nsa::cli {

struct Lasting {
  // Called for each connection, so that a reader that knows its position continues from there.
  std::function<std::string()> target;
  std::function<void(const std::string&)> note; // "nsad has ended; waiting for the next nsad"
  client::FollowOptions options;                // includes interrupt_fd
};

// Returns when the server ends the stream, the reader has enough, or Ctrl-C comes.
Result<net::StreamEnd> follow_through_restarts(const Context& context, client::Daemon& daemon,
                                               const Lasting& stream);

struct Watcher {
  std::function<bool(const wire::FollowLine&)> line; // returns false to stop
  // Gets events that the stream did not bring, because they came before it began (see `after`) or
  // while it was broken. They may repeat earlier lines; the sequence numbers tell.
  std::function<void(const std::vector<wire::EventView>&)> missed;
  std::function<bool()> tick; // called about twice a second; returns false to stop
  std::function<void(const std::string&)> note; // "nsad has ended; waiting for the next nsad"
  std::function<int64_t()> after;               // sequence number of the last known event
};

enum class WatchEnd { kEnded, kEnough, kInterrupted };

Result<WatchEnd> watch_run(const Context& context, client::Daemon& daemon, const std::string& run,
                           const Watcher& watcher);

// Follows a run on the screen, or as JSON lines, until it ends. Returns the run's exit code. Ctrl-C
// prints that the run continues and returns kInterrupted. Events up to the sequence number `after`
// are not shown. `inject_said` means that an injected fault has been announced already.
Result<Exit> follow_on_screen(Context& context, client::Daemon& daemon, const std::string& run,
                              int64_t after, bool inject_said = false);

} // namespace nsa::cli
