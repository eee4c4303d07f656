// The head's end of parts on other nodes: asks their nsads, carries connections to their shims, and
// keeps copies of their ranks' progress pages. For whoever supervises an attempt a shim on another
// node is then as one on this node: a socket, pages, and a descriptor that tells its end.
//
// A node that is not heard may still have ranks. Its shims end them by themselves once nobody has
// asked for them for `orphan_limit`; only after that is such a part said to have ended. So it is
// where a node has joined anew since the attempt began: its name may stand for another machine now.
//
// All on the loop's thread, but ask(). It stops by being destroyed; the ranks go on.
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
#include <vector>

namespace nsa::parts {

struct NodeClock {
  Duration offset{}, round_trip{}; // the offset is exact to half of the round trip
};

class RemoteNodes {
public:
  struct Options {
    std::function<Status(const std::string& node, const wire::Frame&)> send;
    Duration orphan_limit{};
    // Whether the state wants this attempt, though nobody watches its part yet.
    std::function<bool(const control::AttemptKey&)> is_wanted;
    // When a node has joined last.
    std::function<WallTime(const std::string& node)> joined_at = {};
    // The head's clock minus the node's, and how exact that is.
    std::function<NodeClock(const std::string& node)> clock_of = {};
    // The number of the open run's newest attempt: its epoch. 0: no such run is open.
    std::function<AttemptNumber(const RunId&)> epoch_of = {};
    // A node claims what cannot be; for the audit.
    std::function<void(const std::string& node, const std::string& why)> refused = {};
  };
  using Answered = std::function<void(Result<nlohmann::json>)>;

  RemoteNodes(net::EventLoop& loop, Options options);
  ~RemoteNodes();

  void take(const std::string& node, const wire::Frame& frame);
  void on_lost(const std::string& node);

  // It is heard, and has said which parts it holds.
  bool is_ready(const std::string& node) const;
  // kUnavailable: the node is not heard, or not any more.
  void call(const std::string& node, CallKind what, const control::AttemptKey& key,
            nlohmann::json body, Answered done);
  // The same from another thread, which waits.
  Result<nlohmann::json> ask(const std::string& node, CallKind what, const control::AttemptKey& key,
                             const nlohmann::json& body);
  // A connection to a part's shim, as if it were on this node. From another thread, which waits.
  Result<UniqueFd> connect(const std::string& node, const control::AttemptKey& key);
  // Readable once the part has ended. `started`: the attempt, at the latest.
  Result<UniqueFd> watch(const std::string& node, const control::AttemptKey& key, WallTime started);
  NodeClock clock_of(const std::string& node) const {
    return options_.clock_of ? options_.clock_of(node) : NodeClock{};
  }
  void forget(const std::string& node, const control::AttemptKey& key);
  // When the pages of a part were told last.
  MonotonicTime pages_at(const std::string& node, const control::AttemptKey& key) const;
  // The head's time of a moment that the node has told by its monotonic clock; now, where nothing
  // is known of that clock.
  MonotonicTime here(const std::string& node, int64_t monotonic_ns) const;
  // What the node's /proc says of a rank.
  std::optional<state::ProcessReading> reading(const control::AttemptKey& key, Rank rank) const;

private:
  using PartKey = std::pair<std::string, control::AttemptKey>; // node, attempt
  struct Node {
    bool ready = false;
    MonotonicTime lost_at;
    ClockDifference clock;
  };
  struct Watch {
    UniqueFd end; // closed when the part has ended
    WallTime started;
    std::optional<MonotonicTime> left_at; // its node's name is another's; heard last then
  };
  struct Pending {
    std::string node;
    control::AttemptKey key;
    Answered done;
  };
  struct Stream {
    std::string node;
    control::AttemptKey key;
    UniqueFd local; // our end of the pair whose other end the supervisor has
    net::Watch readable, writable;
    std::string outgoing;
    std::vector<progress::Page> mirrors;
    bool passed_pages = false;
  };
  // What other threads reach us by; empty once we are gone.
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
  std::map<uint64_t, Stream> streams_;
  std::map<PartKey, Watch> watches_;
  // By rank.
  std::map<control::AttemptKey, std::vector<std::optional<state::ProcessReading>>> readings_;
  std::map<PartKey, MonotonicTime> pages_at_;
  uint64_t last_id_ = 0;
  MonotonicTime begin_;
  net::Timer timer_;
};

} // namespace nsa::parts
