// Link: a rank's socket to its shim. What the rank has to say goes out through a thread of its own,
// so that training never waits for a reader: must-arrive messages queue up, step metrics may be
// dropped (oldest first, counted). Requests from the shim are latched until the training loop asks.
//
// Any thread may send. take_requests() belongs to one thread. The destructor flushes for a bounded
// time, then stops the thread. Without a socket (a rank started by hand) messages become log lines.
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

// What the shim has asked for. `stop` stays set once seen; `checkpoint` is handed out once a
// request.
struct Requests {
  bool stop = false;
  bool checkpoint_before_stop = true;
  bool checkpoint = false;
};

struct Limits {
  size_t droppable_messages = 64;     // pending at once
  size_t pending_bytes = 32ull << 20; // of all messages; past it even must-arrive ones are lost
};

class Link {
public:
  // `socket` may be invalid: by hand.
  explicit Link(UniqueFd socket, Limits limits = {});
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Never blocks, never fails: what cannot be sent is counted and logged. Whether the message must
  // arrive, its descriptor says.
  template <wire::DescribedMessage T> void send(const T& message) {
    enqueue(T::kMessage, nlohmann::json(message));
  }

  Requests take_requests();
  Requests pending_requests() const; // looks, and leaves them
  // The same as a StopRequest from the shim; async-signal-safe (for SIGTERM when run by hand).
  void request_stop() { stop_requested_.store(true, std::memory_order_relaxed); }

  // Called on the link's thread with the folder of a CollectivesRequest: it must not block. Empty:
  // requests are passed over. When this returns, the handler before is not called any more.
  void on_collectives_request(std::function<void(const std::string& folder)> handler);

  // Waits until everything queued is in the socket; false when that took longer than `limit` or
  // the other side is gone.
  bool flush(Duration limit);

  bool connected() const { return connected_.load(); }
  uint64_t dropped() const { return dropped_.load(); } // droppable messages that gave way
  uint64_t lost() const { return lost_.load(); }       // must-arrive messages that could not wait

private:
  struct Item {
    std::string bytes;
    bool droppable = false;
  };

  void enqueue(const wire::RankMessageInfo& message, nlohmann::json body);
  void run();
  bool send_some();    // false: the other side is gone
  bool receive_some(); // false: nothing more will come
  void handle(const wire::Frame& frame);
  void disconnect(const std::string& why);
  void wake();

  UniqueFd socket_, wake_;
  const Limits limits_;

  std::mutex mutex_;
  std::condition_variable drained_;
  std::deque<Item> queue_;
  size_t queued_bytes_ = 0, queued_droppable_ = 0;
  bool sending_ = false; // the thread holds a frame that is not wholly in the socket
  bool closing_ = false;

  std::string outgoing_; // thread only: the frame being sent
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
