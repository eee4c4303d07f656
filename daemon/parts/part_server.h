// A node's end of the parts that its head has started here. It says whether a part can be started,
// and starts the part's shim as its child. It carries the head's connection to the shim, reads the
// ranks' progress pages, and reports when the shim has ended. It decides nothing. Shims outlive it,
// and it finds them again.
//
// All calls are on the loop's thread; `calls_` reads files and starts processes. To stop it,
// destroy it.
#pragma once

#include "common/net/event_loop.h"
#include "common/net/offload.h"
#include "common/progress/page.h"
#include "common/spec/node_spec.h"
#include "daemon/parts/fetches.h"
#include "daemon/parts/lent_gpus.h"
#include "daemon/parts/messages.h"
#include "daemon/parts/rank_words.h"
#include "daemon/privilege/direct_host.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace nsa::parts {

class PartServer {
public:
  struct Options {
    std::string state_folder, head; // `head` is the name by which ranks reach the head's node
    spec::NodeSpec config;
    std::string program_folder;
    std::function<Status(const wire::Frame&)> send;
    std::function<size_t()> queued_bytes; // bytes that wait to be sent
    std::function<void()> part_ended = {};
  };
  PartServer(net::EventLoop& loop, Options options);

  // Call it before the head is called. `listed`: see LentGpus.
  void look_at_gpus(const control::GpuWatch::ListGpus& list,
                    std::function<void(const std::vector<std::string>& names)> listed);
  void take(const wire::Frame& frame);
  void on_ready(); // the head has welcomed this node over a new link
  void on_cut();
  // Asks the ranks of every part for a checkpoint and a clean end, as at the end of a job.
  void stop_ranks();
  // Kills every shim, and its ranks with it.
  void kill_ranks();
  bool is_empty() const { return parts_.empty(); }

private:
  using Key = std::pair<RunId, AttemptNumber>;
  // Bytes queued for the head; a shim keeps the rest.
  static constexpr size_t kMostQueued = size_t{1} << 20;
  struct Part {
    UniqueFd pidfd; // pidfd of its shim
    net::Watch ended;
  };
  struct PageSent { // what the head knows
    std::optional<progress::HostRecord> host;
    progress::DeviceRecord device;
    progress::CollectiveRing collectives;
  };
  static constexpr size_t kMostHeld = size_t{64} << 10;
  struct Stream {
    Key part;
    UniqueFd socket; // connected to the shim
    net::Watch readable, writable;
    net::Timer resume;
    std::string outgoing;
    std::vector<progress::Page> pages;
    std::vector<int64_t> pids;
    std::vector<PageSent> sent; // one for each page
    MonotonicTime sent_at;
    std::string held; // messages of ranks that were not sent yet
    RankWords rank_words;
  };

  std::string folder_of(const Key& part) const;
  void answer(uint64_t id, Result<nlohmann::json> result, AttemptNumber newer = 0);
  void take_call(const Call& call);
  void prepare(const Call& call, const Preparation& wanted);
  void signal_shims(int signal);
  void fetch(const Call& call, Preparation wanted);
  void release_gpus(const RunId& run);
  // A newer attempt of the run whose shim is here; 0: there is none.
  AttemptNumber newer_than(const PartRef& part) const;
  void refuse_older(const Call& call, AttemptNumber newer);
  void fetch_data(const Push& push);
  Result<nlohmann::json> bind_store(const RunId& run);
  void start(const Call& call);
  void probe(const Call& call);
  void run_probe(uint64_t id, const ProbeOrder& order, const std::shared_ptr<UniqueFd>& store);
  std::string worker() const;
  void open(const Call& call);
  void watch(const Key& part, UniqueFd pidfd);
  void take_bytes(uint64_t id, std::string_view bytes);
  void read(uint64_t id);
  void write(uint64_t id);
  void close(uint64_t id, bool tell);
  bool send_held(uint64_t id, Stream& stream);
  void send_pages(uint64_t id, Stream& stream);
  void tell_progress();
  template <class Work> void run(uint64_t id, const char* what, Work work);

  net::EventLoop& loop_;
  Options options_;
  net::Offload calls_;
  // Separate, because fetches may take hours and must not delay calls.
  net::Offload fetching_, fetching_data_;
  Fetches fetches_;
  std::shared_ptr<privilege::DirectHost> host_;
  LentGpus gpus_;
  std::map<Key, Part> parts_;
  std::map<RunId, UniqueFd> stores_; // listening sockets of attempts that are prepared
  std::set<RunId> leases_; // runs that have leased GPUs and whose shims have not been started yet
  uint64_t cuts_ = 0;      // how often the link to the head was cut
  std::map<uint64_t, Stream> streams_;
  net::Timer progress_timer_;
  bool leaving_ = false; // no part starts here any more
};

} // namespace nsa::parts
