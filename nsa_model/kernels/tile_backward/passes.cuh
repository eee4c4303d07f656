#pragma once
// Which branches' keys one pass over the queries visits, and the kernel's parameters for each.

#include <type_traits>

#include "nsa_model/kernels/combine/combine.h"
#include "nsa_model/kernels/common/tensor_map.h"
#include "nsa_model/kernels/tile_backward/config.h"
#include "nsa_model/kernels/tile_backward/tile_backward.h"

namespace nsa::kernels::tile_backward {

// The key ranges that a tile visits, in this order.
template <KeyRange... kRanges> struct KeyPass {
  static constexpr int kParts = sizeof...(kRanges);
  static constexpr bool kStatistics = kParts > 1; // the kernel computes the statistics of its rows
  static constexpr KeyRange range(int part) {
    constexpr KeyRange kAll[] = {kRanges...};
    return kAll[part];
  }
};
inline constexpr int kMostParts = 3;
// The joint passes: window, compressed, and with kRanges the selected branch.
template <KeyRange... kRanges>
using JointPass = KeyPass<KeyRange::kWindow, KeyRange::kCompressed, kRanges...>;
constexpr int branch_of_part(int part) { // index in BackwardPrepareParams
  return part == 0 ? 2 : part - 1;
}

struct Part {
  int window;
  int token_end;
  const float* statistics;
};
struct KernelParams {
  AttentionShape shape;
  Part parts[kMostParts]; // the first has the most tokens
  float scale;
  const int32_t* indices;        // for KeyRange::kBlocks
  BackwardPrepareParams prepare; // used if the kernel computes the statistics
  __nv_bfloat16* d_q;
};
struct Maps {
  CUtensorMap q;
  CUtensorMap d_out;
  CUtensorMap k[kMostParts];
  CUtensorMap v[kMostParts];
};

#if NSA_HOPPER_CODE

// Calls visit(part) for each part of a pass. `part` is a compile-time constant.
template <typename KeyPass, typename Visit> __device__ __forceinline__ void for_parts(Visit visit) {
  static_assert(KeyPass::kParts <= kMostParts);
  visit(std::integral_constant<int, 0>());
  if constexpr (KeyPass::kParts > 1) visit(std::integral_constant<int, 1>());
  if constexpr (KeyPass::kParts > 2) visit(std::integral_constant<int, 2>());
}

// The parameters of a part for the functions of query_tiles.cuh.
struct PartParams {
  const AttentionShape& shape;
  int window;
  int token_end;
  const int32_t* indices;

  __device__ __forceinline__ PartParams(const KernelParams& params, int part)
      : shape(params.shape), window(params.parts[part].window),
        token_end(params.parts[part].token_end), indices(params.indices) {}
};

// The tile's keys in a part. Tokens after the part's end have none.
template <typename KeyPass, int kPart, typename Heads>
__device__ __forceinline__ QueryTile part_of(const KernelParams& params, const Heads& heads,
                                             int index, int tiles) {
  const PartParams part(params, kPart);
  QueryTile tile = tile_of<TileOf<Heads::kDim>, KeyPass::range(kPart)>(part, heads, index, tiles);
  if (kPart > 0 && tile.token >= part.token_end) tile.keys = tile.key_tiles = 0;
  return tile;
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::tile_backward
