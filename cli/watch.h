// Following streams through restarts of nsad: reconnects when one breaks. Of one run to its end,
// with the events that were missed meanwhile. Blocking.
#pragma once

#include "cli/client/daemon.h"
#include "cli/verb.h"

#include <functional>
#include <vector>

namespace nsa::cli {

struct Lasting {
  // Asked anew at each connection, so that a reader who knows how far it came goes on from there.
  std::function<std::string()> target;
  std::function<void(const std::string&)> note; // "nsad went away; waiting for the next one"
  client::FollowOptions options;                // interrupt_fd included
};

// Ends when the server ends the stream, the reader has enough, or Ctrl-C comes.
Result<net::StreamEnd> follow_through_restarts(const Context& context, client::Daemon& daemon,
                                               const Lasting& stream);

struct Watcher {
  std::function<bool(const wire::FollowLine&)> line; // false: enough
  // Events that the stream did not bring: before it began (see `after`), or while it was broken.
  // May repeat what a line brought; sequence numbers tell.
  std::function<void(const std::vector<wire::EventView>&)> missed;
  std::function<bool()> tick;                   // about twice a second; false: enough
  std::function<void(const std::string&)> note; // "nsad went away; waiting for the next one"
  std::function<int64_t()> after;               // sequence of the last event that is known
};

enum class WatchEnd { kEnded, kEnough, kInterrupted };

Result<WatchEnd> watch_run(const Context& context, client::Daemon& daemon, const std::string& run,
                           const Watcher& watcher);

// Follows a run on the screen (or as JSON lines) until it ends. The exit code is the run's;
// kInterrupted after Ctrl-C, which says that the run goes on. `after`: events up to this sequence
// number are not shown; nor is an injected fault announced when it has been `inject_said`.
Result<Exit> follow_on_screen(Context& context, client::Daemon& daemon, const std::string& run,
                              int64_t after, bool inject_said = false);

} // namespace nsa::cli
