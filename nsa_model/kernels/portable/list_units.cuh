#pragma once
// The unit of a CTA that visits lists: a block of keys and part of its list of tokens.

#include "nsa_model/kernels/block_lists/rounds.cuh"

namespace nsa::kernels::portable {

struct ListedUnit {
  bool exists = false; // a launch has as many CTAs as any selection could need
  int index = 0;       // number of its unit
  int kv_head = 0;     // batch * groups + group
  int block = 0;
  int begin = 0; // entries [begin, end)
  int end = 0;

  __device__ ListedUnit(const int32_t* segment_item_start, const WorkItem* items,
                        const ListRound& round, int blocks) {
    const int first = round.first_list() * blocks;
    index = segment_item_start[first] + static_cast<int>(blockIdx.x);
    exists = index < segment_item_start[first + round.lists() * blocks];
    if (!exists) return;
    const WorkItem item = items[index];
    kv_head = item.segment / blocks / round.cut.sections;
    block = item.segment % blocks;
    begin = item.begin;
    end = item.end;
  }
};

} // namespace nsa::kernels::portable
