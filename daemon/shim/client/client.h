// nsad's end of a shim: start one for an attempt, connect to a live one, receive messages and send
// requests. It has no event loop: the owner waits on fd() and calls on_readable() and, while
// wants_write(), on_writable(). Nothing blocks except start_shim, which waits for the exec (about 2
// ms). One thread per object. To stop it, destroy it; without an earlier say_goodbye() the shim
// takes that for a crash of nsad.
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
  std::string program; // path of nsa-shim; empty: in the folder of the calling program
  // Parent of the attempt's cgroup. Empty: nsad's own cgroup v2 if it is writable, else no cgroup.
  // "none": process groups only.
  std::string cgroup_root;
  // How long the shim waits for release() after its last rank has ended; 0: a day.
  double linger_seconds = 0;
  int store_listener = -1; // listening socket of rank 0's store, for a rendezvous over TCP
};

struct StartedShim {
  proc::ProcessIdentity identity; // stored in the ledger
  UniqueFd pidfd; // readable when the shim has ended; the shim is a child: reap it with wait_child
};

// Writes <attempt folder>/launch.json (mode 0600, because it holds the token) and starts the shim
// in a session of its own with this process's environment. The ranks start at once; messages over a
// connection report about them. Fails with kConflict if the attempt has been started before (call
// connect instead).
Result<StartedShim> start_shim(const wire::LaunchPlan& plan, const StartOptions& options = {});

// Opens the recorded shim if it still lives; kNotFound otherwise. If an earlier nsad started the
// shim, the pidfd can be polled but not waited for.
inline Result<UniqueFd> find_shim(const proc::ProcessIdentity& identity) {
  return proc::open_identified(identity);
}

// <attempt folder>/started.json: identities of the shim and its ranks. They serve for adoption
// without a connection and for the clean-up after a lost shim. kNotFound while the ranks are being
// started.
struct StartedAttempt {
  std::string boot_id;
  int64_t shim_pid = 0;
  uint64_t shim_start_time_ticks = 0;
  std::string cgroup; // absolute path; empty: none
  std::vector<wire::RankIdentity> ranks;
};
NSA_DECLARE_JSON(StartedAttempt);
Result<StartedAttempt> read_started(const std::string& attempt_folder);

// Reads <attempt folder>/launch.json, as start_shim() wrote it.
Result<wire::LaunchPlan> read_launch_plan(const std::string& attempt_folder);

// Reads <attempt folder>/exit-<rank>.json: how a rank ended, as the shim saw it. kNotFound if it
// has not ended.
Result<wire::RankExited> read_exit(const std::string& attempt_folder, Rank rank);

// Cleans up after a shim was lost (killed, crashed). It kills the remaining processes of the
// attempt, by cgroup, by the ranks' identities, and by the mark in their environment. Idempotent.
// Returns how many processes were signalled. Call it only after the shim has ended.
Result<int> end_leftovers(const std::string& attempt_folder);

// Connects to <attempt folder>/shim.sock. Fails with kUnavailable if no shim listens: not yet, or
// not any more. The caller decides by the shim's pidfd which one it is.
Result<UniqueFd> connect_socket(const std::string& attempt_folder);

class ShimClient {
public:
  // Says hello over a connected socket. `acknowledged_sequence` is the last message that the ledger
  // holds; the shim sends what comes after it.
  static Result<ShimClient> greet(UniqueFd socket, const std::string& token,
                                  uint64_t acknowledged_sequence);

  int fd() const { return socket_.get(); }

  struct Received {
    // Messages in order. kShimHello comes first (unnumbered, its token checked). The numbered ones
    // follow without gap or repetition, from ShimHello::first_sequence if that is later than
    // requested.
    std::vector<wire::Message> messages;
    // After the messages above the shim closed the connection: it ended or refused us.
    bool closed = false;
  };
  // Fails with kCorrupt if the stream is invalid. Then destroy the client and connect again.
  Result<Received> on_readable();

  bool wants_write() const { return !outgoing_.empty(); }
  Status on_writable();

  // Progress pages in the order of ShimHello::ranks, complete once that message has been received.
  // Read-only mappings.
  std::vector<progress::Page> take_pages() { return std::move(pages_); }

  // Requests. They are queued and sent as far as the socket accepts them. All are idempotent.
  Status acknowledge(uint64_t sequence);
  Status stop_ranks(bool checkpoint);
  Status kill_ranks(const std::string& reason);
  Status take_evidence(const wire::TakeEvidence& request);
  Status checkpoint_ranks();
  Status release(); // the shim ends once its ranks have ended
  Status say_goodbye();

private:
  ShimClient(UniqueFd socket, std::string token, uint64_t acknowledged)
      : socket_(std::move(socket)), token_(std::move(token)), last_sequence_(acknowledged) {}
  template <class T> Status send(wire::MessageType type, const T& value);
  Result<bool> receive(); // false if the other end has closed
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
