// Mesh: collectives between CPU ranks, over stream sockets between each two: unix sockets on one
// host, TCP between hosts.
//
// Every all-reduce is a reduce-scatter and an all-gather, which there are by themselves too: rank r
// receives chunk r of every peer, adds them in rank order, and sends the sum back. So the result
// has the same bits on every rank and in every run. Each transfer carries its tag; ranks that are
// not in the same collective wait instead of mixing data, which is what the hang detector is there
// to find, with the time-out as last resort. A peer that goes away is seen at once (end of file)
// and named; one that gives up because of another says so first, over a socket of its own, so that
// all name the same rank.
//
// Operations run one after another, in the order they are started, on a thread of the mesh. Any one
// thread may start them. The destructor stops the thread, even in the middle of an operation.
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

// Which collective this is, the same on all ranks. `index` tells apart those of one step and kind.
struct Tag {
  uint64_t step = 0;
  Kind kind = Kind::kBarrier;
  uint32_t index = 0;
  bool operator==(const Tag&) const = default;
};
inline std::string describe(const Tag& tag) {
  return progress::describe({.at = {.step = tag.step}, .kind = tag.kind, .index = tag.index});
}

// Why a collective failed, and which rank's fault it is as far as this rank can see.
struct PeerFailure {
  std::string what;
  std::optional<Rank> blamed;
};
using Outcome = tl::expected<void, PeerFailure>;

// A collective under way.
class Pending {
public:
  virtual ~Pending() = default;
  virtual Outcome wait() = 0;
};

// How elements are added: into[i] = sum over p of parts[p][i], in the order of `parts`. `into` may
// be one of the parts.
struct ElementType {
  size_t bytes = 0;
  void (*sum)(void* into, const void* const* parts, size_t part_count, size_t elements) = nullptr;
};
// FP32 and FP64, added in their own precision.
extern const ElementType kFloat32, kFloat64;

struct MeshOptions {
  std::filesystem::path folder; // where ranks listen until they are connected; their user's alone
  Duration connect_limit = std::chrono::seconds(120);
  Duration collective_limit = std::chrono::seconds(300);
  std::optional<MeshOverTcp> tcp = std::nullopt; // instead of unix sockets in the folder
};

// Neighbouring ranks.
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

  // `data` must stay untouched until wait() has returned. Chunk r of `data` is its elements
  // [elements * r / world, elements * (r + 1) / world).
  std::unique_ptr<Pending> all_reduce(void* data, size_t elements, ElementType type, Tag tag);
  // Chunk r becomes the sum on rank r; the other chunks stay as they are.
  std::unique_ptr<Pending> reduce_scatter(void* data, size_t elements, ElementType type, Tag tag);
  // Chunk r becomes that of rank r.
  std::unique_ptr<Pending> all_gather(void* data, size_t elements, size_t element_bytes, Tag tag);
  std::unique_ptr<Pending> broadcast(void* data, size_t bytes, Rank root, Tag tag);
  std::unique_ptr<Pending> barrier(Tag tag);
  // Chunk i of `out` goes to rank range.first + i, whose own chunk comes back as chunk i of `in`.
  // Only the ranks of the range take part, which this rank is one of; others may do so in a range
  // of theirs. `out` and `in` do not overlap.
  std::unique_ptr<Pending> all_to_all(const void* out, void* in, size_t chunk_bytes,
                                      RankRange range, Tag tag);

  const FlightLog& flight_log() const; // of all operations so far

private:
  struct Impl;
  explicit Mesh(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

} // namespace nsa::comm
