#pragma once
// The order of launches of one attention call as data. A node says what is launched, on which
// stream, what it waits for, and which buffers it reads and writes. Nodes are enqueued in the order
// in which they stand. Scratch buffers have sizes; where they lie follows from who uses them when.
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
enum class Stream : uint8_t { kMain, kSide }; // the caller's, and the one of side_stream.h

// What a node launches, by the name of its launcher.
enum class Kernel : uint8_t {
  kWait, // nothing: a stream waits
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
  kReduceKeyGradient,
  kPoolingBackward,
  kSelectedBackward,
  kMergeQueryGradient,
  kAttend, // this and the following of the portable family
  kPortableSelection,
  kQueryGradient,
  kKeyGradient,
};
std::string_view name_of(Kernel kernel);

// What nodes hand to each other. What no kernel writes (q, dO, gates, ...) is not listed. Those of
// three branches stand in the branches' order.
enum class Buffer : uint8_t {
  // Kept from the forward to the backward (FusedSaved).
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
  kFirstTokenDq, // of the selected branch, where one other branch is on
  kPooledKeyDk,  // dK and dV of pooled keys in FP32
  kPooledKeyDv,
  kFirstTokenPartial, // units of dK and dV of the first tokens
  kCompressedPartial, // of the compressed branch
  kListPartial,       // of lists, of one of the forward's rounds
  kPartialDq,         // of pairs, of one of the backward's rounds
  kUnitPartial,       // portable: units of dK and dV, of one branch after another
  kUnitStarts,        // portable: where a key tile's units start
  kCount,
};
inline constexpr std::size_t kBuffers = static_cast<std::size_t>(Buffer::kCount);
inline constexpr Buffer kFirstScratch = Buffer::kScores;
std::string_view name_of(Buffer buffer);
constexpr Buffer of_branch(Buffer compressed, int branch) {
  return static_cast<Buffer>(static_cast<int>(compressed) + branch);
}

// Which part of a buffer, in the unit that its users cut it by: tokens, kv heads or columns of
// keys.
struct Range {
  int begin = 0;
  int end = INT32_MAX;
};
enum class Access : uint8_t { kRead, kWrite, kAdd }; // kAdd reads what is there and writes it anew
struct Use {
  Buffer buffer;
  Access access;
  Range range;
};

// kLaunched: its CTAs have their places, so that the waiting kernel takes none from them. That is a
// hint, on which no result may depend.
enum class Until : uint8_t { kDone, kLaunched };
// For an earlier node of the other stream, the newest there when the waiting node is enqueued; or,
// before the main stream's first node, for what the caller has enqueued.
inline constexpr int kCallersWork = -1;
struct Wait {
  int on;
  Until until = Until::kDone;
};

struct Node {
  Kernel kernel = Kernel::kWait;
  int branch = -1; // of kernels that serve several; -1: of all
  Stream stream = Stream::kMain;
  std::vector<Wait> waits;
  std::vector<Use> uses;
  bool tells_launch = false; // some node waits until this one has been launched
  // Of list kernels and merges: whose rows; and the forward's round that these are part of.
  ListRound round;
  ListRound whole;
  // kRangeBackward: columns of the window's (0: all), and on so many multiprocessors only (0: all).
  int first_column = 0;
  int columns = 0;
  int most_ctas = 0;
  bool is_beside =
      false;          // kRangeBackward: the kv heads of SelectedPlan::beside, and not the others
  int leave_ctas = 0; // kTileForward: multiprocessors that it leaves to others
};

struct Schedule {
  AttentionCall call;
  Pass pass = Pass::kForward;
  SelectedPlan plan;
  std::vector<Node> nodes;
  // The node from which ScratchPart::kLists is in use; all nodes where nothing is listed.
  int lists_begin = 0;

  explicit Schedule(const AttentionCall& of, Pass which) : call(of), pass(which), plan(of) {}
};
Schedule schedule_of(const AttentionCall& call, Pass pass);

// The nodes in which a buffer is in use, both included. What the side stream uses is in use until
// the caller's stream has waited for it. Without uses `first` is -1.
struct Lifetime {
  int first = -1;
  int last = -1;
};
std::array<Lifetime, kBuffers> lifetimes_of(const Schedule& schedule);

// Where each scratch buffer lies. Its part follows from its lifetime: kStart is free again when
// lists begin, kLists is not in use before, and kKept is what both need.
struct ScratchLayout {
  struct Extent {
    ScratchPart part = ScratchPart::kKept;
    std::size_t offset = 0;
    std::size_t bytes = 0; // 0: there is none
  };
  std::array<Extent, kBuffers> places;
  std::array<std::size_t, 3> bytes = {}; // of each part

  // In one piece: kKept, and behind it kStart and kLists in the same place.
  std::size_t all() const;
};
ScratchLayout lay_out(const Schedule& schedule);
// Of a scratch buffer, whether or not it is in use.
std::size_t scratch_bytes(const Schedule& schedule, Buffer buffer);

// A line a node, a column a stream, then a line a scratch buffer.
std::string timeline(const Schedule& schedule);

} // namespace nsa::kernels
