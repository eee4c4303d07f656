#include "worker/mesh/mesh.h"

#include "common/base/unique_fd.h"
#include "worker/mesh/exchange.h"
#include "worker/mesh/mesh_connect.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <pthread.h>
#include <sys/eventfd.h>
#include <thread>
#include <unistd.h>

namespace nsa::comm {

namespace {

template <class T>
void sum_in_order(void* into, const void* const* parts, size_t part_count, size_t elements) {
  T* result = static_cast<T*>(into);
  // The block fits the L1 cache, so `into` is written once for any number of parts.
  constexpr size_t kBlock = 2048;
  for (size_t begin = 0; begin < elements; begin += kBlock) {
    const size_t end = std::min(elements, begin + kBlock);
    T total[kBlock];
    const T* first = static_cast<const T*>(parts[0]);
    for (size_t i = begin; i < end; ++i)
      total[i - begin] = first[i];
    for (size_t p = 1; p < part_count; ++p) {
      const T* part = static_cast<const T*>(parts[p]);
      for (size_t i = begin; i < end; ++i)
        total[i - begin] += part[i];
    }
    for (size_t i = begin; i < end; ++i)
      result[i] = total[i - begin];
  }
}

// The waiting thread and the mesh's thread share it.
struct Completion {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Outcome> outcome;

  void finish(Outcome result) {
    {
      const std::lock_guard lock(mutex);
      outcome = std::move(result);
    }
    changed.notify_all();
  }
};

class MeshPending : public Pending {
public:
  explicit MeshPending(std::shared_ptr<Completion> completion)
      : completion_(std::move(completion)) {}
  Outcome wait() override {
    std::unique_lock lock(completion_->mutex);
    completion_->changed.wait(lock, [this] { return completion_->outcome.has_value(); });
    return *completion_->outcome;
  }

private:
  std::shared_ptr<Completion> completion_;
};

} // namespace

const ElementType kFloat32{sizeof(float), sum_in_order<float>};
const ElementType kFloat64{sizeof(double), sum_in_order<double>};

struct Mesh::Impl {
  Rank rank = 0;
  int world = 1;
  MeshOptions options;
  std::vector<PeerSockets> sockets;
  UniqueFd wake;

  std::mutex mutex;
  std::condition_variable queued;
  FlightLog log;
  struct Task {
    uint64_t number = 0; // number in the flight log
    std::function<Outcome()> body;
    std::shared_ptr<Completion> completion;
  };
  std::deque<Task> tasks;
  bool closing = false;
  std::thread thread;
  std::optional<PeerFailure> broken;          // mesh's thread only: after one failure ranks are out
                                              // of step
  std::vector<std::vector<std::byte>> inbox_; // mesh's thread only: chunks received from peers

  void run() {
    ::pthread_setname_np(::pthread_self(), "collectives");
    while (true) {
      Task task;
      {
        std::unique_lock lock(mutex);
        queued.wait(lock, [this] { return closing || !tasks.empty(); });
        if (closing) break;
        task = std::move(tasks.front());
        tasks.pop_front();
      }
      log.started(task.number);
      Outcome outcome = broken ? Outcome(tl::unexpected(*broken)) : task.body();
      log.ended(task.number, outcome.has_value());
      if (!outcome && !broken) {
        broken = outcome.error();
        std::vector<int> notes;
        for (const PeerSockets& peer : sockets)
          notes.push_back(peer.notes.get());
        announce_failure(notes, *broken);
      }
      task.completion->finish(std::move(outcome));
    }
    for (Task& task : tasks)
      task.completion->finish(tl::unexpected(PeerFailure{"this rank is leaving", std::nullopt}));
  }

  std::unique_ptr<Pending> start(const char* name, const Tag& tag, size_t bytes,
                                 std::function<Outcome()> body) {
    auto completion = std::make_shared<Completion>();
    {
      const std::lock_guard lock(mutex);
      tasks.push_back({log.scheduled(name, describe(tag), bytes), std::move(body), completion});
    }
    queued.notify_one();
    return std::make_unique<MeshPending>(std::move(completion));
  }

  MonotonicTime deadline() const { return MonotonicTime::now() + options.collective_limit; }

  template <class Make> std::vector<Transfer> with_every_peer(Make make) {
    std::vector<Transfer> transfers;
    for (Rank peer = 0; peer < world; ++peer) {
      if (peer == rank) continue;
      Transfer t = make(peer);
      t.peer = peer;
      t.socket = sockets[static_cast<size_t>(peer)].data.get();
      t.notes = sockets[static_cast<size_t>(peer)].notes.get();
      transfers.push_back(t);
    }
    return transfers;
  }

  struct Chunk {
    std::byte* data;
    size_t elements, bytes;
  };
  Chunk chunk_of(Rank r, std::byte* data, size_t elements, size_t element_bytes) const {
    const auto begin_of = [&](Rank one) { return elements * size_t(one) / size_t(world); };
    const size_t begin = begin_of(r), count = begin_of(r + 1) - begin;
    return {data + begin * element_bytes, count, count * element_bytes};
  }

  Outcome reduce_scatter(std::byte* data, size_t elements, ElementType type, const Tag& tag,
                         MonotonicTime end) {
    const Chunk mine = chunk_of(rank, data, elements, type.bytes);
    inbox_.resize(static_cast<size_t>(world));
    std::vector<const void*> parts(static_cast<size_t>(world));
    auto scatter = with_every_peer([&](Rank peer) {
      auto& inbox = inbox_[static_cast<size_t>(peer)];
      if (inbox.size() < mine.bytes) inbox.resize(mine.bytes);
      parts[static_cast<size_t>(peer)] = inbox.data();
      const Chunk theirs = chunk_of(peer, data, elements, type.bytes);
      Transfer t;
      t.sends = t.receives = true;
      t.out = theirs.data;
      t.out_bytes = theirs.bytes;
      t.in = inbox.data();
      t.in_bytes = mine.bytes;
      return t;
    });
    if (auto o = exchange(rank, {tag, Operation::kReduceScatter}, scatter, end, wake.get()); !o)
      return o;
    parts[static_cast<size_t>(rank)] = mine.data;
    type.sum(mine.data, parts.data(), parts.size(), mine.elements);
    return {};
  }

  Outcome all_gather(std::byte* data, size_t elements, size_t element_bytes, const Tag& tag,
                     MonotonicTime end) {
    const Chunk mine = chunk_of(rank, data, elements, element_bytes);
    auto gather = with_every_peer([&](Rank peer) {
      const Chunk theirs = chunk_of(peer, data, elements, element_bytes);
      Transfer t;
      t.sends = t.receives = true;
      t.out = mine.data;
      t.out_bytes = mine.bytes;
      t.in = theirs.data;
      t.in_bytes = theirs.bytes;
      return t;
    });
    return exchange(rank, {tag, Operation::kAllGather}, gather, end, wake.get());
  }

  Outcome broadcast(std::byte* data, size_t bytes, Rank root, const Tag& tag) {
    auto transfers = with_every_peer([&](Rank peer) {
      Transfer t;
      t.sends = rank == root;
      t.receives = peer == root;
      t.out = data;
      t.out_bytes = t.sends ? bytes : 0;
      t.in = data;
      t.in_bytes = t.receives ? bytes : 0;
      return t;
    });
    return exchange(rank, {tag, Operation::kBroadcast}, transfers, deadline(), wake.get());
  }

  Outcome all_to_all(const std::byte* out, std::byte* in, size_t chunk_bytes,
                     const RankRange& range, const Tag& tag) {
    auto transfers = with_every_peer([&](Rank peer) {
      Transfer t;
      t.sends = t.receives = range.contains(peer);
      if (!t.sends) return t;
      const Rank before = peer - range.first - (peer > rank ? 1 : 0); // chunks of other ranks
      const size_t offset = static_cast<size_t>(before) * chunk_bytes;
      t.out = out + offset;
      t.in = in + offset;
      t.out_bytes = t.in_bytes = chunk_bytes;
      return t;
    });
    return exchange(rank, {tag, Operation::kAllToAll}, transfers, deadline(), wake.get());
  }

  Outcome barrier(const Tag& tag) {
    auto transfers = with_every_peer([](Rank) {
      Transfer t;
      t.sends = t.receives = true;
      return t;
    });
    return exchange(rank, {tag, Operation::kBarrier}, transfers, deadline(), wake.get());
  }
};

Mesh::Mesh(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  impl_->thread = std::thread([this] { impl_->run(); });
}

Result<std::unique_ptr<Mesh>> Mesh::connect(Rank rank, int world, Rendezvous& rendezvous,
                                            MeshOptions options) {
  auto impl = std::make_unique<Impl>();
  impl->rank = rank;
  impl->world = world;
  impl->options = std::move(options);
  impl->wake = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!impl->wake) return fail_errno("cannot make an eventfd");
  const Duration limit = impl->options.connect_limit;
  if (const auto& tcp = impl->options.tcp) {
    NSA_TRY_ASSIGN(impl->sockets, connect_peers_over_tcp(rank, world, rendezvous, *tcp, limit));
  } else {
    NSA_TRY_ASSIGN(impl->sockets,
                   connect_peers(rank, world, rendezvous, impl->options.folder, limit));
  }
  return std::unique_ptr<Mesh>(new Mesh(std::move(impl)));
}

Mesh::~Mesh() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->closing = true;
  }
  impl_->queued.notify_all();
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(impl_->wake.get(), &one, sizeof one);
  impl_->thread.join();
}

std::unique_ptr<Pending> Mesh::all_reduce(void* data, size_t elements, ElementType type, Tag tag) {
  return impl_->start("mesh:all_reduce", tag, elements * type.bytes, [=, this] {
    auto* const bytes = static_cast<std::byte*>(data);
    const MonotonicTime end = impl_->deadline();
    if (auto o = impl_->reduce_scatter(bytes, elements, type, tag, end); !o) return o;
    return impl_->all_gather(bytes, elements, type.bytes, tag, end);
  });
}

std::unique_ptr<Pending> Mesh::reduce_scatter(void* data, size_t elements, ElementType type,
                                              Tag tag) {
  return impl_->start("mesh:reduce_scatter", tag, elements * type.bytes, [=, this] {
    return impl_->reduce_scatter(static_cast<std::byte*>(data), elements, type, tag,
                                 impl_->deadline());
  });
}

std::unique_ptr<Pending> Mesh::all_gather(void* data, size_t elements, size_t element_bytes,
                                          Tag tag) {
  return impl_->start("mesh:all_gather", tag, elements * element_bytes, [=, this] {
    return impl_->all_gather(static_cast<std::byte*>(data), elements, element_bytes, tag,
                             impl_->deadline());
  });
}

std::unique_ptr<Pending> Mesh::broadcast(void* data, size_t bytes, Rank root, Tag tag) {
  return impl_->start("mesh:broadcast", tag, bytes, [=, this] {
    return impl_->broadcast(static_cast<std::byte*>(data), bytes, root, tag);
  });
}

std::unique_ptr<Pending> Mesh::barrier(Tag tag) {
  return impl_->start("mesh:barrier", tag, 0, [=, this] { return impl_->barrier(tag); });
}

std::unique_ptr<Pending> Mesh::all_to_all(const void* out, void* in, size_t chunk_bytes,
                                          RankRange range, Tag tag) {
  const size_t bytes = chunk_bytes * static_cast<size_t>(range.count - 1);
  return impl_->start("mesh:all_to_all", tag, bytes, [=, this] {
    return impl_->all_to_all(static_cast<const std::byte*>(out), static_cast<std::byte*>(in),
                             chunk_bytes, range, tag);
  });
}

const FlightLog& Mesh::flight_log() const {
  return impl_->log;
}

} // namespace nsa::comm
