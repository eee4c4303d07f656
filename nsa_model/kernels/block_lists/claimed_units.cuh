#pragma once
// How a CTA of the list kernels gets its units of work (UnitRange) with their keys and values. One
// thread of the producer warps claims for the whole CTA. It writes the unit to shared memory and
// starts the loads of the 64 keys and values of its block. Producer warps wait for `known`,
// consumers for `full`. All of them release the stage by `empty`, and only then is it overwritten.
// After the last unit comes an end marker without keys.

#include "nsa_model/kernels/block_lists/rounds.cuh"
#include "nsa_model/kernels/common/hopper.cuh"
#include "nsa_model/kernels/common/tensor_map.h"

namespace nsa::kernels {

inline constexpr int32_t kNoSegment = -1; // segment of the end marker
// WorkItem::index of the first part of a joined unit. Each part is a separate unit: its segment
// names the part's keys, and begin and end are tokens.
inline constexpr int32_t kFirstPart = -kJoinedParts;

template <int kStages, int kDim = kHeadDim> struct ClaimedUnits {
  static constexpr int kPanelBytes = kBlock * kRowBytes;
  alignas(1024) uint8_t keys[kStages][2][kPanels<kDim> * kPanelBytes]; // K, V
  WorkItem items[kStages];
  uint64_t known[kStages];
  uint64_t full[kStages];
  uint64_t empty[kStages];
};

#if NSA_HOPPER_CODE

struct UnitPlace {
  int kv_head; // batch * groups + group
  int batch;
  int group;
  int block;
  __device__ __forceinline__ UnitPlace(int segment, int blocks, int sections, int groups)
      : kv_head(segment / blocks / sections), batch(kv_head / groups), group(kv_head % groups),
        block(segment % blocks) {}
};

// One thread calls it before the CTA's first barrier.
template <int kStages, int kDim>
__device__ __forceinline__ void init_units(ClaimedUnits<kStages, kDim>& claimed, int producer_warps,
                                           int consumer_warps) {
  for (int i = 0; i < kStages; ++i) {
    barrier_init(shared_address(&claimed.known[i]), 1);
    barrier_init(shared_address(&claimed.full[i]), 1);
    barrier_init(shared_address(&claimed.empty[i]),
                 (producer_warps + consumer_warps) * kWarpArrivals);
  }
}

// Only listed units.
struct NoJoinedUnits {
  static constexpr bool kAny = false;
};
// Listed units, followed by joined ones.
struct JoinedUnits {
  static constexpr bool kAny = true;
  JoinedBlocks blocks;
  const int32_t* segment_start;
  ListCut cut;
  int first_kv_head;
  int list_blocks;

  // Removes the joined pairs from a listed unit.
  __device__ WorkItem listed(WorkItem item) const {
    if (blocks.first_token == 0) return item;
    const int section = item.segment / list_blocks % cut.sections;
    const int left_out =
        blocks.left_out(item.segment % list_blocks, cut.begin(section), cut.end(section));
    item.begin = max(item.begin, segment_start[item.segment] + left_out);
    return item;
  }
  // Returns a part of a joined unit.
  __device__ WorkItem part(int unit, int part) const {
    const int of_kv_head = blocks.units_of_a_kv_head();
    const int begin = blocks.token_of(unit % of_kv_head);
    const int list = (first_kv_head + unit / of_kv_head) * cut.sections; // list of any section
    return {list * list_blocks + JoinedBlocks::block_of(begin, part), begin,
            min(begin + kJoinedTokens, blocks.sequence), kFirstPart + part};
  }
};

// The producer warps' side. Each of their threads has an instance, and they call next() together.
template <int kStages, int kDim = kHeadDim, typename Joined = NoJoinedUnits> class UnitClaims {
public:
  // `leads` is true in the single thread of the CTA that claims. `counter`: see UnitRange.
  __device__ __forceinline__ UnitClaims(ClaimedUnits<kStages, kDim>& claimed,
                                        const UnitRange& units, const WorkItem* items,
                                        uint32_t* counter, bool leads, const Joined& joined = {})
      : claimed_(claimed), units_(units), items_(items), counter_(counter), leads_(leads),
        claim_(static_cast<int>(blockIdx.x) - static_cast<int>(gridDim.x)), joined_(joined) {}

  // Returns the CTA's next unit after starting the loads of its keys and values. The segment is
  // kNoSegment after the last.
  __device__ __forceinline__ WorkItem next(const CUtensorMap& k_map, const CUtensorMap& v_map,
                                           int blocks, int sections, int groups) {
    const int stage = ring_.stage;
    const uint32_t known = shared_address(&claimed_.known[stage]);
    const uint32_t full = shared_address(&claimed_.full[stage]);
    const uint32_t empty = shared_address(&claimed_.empty[stage]);
    if (leads_) {
      const WorkItem item = take();
      const bool none = item.segment == kNoSegment;
      barrier_wait(empty, ring_.phase ^ 1u);
      claimed_.items[stage] = item;
      barrier_arrive(known);
      if (none) {
        barrier_arrive(full);
      } else {
        const UnitPlace at(item.segment, blocks, sections, groups);
        barrier_expect(full, sizeof(claimed_.keys[stage]));
#pragma unroll
        for (int panel = 0; panel < kPanels<kDim>; ++panel) {
          const int offset = panel * ClaimedUnits<kStages, kDim>::kPanelBytes;
          tma_load(shared_address(claimed_.keys[stage][0]) + offset, &k_map, panel * kPanelDims,
                   at.group, at.block * kBlock, at.batch, full);
          tma_load(shared_address(claimed_.keys[stage][1]) + offset, &v_map, panel * kPanelDims,
                   at.group, at.block * kBlock, at.batch, full);
        }
      }
    }
    barrier_wait(known, ring_.phase);
    const WorkItem item = claimed_.items[stage];
    warp_arrive(empty);
    ring_.advance();
    return item;
  }

  // Claims the unit that next() returns. Call it once a unit, some time before its end, because the
  // answer takes a round trip to the L2 cache.
  __device__ __forceinline__ void claim() {
    if (leads_) claim_ = static_cast<int>(atomicInc(counter_, units_.last_claim()));
  }

private:
  __device__ __forceinline__ WorkItem take() {
    if constexpr (Joined::kAny) {
      if (part_ > 0) {
        const int part = part_;
        part_ = part + 1 == kJoinedParts ? 0 : part + 1;
        return joined_.part(unit_, part);
      }
    }
    for (;;) {
      const int index = units_.claimed(claim_, static_cast<int>(gridDim.x));
      if (index < units_.end) {
        if constexpr (!Joined::kAny) {
          return items_[index];
        } else {
          const WorkItem item = joined_.listed(items_[index]);
          if (item.begin < item.end) return item;
          claim(); // nothing remains of it
          continue;
        }
      }
      if constexpr (Joined::kAny) {
        if (index < units_.end + units_.joined) {
          unit_ = index - units_.end;
          part_ = 1;
          return joined_.part(unit_, 0);
        }
      }
      return {kNoSegment, 0, 0, 0};
    }
  }

  ClaimedUnits<kStages, kDim>& claimed_;
  const UnitRange units_;
  const WorkItem* items_;
  uint32_t* counter_;
  const bool leads_;
  int claim_;
  Joined joined_;
  int unit_ = 0; // the joined unit in progress
  int part_ = 0; // its next part; 0: begin another unit
  Ring<kStages> ring_;
};

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels
