// dK and dV of one branch, key-major, on any GPU from compute capability 8.0.
//
//   S^T = K Q^T, P^T = 2^(S^T log2 e / sqrt(d) - lse), the gate folded into lse
//   dP^T = V dO^T, dS^T = P^T (dP^T - delta), delta = <dO, O>
//   dV = P^T dO, dK = dS^T Q / sqrt(d)
//
// and, of listed pairs if it is wanted, dQ = dS K (before the scale), one result for each pair.
//
// Tile (config.h): 64 keys against steps of 64 query rows, ordered [token][head], or 32 rows if D
// is 128. Products are m16n8k16. A warp has 32 of the keys (16 if D is 128) and, with the other
// warps of its group, 32 of the rows.
//   S^T, dP^T  32 columns, contract over D; both operands from shared memory
//   dV, dK     D columns, contract over the group's rows; P^T and dS^T from registers, dO and Q
//              from shared memory
//   dQ         32 rows of the group and 32 dimensions a warp, contracts over the keys; both
//              operands from shared memory
//
// A CTA processes a unit: a tile of keys and a range of tokens, or part of a block's list. Its sums
// stay in registers and are stored in FP32. If there are two groups, one finishes dK and the other
// dV. launch_reduce_key_gradient adds the units of a tile in order.
//   warps 0-3  All do the same work: the first 64 or 32 threads look up a row of the step after the
//              next. Every thread copies its chunks of the next step's rows, then computes with
//              this step's.
//
// barrier              who arrives           what it protects
// -------------------  --------------------  ------------------------------------------------------
// cp.async groups      each thread, its own  its chunks and statistics of a step have arrived
// __syncthreads:
//   before the steps   all 128 threads       the rows of the first two steps have been looked up
//   start of a step    all 128 threads       K, V and the step's rows, statistics and tokens have
//                                            arrived; the next step's rows have been looked up, and
//                                            its stage has been read; dS has been read
//   after the steps    all 128 threads       rows have been read; sums have been handed over
// group_barrier        warps of a group      dS of the group's rows is complete

#include "nsa_model/kernels/portable/key_gradient/key_gradient.h"

#include "nsa_model/kernels/common/heads.cuh"
#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/portable/key_gradient/config.h"
#include "nsa_model/kernels/portable/key_gradient/key_units.cuh"
#include "nsa_model/kernels/portable/key_gradient/parts.cuh"

namespace nsa::kernels::portable {
namespace key_gradient {
namespace {

// Writes the first unit of every (batch, group, tile), and the end of the last.
__global__ void __launch_bounds__(Tile::kThreads)
    segment_start_kernel(int32_t* starts, KeyUnits units, int kv_heads) {
  wait_for_earlier_kernels();
  const int segment = static_cast<int>(blockIdx.x) * Tile::kThreads + static_cast<int>(threadIdx.x);
  if (segment > kv_heads * units.tiles) return;
  starts[segment] = segment / units.tiles * units.units_before(units.tiles) +
                    units.units_before(segment % units.tiles);
}

template <int kDim, bool kQueries>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    key_gradient_kernel(const __grid_constant__ KeyGradientParams params, KeyUnits units) {
  wait_for_earlier_kernels();
  constexpr int kCount = Tile::kRows<kDim>;
  extern __shared__ __align__(128) uint8_t raw[];
  auto& shared = *reinterpret_cast<SharedOf<kDim, kQueries>*>(raw);
  const AttentionShape& shape = params.shape;
  const Unit unit(params, units);
  if (unit.end <= unit.begin) return;
  const KeyRange range = params.keys.range;
  const int rows = (unit.end - unit.begin) * shape.heads;
  const int statistics = head_floats(shape.heads);
  load_keys(params, shape, unit, shared);

  // Each thread looks up one row two steps ahead, so no copy waits for the list.
  const int local = static_cast<int>(threadIdx.x);
  const auto look_up = [&](int first) {
    return Row(params, unit, first + local, local < kCount && first + local < rows);
  };
  const auto group_row = [&](int token) {
    return (unit.batch * shape.sequence + token) * shape.groups + unit.group;
  };
  const auto note = [&](int first, const Row& row) {
    if (local >= kCount) return;
    shared.query_row[first / kCount % Tile::kRowStages][local] =
        row.valid ? group_row(row.token) * shape.heads + row.head : -1;
  };
  // Starts the copies of rows [first, first + kCount), already looked up. `row` is the thread's.
  const auto load = [&](int first, const Row& row) {
    const int stage = first / kCount % Tile::kRowStages;
    if (first < rows) {
      copy_rows<kDim, kCount, Tile::kThreads>(
          shared_address(shared.rows[stage]), params.q, params.d_out,
          [&](int i) { return int64_t{shared.query_row[stage][i]} * kDim; });
      if (row.valid) {
        const float* source = params.statistics +
                              static_cast<int64_t>(group_row(row.token)) * 2 * statistics +
                              row.head;
        copy_float(shared_address(&shared.lse[stage][local]), source);
        copy_float(shared_address(&shared.delta[stage][local]), source + statistics);
        shared.token[stage][local] = row.token;
      } else if (local < kCount) { // the row has no weight
        shared.lse[stage][local] = INFINITY;
        shared.delta[stage][local] = 0.0f;
        shared.token[stage][local] = 0;
      }
      if constexpr (kQueries) {
        if (local < kCount) shared.pair_row[stage][local] = row.pair_row(params, unit);
      }
    }
    commit_copies();
  };

  const Place<kDim> place(range, unit.first_key);
  const float scale_log2 = params.scale * kLog2e;
  const uint32_t k_tile = shared_address(shared.keys);
  const uint32_t v_tile = k_tile + kTileBytes<kDim, Tile::kKeys>;
  Sums<kDim> d_k = {};
  Sums<kDim> d_v = {};

  const Row first_row = look_up(0);
  Row next = look_up(kCount);
  note(0, first_row);
  note(kCount, next);
  __syncthreads();
  load(0, first_row);
  for (int first = 0; first < rows; first += kCount) {
    const int stage = first / kCount % Tile::kRowStages;
    wait_for_copies<0>();
    __syncthreads();
    load(first + kCount, next);
    next = look_up(first + Tile::kRowStages * kCount);
    const Visit visit(place, shared.token[stage], rows - first);
    if (kQueries || visit.any) {
      const uint32_t q_tile = shared_address(shared.rows[stage]);
      const uint32_t d_out_tile = q_tile + kTileBytes<kDim, kCount>;
      Scores<kDim> p = {};
      Scores<kDim> ds = {};
      ScoreFactor<kDim> left_p;
      ScoreFactor<kDim> left_ds;
      // Both products come first. So the tensor cores have work during the exponentials, and dS is
      // complete long before the group's barrier.
      multiply_transposed<kDim>(
          p, [&](int t, int step) { return tile_rows<kDim>(k_tile, place.key(t), step); }, q_tile,
          place.row);
      multiply_transposed<kDim>(
          ds, [&](int t, int step) { return tile_rows<kDim>(v_tile, place.key(t), step); },
          d_out_tile, place.row);
      to_probabilities<kDim>(p, shared.lse[stage] + place.row, scale_log2, place.quad);
      if (!visit.all) mask_unseen<kDim>(p, shared.token[stage] + place.row, place);
      to_score_gradients<kDim>(ds, p, shared.delta[stage] + place.row, place.quad);
      to_left_factor<kDim>(left_ds, ds);
      if constexpr (kQueries) share_scores(shared, left_ds, place);
      to_left_factor<kDim>(left_p, p);
      multiply<kDim>(d_v, left_p, d_out_tile, place.row);
      multiply<kDim>(d_k, left_ds, q_tile, place.row);
      if constexpr (kQueries) {
        group_barrier(1 + place.group, Tile::kKeyWarps<kDim> * kWarpThreads);
        store_queries(shared, place, k_tile, shared.pair_row[stage] + place.row, params.partial_dq);
      }
    }
    note(first + Tile::kRowStages * kCount, next);
  }
  wait_for_copies<0>();
  finish_sums(shared, place, params.partial + unit.result * 2 * Tile::kKeys * kDim, params.scale,
              d_k, d_v);
}

} // namespace
} // namespace key_gradient

ListCut whole_lists(const AttentionShape& shape) {
  return {.sequence = shape.sequence};
}

int64_t key_gradient_units(const AttentionShape& shape, KeyRange range) {
  const int kv_heads = shape.batch * shape.groups;
  if (range == KeyRange::kBlocks)
    return block_lists_item_capacity(shape, whole_lists(shape), kv_heads);
  const KeyUnits units(range, shape.sequence);
  return int64_t{kv_heads} * units.units_before(units.tiles);
}

cudaError_t launch_key_gradient(const KeyGradientParams& params, cudaStream_t stream) {
  using namespace key_gradient;
  const AttentionShape& shape = params.shape;
  const int kv_heads = shape.batch * shape.groups;
  // Query rows are counted in 32 bits.
  if (int64_t{kv_heads} * shape.sequence * shape.heads > INT32_MAX) return cudaErrorInvalidValue;
  const bool listed = params.keys.range == KeyRange::kBlocks;
  const KeyUnits units(listed ? KeyRange::kWindow : params.keys.range, shape.sequence);
  if (units.tiles == 0) return cudaSuccess;
  const int count = listed
                        ? block_lists_item_capacity(shape, params.round.cut, params.round.kv_heads)
                        : units.parts * units.tiles * kv_heads;
  return with_head_dim(shape, [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    const bool queries = params.partial_dq != nullptr;
    auto* kernel = queries ? key_gradient_kernel<kDim, true> : key_gradient_kernel<kDim, false>;
    const int bytes = queries ? sizeof(SharedOf<kDim, true>) : sizeof(SharedOf<kDim, false>);
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error == cudaSuccess && !listed) {
      const auto grid = static_cast<unsigned>(kv_heads * units.tiles / Tile::kThreads + 1);
      error = launch_kernel(segment_start_kernel, grid, Tile::kThreads, 0, stream,
                            params.segment_item_start, units, kv_heads);
    }
    if (error != cudaSuccess) return error;
    return launch_kernel(kernel, static_cast<unsigned>(count), Tile::kThreads,
                         static_cast<std::size_t>(bytes), stream, params, units);
  });
}

} // namespace nsa::kernels::portable
