// Mesh implements collectives between CPU ranks. Each pair of ranks has stream sockets: unix
// sockets on one host, TCP between hosts.
//
// Every all-reduce is a reduce-scatter and an all-gather; both are also available alone. Rank r
// receives chunk r of every peer, adds the chunks in rank order, and sends the sum back. So the
// result has the same bits on every rank and in every run. Each transfer carries its tag. Ranks in
// different collectives wait instead of mixing data; the hang detector finds them, and the time-out
// is the last resort. A rank sees at once that a peer disconnected (end of file), and names it. A
// rank that gives up because of another one says so first, over a separate socket, so that all name
// the same rank.
//
// Operations run one after another, in the order of their start, on the mesh's thread. Only one
// thread at a time may start them. The destructor stops the thread, even in the middle of an
// operation.
#pragma once

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/progress/collective.h"
#include "worker/mesh/flight_log.h"
#include "worker/mesh/rendezvous.h"
#include "worker/mesh/tcp.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

namespace nsa::comm {

using Kind = progress::CollectiveKind;

// Identifies a collective; the same on all ranks. `index` tells apart collectives of one step and
// kind.
struct Tag {
  uint64_t step = 0;
  Kind kind = Kind::kBarrier;
  uint32_t index = 0;
  bool operator==(const Tag&) const = default;
};
inline std::string describe(const Tag& tag) {
  return progress::describe({.at = {.step = tag.step}, .kind = tag.kind, .index = tag.index});
}

// Why a collective failed, and which rank caused it as far as this rank can see.
struct PeerFailure {
  std::string what;
  std::optional<Rank> blamed;
};
using Outcome = tl::expected<void, PeerFailure>;

// A collective in flight.
class Pending {
public:
  virtual ~Pending() = default;
  virtual Outcome wait() = 0;
};

// The sum of an element type: into[i] = sum over p of parts[p][i], in the order of `parts`. `into`
// may be one of the parts.
struct ElementType {
  size_t bytes = 0;
  void (*sum)(void* into, const void* const* parts, size_t part_count, size_t elements) = nullptr;
};
// FP32 and FP64; each is added in its own precision.
extern const ElementType kFloat32, kFloat64;

struct MeshOptions {
  std::filesystem::path folder; // for unix sockets until ranks are connected; only the user may
                                // access it
  Duration connect_limit = std::chrono::seconds(120);
  Duration collective_limit = std::chrono::seconds(300);
  std::optional<MeshOverTcp> tcp = std::nullopt; // instead of unix sockets in the folder
};

// A range of consecutive ranks.
struct RankRange {
  Rank first = 0;
  int count = 1;
  bool contains(Rank rank) const { return rank >= first && rank < first + count; }
};

class Mesh {
public:
  // Blocks until all ranks are connected.
  static Result<std::unique_ptr<Mesh>> connect(Rank rank, int world, Rendezvous& rendezvous,
                                               MeshOptions options);
  ~Mesh();

  // The caller must not touch `data` until wait() has returned. Chunk r of `data` is its elements
  // [elements * r / world, elements * (r + 1) / world).
  std::unique_ptr<Pending> all_reduce(void* data, size_t elements, ElementType type, Tag tag);
  // On rank r, chunk r becomes the sum; the other chunks stay as they are.
  std::unique_ptr<Pending> reduce_scatter(void* data, size_t elements, ElementType type, Tag tag);
  // Chunk r becomes chunk r of rank r.
  std::unique_ptr<Pending> all_gather(void* data, size_t elements, size_t element_bytes, Tag tag);
  std::unique_ptr<Pending> broadcast(void* data, size_t bytes, Rank root, Tag tag);
  std::unique_ptr<Pending> barrier(Tag tag);
  // Exchanges chunks with the other ranks of `range`. `out` and `in` have a chunk for each of them,
  // in order: the chunk of `out` is sent, and that of `in` is received. Only the ranks of `range`
  // take part, and this rank must be one of them. Ranks outside may do the same in ranges of their
  // own. `out` and `in` must not overlap.
  std::unique_ptr<Pending> all_to_all(const void* out, void* in, size_t chunk_bytes,
                                      RankRange range, Tag tag);

  const FlightLog& flight_log() const; // records all operations so far

private:
  struct Impl;
  explicit Mesh(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

} // namespace nsa::comm
