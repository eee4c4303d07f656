// The schedule of launches as data. No node reads a buffer before it is written or after its
// release, no wait is missing, and no wait is useless. This is tested for every size and
// combination of branches, without a GPU.
#include "nsa_model/kernels/fused/schedule.h"

#include "common/base/file.h"
#include "tests/support/test_paths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace nsa::kernels {
namespace {

bool overlap(Range a, Range b) {
  return a.begin < b.end && b.begin < a.end;
}
bool is_scratch(Buffer buffer) {
  return buffer >= kFirstScratch;
}
bool is_kept(Buffer buffer) { // the forward saved it
  return buffer < Buffer::kOut;
}

// Says which nodes are complete when a node begins: those before it on its stream, and those before
// the nodes for which it waits. A wait for a launch guarantees nothing about memory.
class Order {
public:
  explicit Order(const Schedule& schedule) : before_(schedule.nodes.size()) {
    int last[2] = {-1, -1};
    for (std::size_t i = 0; i < schedule.nodes.size(); ++i) {
      const Node& node = schedule.nodes[i];
      before_[i].resize(schedule.nodes.size());
      int& previous = last[static_cast<int>(node.stream)];
      take(i, previous);
      for (const Wait& wait : node.waits)
        if (wait.until == Until::kDone) take(i, wait.on);
      previous = static_cast<int>(i);
    }
  }
  bool is_done(std::size_t node, std::size_t when) const { return before_[when][node]; }

private:
  void take(std::size_t node, int other) {
    if (other < 0) return;
    const auto from = static_cast<std::size_t>(other);
    for (std::size_t i = 0; i < before_.size(); ++i)
      if (before_[from][i]) before_[node][i] = true;
    before_[node][from] = true;
  }
  std::vector<std::vector<bool>> before_;
};

// The faults of a schedule, one line each.
class Faults {
public:
  explicit Faults(const Schedule& schedule)
      : schedule_(schedule), order_(schedule), layout_(lay_out(schedule)) {
    waits();
    for (std::size_t i = 0; i < nodes().size(); ++i) {
      for (const Use& use : nodes()[i].uses) {
        orders(i, use);
        written_before(i, use);
        in_its_part(i, use);
      }
    }
    ends_as_one();
  }
  std::vector<std::string> found;

private:
  const std::vector<Node>& nodes() const { return schedule_.nodes; }
  void fault(std::size_t node, const std::string& what) {
    found.push_back("node " + std::to_string(node) + " " +
                    std::string(name_of(nodes()[node].kernel)) + ": " + what);
  }

  // A wait names the newest node of the other stream, because the event is recorded after that
  // node. The side stream begins with a wait, so it runs after the work that the caller has
  // enqueued.
  void waits() {
    bool side_began = false;
    for (std::size_t i = 0; i < nodes().size(); ++i) {
      const bool side = nodes()[i].stream == Stream::kSide;
      if (side && !side_began && nodes()[i].waits.empty()) fault(i, "begins without a wait");
      side_began = side_began || side;
      for (const Wait& wait : nodes()[i].waits)
        check(i, wait);
    }
  }
  void check(std::size_t i, const Wait& wait) {
    const auto first = static_cast<std::size_t>(wait.on) + 1;
    if (first > i || (wait.on != kCallersWork && nodes()[first - 1].stream == nodes()[i].stream)) {
      fault(i, "waits for a node that is not before it on the other stream");
      return;
    }
    for (std::size_t j = first; j < i; ++j) {
      const bool newer = wait.until == Until::kDone ? nodes()[j].stream != nodes()[i].stream
                                                    : nodes()[j].tells_launch;
      if (newer) fault(i, "waits for a later node than it says");
    }
    if (wait.until == Until::kLaunched && (first == 0 || !nodes()[first - 1].tells_launch))
      fault(i, "waits for a launch that nobody tells");
  }

  // If one of two nodes writes what the other uses, one of them must run after the other.
  void orders(std::size_t i, const Use& use) {
    for (std::size_t j = 0; j < i; ++j) {
      for (const Use& other : nodes()[j].uses) {
        const bool writes = use.access != Access::kRead || other.access != Access::kRead;
        if (use.buffer == other.buffer && writes && overlap(use.range, other.range) &&
            !order_.is_done(j, i))
          fault(i, "does not wait for node " + std::to_string(j) + " on " +
                       std::string(name_of(use.buffer)));
      }
    }
  }

  void written_before(std::size_t i, const Use& use) {
    if (use.access == Access::kWrite) return;
    const bool comes_in = is_kept(use.buffer) && schedule_.pass == Pass::kBackward;
    const bool given = use.buffer == Buffer::kPooledKeys && !schedule_.call.pooled;
    const bool made = use.buffer == Buffer::kIndices && schedule_.call.blocks == BlockSource::kMade;
    if (comes_in || given || made) return;
    for (std::size_t j = 0; j < i; ++j)
      for (const Use& other : nodes()[j].uses)
        if (other.buffer == use.buffer && other.access != Access::kRead &&
            overlap(other.range, use.range) && order_.is_done(j, i))
          return;
    fault(i, "reads " + std::string(name_of(use.buffer)) + ", which nobody has written");
  }

  // The third part uses the memory of the second and, in an operator, of the branches' outputs.
  // Nodes that use those must be complete when the caller's stream reaches it. Nodes that use the
  // third part come later.
  void in_its_part(std::size_t i, const Use& use) {
    auto border = static_cast<std::size_t>(schedule_.lists_begin);
    while (border < nodes().size() && nodes()[border].stream == Stream::kSide)
      ++border;
    if (border == nodes().size()) return;
    const bool output = use.buffer >= Buffer::kCompressedOut && use.buffer <= Buffer::kSlidingOut;
    const ScratchLayout::Extent& place = layout_.places[static_cast<std::size_t>(use.buffer)];
    const bool start = is_scratch(use.buffer) && place.part == ScratchPart::kStart;
    if ((start || (output && schedule_.pass == Pass::kBackward)) &&
        (i >= border || !order_.is_done(i, border)))
      fault(i, "uses " + std::string(name_of(use.buffer)) + " after its release");
    if (is_scratch(use.buffer) && place.part == ScratchPart::kLists && i != border &&
        !order_.is_done(border, i))
      fault(i, "uses " + std::string(name_of(use.buffer)) + " before it is there");
  }

  void ends_as_one() {
    std::size_t last = nodes().size();
    for (std::size_t i = 0; i < nodes().size(); ++i)
      if (nodes()[i].stream == Stream::kMain) last = i;
    for (std::size_t i = 0; i < nodes().size(); ++i)
      if (i != last && !order_.is_done(i, last)) fault(i, "nobody waits for it");
  }

  const Schedule& schedule_;
  Order order_;
  ScratchLayout layout_;
};

std::string told(const Schedule& schedule) {
  std::string text;
  for (const std::string& fault : Faults(schedule).found)
    text += fault + "\n";
  return text.empty() ? text : text + timeline(schedule);
}

// Visits every size at which a rule changes, and every combination of branches, blocks and tuning.
template <typename Visit> void for_each_schedule(Visit visit) {
  const AttentionShape shapes[] = {
      {1, 1, 1},         {2, 31, 2},      {1, 700, 2},    {32, 1024, 2},
      {2, 1536, 2},      {16, 2048, 2},   {8, 4096, 2},   {4, 8192, 2},
      {2, 16384, 2},     {1, 32768, 2},   {1, 65536, 2},  {5, 14000, 1},
      {3, 70000, 1, 16}, {2, 2300, 2, 5}, {1, 262144, 1}, {2, 4100, 2, 6, 128}};
  std::vector<FusedTuning> tunings(4);
  tunings[1].query_major_tokens = kMostMaskedTokens;
  tunings[2].query_major_tokens = kDenseFirstTokens;
  tunings[3].compressed_backward_from = 1;
  for (const AttentionShape& shape : shapes) {
    for (FusedTuning tuning : tunings) {
      for (const KernelFamily family : {KernelFamily::kHopper, KernelFamily::kPortable}) {
        tuning.family = family;
        for (int mask = 1; mask < 8; ++mask) {
          for (const BlockSource blocks :
               {BlockSource::kSelection, BlockSource::kGiven, BlockSource::kMade}) {
            AttentionCall call = {.shape = shape, .tuning = tuning, .blocks = blocks};
            for (int branch = 0; branch < kBranches; ++branch)
              call.on[branch] = (mask >> branch & 1) != 0;
            call.pooled = call.on[kCompressed] && shape.batch % 2 == 0;
            if (call.on[kSelected] && !call.on[kCompressed] && blocks == BlockSource::kSelection)
              continue; // refused
            visit(call);
          }
        }
      }
    }
  }
}

TEST(Schedule, HasNoFault) {
  int count = 0;
  for_each_schedule([&](const AttentionCall& call) {
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      ASSERT_EQ(told(schedule_of(call, pass)), "");
      ++count;
    }
  });
  EXPECT_GT(count, 2000);
}

// A batch is small if its window has at most half as many columns of 128 keys as there are
// multiprocessors. Its window then runs beside the compressed branch in both passes. In the forward
// it has half of the multiprocessors.
TEST(Schedule, HasTheWindowOfSmallBatchesBeside) {
  const auto window_of = [](const AttentionShape& shape, Pass pass, bool compressed = true) {
    AttentionCall call = {.shape = shape, .blocks = BlockSource::kMade};
    call.tuning.query_major_tokens = kMostMaskedTokens; // nothing is listed
    call.on[kCompressed] = call.pooled = compressed;
    const Kernel kernel = pass == Pass::kForward ? Kernel::kTileForward : Kernel::kRangeBackward;
    for (const Node& node : schedule_of(call, pass).nodes)
      if (node.kernel == kernel && node.branch == kSliding) return node;
    throw std::logic_error("no kernel of the window");
  };
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    EXPECT_EQ(window_of({2, 2048, 2}, pass).stream, Stream::kSide);
    EXPECT_EQ(window_of({4, 1024, 2}, pass).stream, Stream::kSide);
    EXPECT_EQ(window_of({3, 2048, 2}, pass).stream, Stream::kMain);
    EXPECT_EQ(window_of({2, 2048, 2}, pass, false).stream, Stream::kMain);
  }
  EXPECT_EQ(window_of({2, 2048, 2}, Pass::kForward).leave_ctas, 66);
  EXPECT_EQ(window_of({3, 2048, 2}, Pass::kForward).leave_ctas, 0);
}

// The window is the first launch, on the side stream. So it must wait for the caller's work.
TEST(Schedule, JoinsTheWindowBeforeTheBranchesAreAdded) {
  AttentionCall call = {.shape = {2, 2048, 2}};
  call.tuning.query_major_tokens = kMostMaskedTokens;
  const Schedule schedule = schedule_of(call, Pass::kForward);
  ASSERT_EQ(schedule.nodes.front().waits.size(), 1U);
  EXPECT_EQ(schedule.nodes.front().waits.front().on, kCallersWork);
  EXPECT_EQ(schedule.nodes.front().waits.front().until, Until::kDone);
  const Node& last = schedule.nodes.back();
  EXPECT_EQ(last.branch, kSelected);
  ASSERT_EQ(last.waits.size(), 1U);
  EXPECT_EQ(schedule.nodes[static_cast<std::size_t>(last.waits.front().on)].branch, kSliding);
}

// Shows that the check notices each missing wait.
TEST(Schedule, MissesAWaitThatIsTakenOut) {
  int taken = 0;
  for_each_schedule([&](const AttentionCall& call) {
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const Schedule whole = schedule_of(call, pass);
      for (std::size_t i = 0; i < whole.nodes.size(); ++i) {
        for (std::size_t w = 0; w < whole.nodes[i].waits.size(); ++w) {
          if (whole.nodes[i].waits[w].until == Until::kLaunched) continue; // it is only a hint
          Schedule less = whole;
          less.nodes[i].waits.erase(less.nodes[i].waits.begin() + static_cast<std::ptrdiff_t>(w));
          ASSERT_FALSE(Faults(less).found.empty()) << "wait of node " << i << "\n"
                                                   << timeline(whole);
          ++taken;
        }
      }
    }
  });
  EXPECT_GT(taken, 400);
}

// With one round every scratch buffer is written once.
TEST(Schedule, MissesAWriterThatIsTakenOut) {
  const Schedule whole = schedule_of({.shape = {1, 2048, 2}}, Pass::kBackward);
  int taken = 0;
  for (std::size_t i = 0; i < whole.nodes.size(); ++i) {
    for (std::size_t u = 0; u < whole.nodes[i].uses.size(); ++u) {
      const Use& use = whole.nodes[i].uses[u];
      if (use.access != Access::kWrite || !is_scratch(use.buffer)) continue;
      Schedule less = whole;
      less.nodes[i].uses.erase(less.nodes[i].uses.begin() + static_cast<std::ptrdiff_t>(u));
      EXPECT_NE(told(less).find("nobody has written"), std::string::npos) << name_of(use.buffer);
      ++taken;
    }
  }
  EXPECT_GE(taken, 9);
}

// From 131,072 tokens on, and nowhere else, one kernel computes the compressed branch's gradients.
TEST(Schedule, HasOneCompressedBackwardInLongSequences) {
  const auto count = [](const AttentionShape& shape, Kernel kernel, FusedTuning tuning = {}) {
    const Schedule schedule = schedule_of({.shape = shape, .tuning = tuning}, Pass::kBackward);
    return std::count_if(schedule.nodes.begin(), schedule.nodes.end(), [&](const Node& node) {
      return node.kernel == kernel && node.branch == kCompressed;
    });
  };
  const Kernel one = Kernel::kCompressedBackward, two = Kernel::kRangeBackward;
  EXPECT_EQ(count({1, 131072, 2}, one), 1);
  EXPECT_EQ(count({1, 262144, 2}, one), 2);
  EXPECT_EQ(count({1, 131072, 2}, two), 0);
  EXPECT_EQ(count({1, 131071, 2}, one), 0);
  EXPECT_EQ(count({1, 131071, 2}, two), 1);
  EXPECT_EQ(count({1, 131072, 2, 5}, one), 0);
  EXPECT_EQ(count({1, 131072, 2, 6, 128}, one), 0);
  EXPECT_EQ(count({2, 2300, 2}, one, {.compressed_backward_from = 2300}), 1);
  EXPECT_EQ(count({2, 31, 2}, one, {.compressed_backward_from = 1}), 0); // no compressed token
}

TEST(Schedule, SeesAUseAfterTheRelease) {
  Schedule late = schedule_of({.shape = {4, 8192, 2}}, Pass::kBackward);
  late.nodes.back().uses.push_back({Buffer::kCompressedOut, Access::kRead, {}});
  EXPECT_NE(told(late).find("out.cmp after its release"), std::string::npos);
}

// Scratch buffers that are in use at the same time share no byte.
TEST(Scratch, BuffersInUseTogetherLieApart) {
  for_each_schedule([&](const AttentionCall& call) {
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const Schedule schedule = schedule_of(call, pass);
      const ScratchLayout layout = lay_out(schedule);
      const auto lives = lifetimes_of(schedule);
      const std::size_t kept = layout.bytes[0];
      const auto begin = [&](std::size_t buffer) {
        const ScratchLayout::Extent& place = layout.places[buffer];
        return place.offset + (place.part == ScratchPart::kKept ? 0 : kept);
      };
      for (auto i = static_cast<std::size_t>(kFirstScratch); i < kBuffers; ++i) {
        if (lives[i].first < 0) continue;
        ASSERT_EQ(begin(i) % 256, 0U);
        ASSERT_LE(begin(i) + layout.places[i].bytes, layout.all());
        for (auto j = static_cast<std::size_t>(kFirstScratch); j < i; ++j) {
          if (lives[j].first < 0 || lives[j].last < lives[i].first ||
              lives[i].last < lives[j].first)
            continue;
          ASSERT_TRUE(begin(j) + layout.places[j].bytes <= begin(i) ||
                      begin(i) + layout.places[i].bytes <= begin(j))
              << name_of(static_cast<Buffer>(i)) << ", " << name_of(static_cast<Buffer>(j)) << "\n"
              << timeline(schedule);
        }
      }
    }
  });
}

// The largest memory that an operator's call allocates in addition to its inputs. First this is the
// forward's results with its workspace. Later it is the gradients with the backward's scratch
// memory; its last part is allocated after the outputs of the branches are freed.
double peak_over_inputs(const AttentionShape& shape, const FusedTuning& tuning) {
  const double rows = double(shape.batch) * shape.sequence * shape.groups;
  const double query = rows * shape.heads * shape.head_dim * 2, key = rows * shape.head_dim * 2;
  const double kept = 4 * query + 3 * rows * shape.heads * 4 + rows * kSlots * 4 +
                      2 * key / kCompressStride + double(fused_list_bytes(shape));
  const double gradients = query + 6 * key + rows * shape.heads * 3 * 4;
  const AttentionCall call = {.shape = shape, .tuning = tuning};
  const double forward = double(lay_out(schedule_of(call, Pass::kForward)).all());
  const ScratchLayout backward = lay_out(schedule_of(call, Pass::kBackward));
  const double start = double(backward.bytes[0] + backward.bytes[1]);
  const double lists = double(backward.bytes[0] + backward.bytes[2]);
  return kept +
         std::max({forward, gradients + start, lists > 0 ? gradients + lists - 3 * query : 0});
}

// A layer's call with 32,768 tokens, or with 65,536. The sizes are measured ones (lab note
// "attention-scratch"). LibTorch's allocator rounds every tensor up.
TEST(PeakMemory, IsWhatWasMeasured) {
  struct Measured {
    int sequence;
    std::size_t forward, backward; // scratch memory, bytes
    double mebibytes;              // the most in addition to the inputs
  };
  for (const Measured& measured :
       {Measured{1024, 0, 27493120, 334}, Measured{2048, 176160768, 409453056, 554},
        Measured{4096, 322961408, 386130432, 531}, Measured{8192, 396361728, 454291968, 596},
        Measured{16384, 433061888, 488372736, 630}, Measured{32768, 451411968, 505413120, 645},
        Measured{65536, 460587008, 543686144, 852}}) {
    SCOPED_TRACE(measured.sequence);
    const int tokens = std::max(32768, measured.sequence);
    const AttentionShape shape = {tokens / measured.sequence, measured.sequence, 2};
    EXPECT_EQ(lay_out(schedule_of({.shape = shape}, Pass::kForward)).all(), measured.forward);
    EXPECT_EQ(lay_out(schedule_of({.shape = shape}, Pass::kBackward)).all(), measured.backward);
    const double peak = peak_over_inputs(shape, {}) / (1 << 20);
    EXPECT_LE(peak, measured.mebibytes);
    EXPECT_GE(peak, measured.mebibytes - 2.5);
  }
}

// The scores of an H200 (kernels-buffers.md, pick_test). Lists use their memory later.
TEST(PeakMemory, DoesNotGrowByTheScoresOfTheSelection) {
  for (const auto& [sequence, bytes] : {std::pair{32769, 24465408u}, std::pair{65536, 43388928u}}) {
    AttentionCall call = {.shape = {1, sequence, 2}};
    const Pass forward = Pass::kForward;
    const std::size_t without = lay_out(schedule_of(call, forward)).all();
    call.score_bytes = bytes;
    const ScratchLayout with = lay_out(schedule_of(call, forward));
    EXPECT_EQ(with.all(), without);
    EXPECT_EQ(with.bytes[static_cast<std::size_t>(ScratchPart::kStart)], call.score_bytes);
  }
}

TEST(PeakMemory, DoublesWithTheSequence) {
  for (const KernelFamily family : {KernelFamily::kHopper, KernelFamily::kPortable}) {
    for (const int dim : {64, 128}) {
      const auto peak = [&](int sequence) {
        return peak_over_inputs({1, sequence, 2, 6, dim}, {.family = family});
      };
      EXPECT_LE(peak(65536) / peak(32768), 2.05);
      // The buffers of the compressed branch's one backward kernel begin at 131,072 tokens. They
      // are larger than those of two kernels, and grow less than the sequence.
      const bool begins = family == KernelFamily::kHopper && dim == 64;
      EXPECT_LE(peak(131072) / peak(65536), begins ? 2.45 : 2.05);
      EXPECT_LE(peak(262144) / peak(131072), 2.05);
    }
  }
}

// NSA_UPDATE_DOCS=1 writes the timelines of the page.
TEST(Timeline, TheDocumentedOnesAreThese) {
  struct Shown {
    const char* name;
    Pass pass;
    AttentionShape shape;
    int query_major_tokens = 0;
  };
  const std::string path = test::source_folder() + "/docs/design/kernels-schedule.md";
  auto page = read_file(path);
  ASSERT_TRUE(page) << page.error().what;
  for (const Shown& shown : {Shown{"forward 4 8192", Pass::kForward, {4, 8192, 2}},
                             Shown{"forward 2 2048", Pass::kForward, {2, 2048, 2}, 2048},
                             Shown{"backward 4 8192", Pass::kBackward, {4, 8192, 2}},
                             Shown{"backward 32 1024", Pass::kBackward, {32, 1024, 2}}}) {
    const std::string begin = std::string("<!-- generated: ") + shown.name + " -->\n";
    AttentionCall call = {.shape = shown.shape};
    call.tuning.query_major_tokens = shown.query_major_tokens;
    const std::string text = "```text\n" + timeline(schedule_of(call, shown.pass)) + "```\n";
    ASSERT_NE(page->find(begin), std::string::npos) << begin;
    const std::size_t from = page->find(begin) + begin.size();
    const std::size_t to = page->find("<!-- end -->\n", from);
    ASSERT_NE(to, std::string::npos);
    if (std::getenv("NSA_UPDATE_DOCS") != nullptr) {
      page->replace(from, to - from, text);
    } else {
      EXPECT_EQ(page->substr(from, to - from), text) << "run NSA_UPDATE_DOCS=1 schedule_test";
    }
  }
  if (std::getenv("NSA_UPDATE_DOCS") != nullptr) {
    ASSERT_TRUE(write_file_atomic(path, *page));
  }
}

} // namespace
} // namespace nsa::kernels
