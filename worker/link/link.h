// Link is a rank's socket to its shim. Its own thread sends the rank's messages, so that training
// never waits for the reader. Messages that must arrive are queued; step metrics may be dropped
// (oldest first, counted). The link keeps requests from the shim until the training loop takes
// them.
//
// Any thread may send. Only one thread may call take_requests(). The destructor flushes for a
// bounded time, then stops the thread. Without a socket (a rank started by hand), messages become
// log lines.
#pragma once

#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "common/wire/messages.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace nsa::link {

// Requests from the shim. `stop` stays set once received; `checkpoint` is returned once for each
// request.
struct Requests {
  bool stop = false;
  bool checkpoint_before_stop = true;
  bool checkpoint = false;
};

struct Limits {
  size_t droppable_messages = 64;     // queued at the same time
  size_t pending_bytes = 32ull << 20; // limit for all queued messages; above it, even messages that
                                      // must arrive are lost
};

class Link {
public:
  // `socket` is invalid if a user started the rank by hand.
  explicit Link(UniqueFd socket, Limits limits = {});
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Never blocks and never fails. Messages that cannot be sent are counted and logged. The
  // message's descriptor says whether it must arrive.
  template <wire::DescribedMessage T> void send(const T& message) {
    enqueue(T::kMessage, nlohmann::json(message));
  }

  Requests take_requests();
  Requests pending_requests() const; // does not clear them
  // Has the effect of a StopRequest from the shim. Async-signal-safe (for SIGTERM to a rank started
  // by hand).
  void request_stop() { stop_requested_.store(true, std::memory_order_relaxed); }

  // The link's thread calls `handler` with the folder of a CollectivesRequest; it must not block.
  // With an empty handler, requests are ignored. After this function returns, the previous handler
  // is not called any more.
  void on_collectives_request(std::function<void(const std::string& folder)> handler);

  // Waits until the socket has taken all queued messages. Returns false if that takes longer than
  // `limit`, or if the shim closed the connection.
  bool flush(Duration limit);

  bool connected() const { return connected_.load(); }
  uint64_t dropped() const { return dropped_.load(); } // droppable messages that were dropped
  uint64_t lost() const { return lost_.load(); }       // must-arrive messages that were lost

private:
  struct Item {
    std::string bytes;
    bool droppable = false;
  };

  void enqueue(const wire::RankMessageInfo& message, nlohmann::json body);
  void run();
  bool send_some();    // false: the shim closed the connection
  bool receive_some(); // false: no more data will come
  void handle(const wire::Frame& frame);
  void disconnect(const std::string& why);
  void wake();

  UniqueFd socket_, wake_;
  const Limits limits_;

  std::mutex mutex_;
  std::condition_variable drained_;
  std::deque<Item> queue_;
  size_t queued_bytes_ = 0, queued_droppable_ = 0;
  bool sending_ = false; // the thread holds a frame that the socket has not taken completely
  bool closing_ = false;

  std::string outgoing_; // link's thread only: the frame being sent
  size_t sent_ = 0;
  wire::FrameDecoder decoder_;

  std::mutex handler_mutex_;
  std::function<void(const std::string& folder)> on_collectives_request_;

  std::atomic<bool> connected_{false};
  std::atomic<bool> stop_requested_{false}, checkpoint_before_stop_{true}, checkpoint_{false};
  std::atomic<uint64_t> dropped_{0}, lost_{0};
  std::thread thread_;
};

} // namespace nsa::link
