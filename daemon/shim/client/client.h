// nsad's end of a shim: start one for an attempt, connect to a live one, hear and ask. No event
// loop inside: the owner waits on fd() and calls on_readable() and, while wants_write(),
// on_writable(). Nothing here blocks, but for start_shim, which waits for the exec (about 2 ms).
// One thread per object; it stops by being destroyed, which the shim takes for nsad's death
// unless say_goodbye() went out before.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "common/progress/page.h"
#include "common/wire/frame.h"
#include "common/wire/launch_plan.h"
#include "common/wire/messages.h"
#include "daemon/proc/launch.h"
#include "daemon/proc/process.h"

#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace nsa::shim {

struct StartOptions {
  std::string program; // nsa-shim; empty: beside the calling program
  // Where the attempt's cgroup goes. Empty: nsad's own cgroup v2 if writable, else none.
  // "none": process groups only.
  std::string cgroup_root;
  // How long the shim waits for release() after its last rank has ended; 0: a day.
  double linger_seconds = 0;
  int store_listener = -1; // where ranks meet over TCP: the listening socket for rank 0
};

struct StartedShim {
  proc::ProcessIdentity identity; // for the ledger
  UniqueFd pidfd;                 // readable when the shim has ended; a child: reap with wait_child
};

// Writes <attempt folder>/launch.json (mode 0600: it holds the token) and starts the shim in a
// session of its own with this process's environment. The ranks start at once; what becomes of them
// comes over a connection. kConflict: the attempt has been started before (call connect instead).
Result<StartedShim> start_shim(const wire::LaunchPlan& plan, const StartOptions& options = {});

// The shim that was recorded at start, if it still lives; kNotFound otherwise. Of a shim that an
// earlier nsad started, the pidfd can be polled but not waited for.
inline Result<UniqueFd> find_shim(const proc::ProcessIdentity& identity) {
  return proc::open_identified(identity);
}

// <attempt folder>/started.json: who was started, for adoption without a connection and for the
// clean-up after a lost shim. kNotFound while the ranks are being started.
struct StartedAttempt {
  std::string boot_id;
  int64_t shim_pid = 0;
  uint64_t shim_start_time_ticks = 0;
  std::string cgroup; // absolute path; empty: none
  std::vector<wire::RankIdentity> ranks;
};
NSA_DECLARE_JSON(StartedAttempt);
Result<StartedAttempt> read_started(const std::string& attempt_folder);

// <attempt folder>/launch.json, as start_shim() wrote it.
Result<wire::LaunchPlan> read_launch_plan(const std::string& attempt_folder);

// <attempt folder>/exit-<rank>.json: how a rank ended, as the shim saw it. kNotFound: it has not.
Result<wire::RankExited> read_exit(const std::string& attempt_folder, Rank rank);

// After a shim was lost (killed, crashed): kills what is left of its attempt, by its cgroup, by the
// ranks' identities and by the mark in their environment. Idempotent; returns how many processes
// were signalled. Call it only once the shim has ended.
Result<int> end_leftovers(const std::string& attempt_folder);

// A socket to <attempt folder>/shim.sock. kUnavailable while there is no shim (not listening yet,
// or gone): the caller decides by the shim's pidfd which one it is.
Result<UniqueFd> connect_socket(const std::string& attempt_folder);

class ShimClient {
public:
  // Says hello over a connected socket. `acknowledged_sequence`: the last message that the ledger
  // holds; replay starts after it.
  static Result<ShimClient> greet(UniqueFd socket, const std::string& token,
                                  uint64_t acknowledged_sequence);

  int fd() const { return socket_.get(); }

  struct Received {
    // In order; kShimHello first (unnumbered, its token checked), then the numbered ones without
    // gap or repetition, from ShimHello::first_sequence on if that is later than was asked for.
    std::vector<wire::Message> messages;
    bool closed = false; // the shim has gone or refused us; after the messages above
  };
  // kCorrupt: the stream cannot be trusted any more; destroy the client and connect again.
  Result<Received> on_readable();

  bool wants_write() const { return !outgoing_.empty(); }
  Status on_writable();

  // Progress pages, in the order of ShimHello::ranks; whole once that message has been received.
  // Read-only mappings.
  std::vector<progress::Page> take_pages() { return std::move(pages_); }

  // Requests: queued, sent as far as the socket takes them at once. All are idempotent.
  Status acknowledge(uint64_t sequence); // recorded: the shim forgets up to it
  Status stop_ranks(bool checkpoint);
  Status kill_ranks(const std::string& reason);
  Status take_evidence(const wire::TakeEvidence& request);
  Status checkpoint_ranks();
  Status release(); // the shim ends once its ranks have
  Status say_goodbye();

private:
  ShimClient(UniqueFd socket, std::string token, uint64_t acknowledged)
      : socket_(std::move(socket)), token_(std::move(token)), last_sequence_(acknowledged) {}
  template <class T> Status send(wire::MessageType type, const T& value);
  Result<bool> receive(); // false: the other end has closed
  Status check(const wire::Message& message);

  UniqueFd socket_;
  std::string token_;
  uint64_t last_sequence_ = 0;
  bool greeted_ = false;
  wire::FrameDecoder decoder_;
  std::string outgoing_;
  std::vector<UniqueFd> received_fds_;
  std::vector<progress::Page> pages_;
};

} // namespace nsa::shim
