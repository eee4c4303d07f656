// The head's end of parts on other nodes. It calls their nsads, carries connections to their shims,
// and keeps copies of their ranks' progress pages. So a supervisor sees a shim on another node like
// one on this node: a socket, pages, and a descriptor that reports its end.
//
// A disconnected node may still have ranks. Its shims kill them once nobody has asked for them for
// `orphan_limit`; only after that does such a part count as ended. The same applies to a node that
// has joined again since the attempt began, because its name may belong to another machine now.
//
// All calls are on the loop's thread, except ask() and connect(). To stop it, destroy it; the ranks
// continue.
#pragma once

#include "common/net/event_loop.h"
#include "daemon/parts/clock_difference.h"
#include "daemon/parts/messages.h"
#include "daemon/run_loop/live_attempt.h"
#include "daemon/supervision/rank_watch.h"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace nsa::parts {

struct NodeClock {
  Duration offset{}, round_trip{}; // the error of the offset is at most half of the round trip
};

class RemoteNodes {
public:
  struct Options {
    std::function<Status(const std::string& node, const wire::Frame&)> send;
    Duration orphan_limit{};
    // Whether the state needs this attempt, even if nobody watches its part yet.
    std::function<bool(const control::AttemptKey&)> is_wanted;
    // When a node last joined.
    std::function<WallTime(const std::string& node)> joined_at = {};
    // The head's clock minus the node's, and how exact that is.
    std::function<NodeClock(const std::string& node)> clock_of = {};
    // The number of the open run's newest attempt: its epoch. 0: no such run is open.
    std::function<AttemptNumber(const RunId&)> epoch_of = {};
    // A node claims something impossible; for the audit.
    std::function<void(const std::string& node, const std::string& why)> refused = {};
  };
  using Answered = std::function<void(Result<nlohmann::json>)>;

  RemoteNodes(net::EventLoop& loop, Options options);
  ~RemoteNodes();

  void take(const std::string& node, const wire::Frame& frame);
  void on_lost(const std::string& node);

  // The node is connected and has reported which parts it holds.
  bool is_ready(const std::string& node) const;
  // Fails with kUnavailable if the node is not connected, or is disconnected before it answers.
  void call(const std::string& node, CallKind what, const control::AttemptKey& key,
            nlohmann::json body, Answered done);
  // The same from another thread, which waits.
  Result<nlohmann::json> ask(const std::string& node, CallKind what, const control::AttemptKey& key,
                             const nlohmann::json& body);
  // A connection to a part's shim, as if it were on this node. Call it from another thread, which
  // waits.
  Result<UniqueFd> connect(const std::string& node, const control::AttemptKey& key);
  // A descriptor that becomes readable once the part has ended. `started` is the latest possible
  // start of the attempt.
  Result<UniqueFd> watch(const std::string& node, const control::AttemptKey& key, WallTime started);
  Duration orphan_limit() const { return options_.orphan_limit; }
  NodeClock clock_of(const std::string& node) const {
    return options_.clock_of ? options_.clock_of(node) : NodeClock{};
  }
  void forget(const std::string& node, const control::AttemptKey& key);
  // When the pages of a part were last received.
  MonotonicTime pages_at(const std::string& node, const control::AttemptKey& key) const;
  // The head's time of a moment by the node's monotonic clock. It is the current time if that clock
  // is unknown.
  MonotonicTime here(const std::string& node, int64_t monotonic_ns) const;
  // The last /proc reading of a rank by its node.
  std::optional<state::ProcessReading> reading(const control::AttemptKey& key, Rank rank) const;

private:
  using PartKey = std::pair<std::string, control::AttemptKey>; // node, attempt
  struct Node {
    bool ready = false;
    MonotonicTime lost_at;
    ClockDifference clock;
    std::map<control::AttemptKey, MonotonicTime> pages_at; // when pages of a part last came
  };
  struct Watch {
    UniqueFd end; // closed when the part has ended
    WallTime started;
    // Set if the node's name may now be another machine's: when the old node was last connected.
    std::optional<MonotonicTime> left_at;
  };
  struct Pending {
    std::string node;
    control::AttemptKey key;
    Answered done;
  };
  struct Stream {
    std::string node;
    control::AttemptKey key;
    Node* sender = nullptr; // in nodes_, whose entries stay
    UniqueFd local;         // our end of the socket pair; the supervisor has the other
    net::Watch readable, writable;
    std::string outgoing;
    std::vector<progress::Page> mirrors;
    bool passed_pages = false;
  };
  // Through it other threads reach this object; `loop` is null once it has been destroyed.
  struct Gate {
    std::mutex mutex;
    net::EventLoop* loop = nullptr;
  };
  template <class T, class Start> Result<T> wait_for(const Start& start);

  Node& node_of(const std::string& name);
  void open(const std::string& node, const control::AttemptKey& key,
            std::function<void(Result<UniqueFd>)> done);
  void on_held(const std::string& node, const Held& held);
  void on_answer(const std::string& node, const Answer& answer);
  void drop_links_of(const std::string& node);
  void look_for_orphans();
  void read_local(uint64_t id);
  void write_local(uint64_t id);
  void take_progress(Stream& stream, std::string_view bytes);
  static progress::Page* mirror(Stream& stream, size_t index, Rank rank);
  static bool write_news(progress::Page& page, const PageRecord& record, MonotonicTime now,
                         std::string_view& bytes);
  void close(uint64_t id, bool tell);

  net::EventLoop& loop_;
  Options options_;
  std::shared_ptr<Gate> gate_;
  std::map<std::string, Node> nodes_;
  std::map<uint64_t, Pending> pending_;
  std::unordered_map<uint64_t, Stream> streams_; // looked up for each frame
  std::map<PartKey, Watch> watches_;
  // By rank.
  std::map<control::AttemptKey, std::vector<std::optional<state::ProcessReading>>> readings_;
  uint64_t last_id_ = 0;
  MonotonicTime begin_;
  net::Timer timer_;
};

} // namespace nsa::parts
