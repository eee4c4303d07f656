// Folders of files that this node lets another node fetch over the cluster's link, each offered to
// one node for one attempt. Pieces are sent in the order of the requests, one read at a time, and
// only while the offer is wanted.
//
// All calls are on the loop's thread; `readers_` read the files. To stop it, destroy it.
#pragma once

#include "common/base/file.h"
#include "common/net/offload.h"
#include "common/transfer/plan.h"
#include "daemon/parts/messages.h"

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace nsa::parts {

// The offer; its files were described before (transfer::describe).
struct OfferedFolder {
  std::string node, folder;
  std::vector<transfer::File> files;
  FileOpener open = open_regular_file;
  std::function<bool()> is_wanted;
  std::function<void(uint64_t here, uint64_t total)> progress; // bytes that the other node has
};

class Offers {
public:
  using Send = std::function<Status(const std::string& node, const wire::Frame&)>;
  Offers(net::EventLoop& loop, Send send) : loop_(loop), send_(std::move(send)), readers_(loop) {}

  uint64_t add(OfferedFolder offered);
  void remove(uint64_t id) { offers_.erase(id); }
  // Takes a kAsk frame of this node.
  void take(const std::string& node, const wire::Frame& frame);
  void on_lost(const std::string& node); // drops the node's pending requests

private:
  struct Offer {
    OfferedFolder what;
    std::deque<Ask> asked;
    bool is_reading = false;
  };
  void read_next(uint64_t id);
  void deliver(uint64_t id, wire::Frame frame);
  void refuse(const std::string& node, uint64_t id, const std::string& why);

  net::EventLoop& loop_;
  Send send_;
  net::Offload readers_;
  std::map<uint64_t, Offer> offers_;
  std::map<uint64_t, net::Timer> again_; // retries of frames for which the link had no space
  uint64_t last_id_ = 0;
};

} // namespace nsa::parts
