#pragma once
// The order of launches of one attention call as data. A node says what is launched, on which
// stream, what it waits for, and which buffers it reads and writes. Nodes are enqueued in their
// order. Scratch buffers have sizes; their lifetimes determine their addresses.
//
// schedule_of() builds it from sizes alone, run_schedule.h runs it, timeline() prints it, and
// schedule_test checks it without a GPU. Pure functions, any thread.

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "nsa_model/kernels/fused/attention_call.h"

namespace nsa::kernels {

enum class Pass : uint8_t { kForward, kBackward };
enum class Stream : uint8_t { kMain, kSide }; // the caller's stream, and that of side_stream.h

// The kernel that a node launches, named after its launcher.
enum class Kernel : uint8_t {
  kWait, // launches nothing: a stream waits
  kPooling,
  kTileForward,
  kGivenIndices,
  kSelection,
  kBlockLists,
  kSelectedForward,
  kMerge,
  kBackwardPrepare,
  kJointBackward,
  kTileBackward,
  kRangeBackward,
  kCompressedBackward,
  kReduceKeyGradient,
  kPoolingBackward,
  kSelectedBackward,
  kMergeQueryGradient,
  kAttend, // this and the following belong to the portable family
  kPortableSelection,
  kQueryGradient,
  kKeyGradient,
};
std::string_view name_of(Kernel kernel);

// Buffers that connect nodes. Tensors that no kernel writes (q, dO, gates, ...) are not listed.
// Buffers of three branches are in the branches' order.
enum class Buffer : uint8_t {
  // Buffers that are kept from the forward to the backward (FusedSaved).
  kPooledKeys,
  kCompressedOut, // outputs of a branch with their log-sums
  kSelectedOut,
  kSlidingOut,
  kIndices,
  kLists,
  // Results.
  kOut,
  kQueryGradient,
  kGateGradient,
  kCompressedGradient, // dK and dV of a branch
  kSelectedGradient,
  kSlidingGradient,
  // Scratch memory of the forward: scores of the selection, and one round's partial results.
  kScores,
  kPartialOut,
  kPartialLse,
  kPackedOut,
  // Scratch memory of the backward.
  kCompressedStatistics,
  kSelectedStatistics,
  kSlidingStatistics,
  kFirstTokenDq, // of the selected branch, if one other branch is on
  kPooledKeyDk,  // dK and dV of pooled keys in FP32
  kPooledKeyDv,
  kFirstTokenPartial, // units of dK and dV of the first tokens
  kCompressedPartial, // units of the compressed branch
  kListPartial,       // units of lists, for one of the forward's rounds
  kPartialDq,         // dQ of pairs, for one of the backward's rounds
  kKeyBounds,         // of the compressed branch's one kernel: the largest keys and values
  kQuerySums,         // and sums of dQ, for one launch at a time
  kUnitPartial,       // portable: units of dK and dV, for one branch at a time
  kUnitStarts,        // portable: the first unit of each key tile
  kCount,
};
inline constexpr std::size_t kBuffers = static_cast<std::size_t>(Buffer::kCount);
inline constexpr Buffer kFirstScratch = Buffer::kScores;
std::string_view name_of(Buffer buffer);
constexpr Buffer of_branch(Buffer compressed, int branch) {
  return static_cast<Buffer>(static_cast<int>(compressed) + branch);
}

// A part of a buffer, in the unit in which its users divide it: tokens, KV heads or columns of
// keys.
struct Range {
  int begin = 0;
  int end = INT32_MAX;
};
enum class Access : uint8_t { kRead, kWrite, kAdd }; // kAdd reads the old value and writes the sum
struct Use {
  Buffer buffer;
  Access access;
  Range range;
};

// kLaunched: all CTAs of the node have started, so the waiting kernel does not displace them. This
// is a hint, and no result may depend on it.
enum class Until : uint8_t { kDone, kLaunched };
// Waits for an earlier node of the other stream, the newest there when the waiting node is
// enqueued. Before the main stream's first node, it waits for the work that the caller has
// enqueued.
inline constexpr int kCallersWork = -1;
struct Wait {
  int on;
  Until until = Until::kDone;
};

struct Node {
  Kernel kernel = Kernel::kWait;
  int branch = -1; // for kernels that serve several branches; -1: all
  Stream stream = Stream::kMain;
  std::vector<Wait> waits;
  std::vector<Use> uses;
  bool tells_launch = false; // a node waits until this one has been launched
  // For list kernels and merges: the round whose rows they process, and the forward's round that
  // contains it.
  ListRound round;
  ListRound whole;
  // kRangeBackward: the window's columns (0: all), and the number of multiprocessors (0: all).
  int first_column = 0;
  int columns = 0;
  int most_ctas = 0;
  // kRangeBackward: only the KV heads of SelectedPlan::beside; otherwise only the others.
  bool is_beside = false;
  int launch = 0;     // of kCompressedBackward; also in the reduction that follows it
  int leave_ctas = 0; // kTileForward: multiprocessors left to other kernels
};

struct Schedule {
  AttentionCall call;
  Pass pass = Pass::kForward;
  SelectedPlan plan;
  std::vector<Node> nodes;
  // The node from which ScratchPart::kLists is in use; the number of nodes if nothing is listed.
  int lists_begin = 0;

  explicit Schedule(const AttentionCall& of, Pass which) : call(of), pass(which), plan(of) {}
};
Schedule schedule_of(const AttentionCall& call, Pass pass);

// The first and last node in which a buffer is in use. A buffer of the side stream is in use until
// the caller's stream has waited for that stream. Without uses `first` is -1.
struct Lifetime {
  int first = -1;
  int last = -1;
};
std::array<Lifetime, kBuffers> lifetimes_of(const Schedule& schedule);

// The place of each scratch buffer. Its part follows from its lifetime. kStart is free again when
// lists begin, kLists is not in use before, and kKept is in use in both periods.
struct ScratchLayout {
  struct Extent {
    ScratchPart part = ScratchPart::kKept;
    std::size_t offset = 0;
    std::size_t bytes = 0; // 0: the buffer does not exist
  };
  std::array<Extent, kBuffers> places;
  std::array<std::size_t, 3> bytes = {}; // bytes of each part

  // Bytes as one allocation: kKept, followed by kStart and kLists in the same place.
  std::size_t all() const;
};
ScratchLayout lay_out(const Schedule& schedule);
// Bytes of a scratch buffer, whether or not it is in use.
std::size_t scratch_bytes(const Schedule& schedule, Buffer buffer);

// Prints a line for each node with a column for each stream, then a line for each scratch buffer.
std::string timeline(const Schedule& schedule);

} // namespace nsa::kernels
