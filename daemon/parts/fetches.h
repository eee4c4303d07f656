// A node's end of what it fetches over the cluster's link. A mailbox connects the loop, which
// receives the pieces, with the thread that writes them to disk (common/transfer).
//
// All calls are on the loop's thread, except those of a Source. To stop it, destroy it: waiting
// threads get an error.
#pragma once

#include "common/net/offload.h"
#include "common/transfer/receive.h"
#include "daemon/parts/messages.h"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace nsa::parts {

class Fetches {
public:
  using Send = std::function<Status(const wire::Frame&)>;
  Fetches(net::EventLoop& loop, Send send);
  ~Fetches();
  Fetches(const Fetches&) = delete;
  Fetches& operator=(const Fetches&) = delete;

  // Source of the pieces of an offer, for the one thread that waits for them. It works until the
  // link is cut.
  std::shared_ptr<transfer::Source> open(uint64_t offer);
  void take(const wire::Frame& frame); // takes a kPiece or kNoPiece frame
  void on_cut();

private:
  class Mailbox;
  // Through it threads reach this object; `loop` is null once it has been destroyed.
  struct Gate {
    std::mutex mutex;
    net::EventLoop* loop = nullptr;
    Send send; // call it on the loop's thread
  };
  std::shared_ptr<Gate> gate_;
  std::map<uint64_t, std::weak_ptr<Mailbox>> mailboxes_;
};

} // namespace nsa::parts
