#include "nsa_model/kernels/decode/decode.h"

namespace nsa::kernels {

namespace {

constexpr std::size_t kVectorBytes = sizeof(uint4); // bytes that a lane loads at once
static_assert(kHeadDim * sizeof(__nv_bfloat16) % kVectorBytes == 0,
              "every row of an aligned cache, query or output is aligned");

bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kVectorBytes == 0;
}

} // namespace

cudaError_t check_decode(const DecodeParams& p) {
  const bool is_cluster = p.plan.log_ctas >= 0 && p.plan.ctas() <= decode::Tile::kMostCtas;
  const bool is_alone = p.plan.log_ctas == 0 && p.heads <= decode::kHalfHeads;
  if (p.batch < 1 || p.groups < 1 || p.heads < 1 || p.heads > kMostHeads || p.tokens < 1 ||
      p.tokens > kMostDecodeTokens || p.compressed_rows < decode::compressed_keys(p.tokens) ||
      p.window_rows < decode::window_keys(p.tokens) ||
      (p.gates_of_token != p.groups && p.gates_of_token != p.groups * p.heads) || !is_cluster ||
      (p.plan.alone && !is_alone) || (p.plan.sums_in_workspace && p.workspace == nullptr))
    return cudaErrorInvalidValue;
  const void* const vectors[] = {p.q,          p.k_compressed, p.v_compressed,
                                 p.k_selected, p.v_selected,   p.k_window,
                                 p.v_window,   p.out,          p.workspace};
  for (const void* pointer : vectors)
    if (!is_aligned(pointer)) return cudaErrorMisalignedAddress;
  return cudaSuccess;
}

} // namespace nsa::kernels
