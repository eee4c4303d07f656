#include "nsa_model/kernels/fused/schedule.h"

#include "nsa_model/kernels/fused/hopper_schedule.h"
#include "nsa_model/kernels/fused/portable_schedule.h"

namespace nsa::kernels {

Schedule schedule_of(const AttentionCall& call, Pass pass) {
  return call.is_portable() ? portable_schedule(call, pass) : hopper_schedule(call, pass);
}

std::string_view name_of(Kernel kernel) {
  constexpr std::string_view kNames[] = {"wait",
                                         "pooling",
                                         "tile_forward",
                                         "given_indices",
                                         "selection",
                                         "block_lists",
                                         "selected_forward",
                                         "merge",
                                         "prepare",
                                         "joint_backward",
                                         "tile_backward",
                                         "range_backward",
                                         "compressed_backward",
                                         "reduce_key_gradient",
                                         "pooling_backward",
                                         "selected_backward",
                                         "merge_query_gradient",
                                         "attend",
                                         "selection",
                                         "query_gradient",
                                         "key_gradient"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Kernel::kKeyGradient) + 1);
  return kNames[static_cast<std::size_t>(kernel)];
}

std::string_view name_of(Buffer buffer) {
  // cmp, slc and win are the paper's names of the branches.
  constexpr std::string_view kNames[] = {"pooled keys",
                                         "out.cmp",
                                         "out.slc",
                                         "out.win",
                                         "indices",
                                         "lists",
                                         "out",
                                         "dQ",
                                         "dGates",
                                         "dKV.cmp",
                                         "dKV.slc",
                                         "dKV.win",
                                         "scores",
                                         "partial out",
                                         "partial log-sums",
                                         "packed out",
                                         "stats.cmp",
                                         "stats.slc",
                                         "stats.win",
                                         "first tokens' dQ",
                                         "pooled dK",
                                         "pooled dV",
                                         "first tokens' units",
                                         "cmp units",
                                         "list units",
                                         "partial dQ",
                                         "cmp bounds",
                                         "cmp dQ sums",
                                         "units",
                                         "starts of units"};
  static_assert(std::size(kNames) == kBuffers);
  return kNames[static_cast<std::size_t>(buffer)];
}

} // namespace nsa::kernels
