// A node's end of what it fetches over the cluster's link: a mailbox between the loop, where pieces
// come in, and the thread that puts them on disk (common/transfer).
//
// All on the loop's thread, but `work` of run(). It stops by being destroyed: threads get an error.
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

  // Where the pieces of an offer come from, for the one thread that waits for them. It works until
  // the link is cut.
  std::shared_ptr<transfer::Source> open(uint64_t offer);
  void take(const wire::Frame& frame); // kPiece, kNoPiece
  void on_cut();

private:
  class Mailbox;
  // What the threads reach us by; empty once we are gone.
  struct Gate {
    std::mutex mutex;
    net::EventLoop* loop = nullptr;
    Send send; // on the loop's thread
  };
  std::shared_ptr<Gate> gate_;
  std::map<uint64_t, std::weak_ptr<Mailbox>> mailboxes_;
};

} // namespace nsa::parts
