#include "worker/optimizer/stochastic_rounding.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>

namespace nsa::train {

namespace {

// Sized for a core's cache, or to occupy a whole GPU. The random numbers do not depend on it.
constexpr int64_t kChunkCpu = int64_t(1) << 15, kChunkGpu = int64_t(1) << 22;

// In the counter the element index is below 2^40, and updates are above it. No model here has 2^40
// parameters.
constexpr int64_t kUpdateStride = int64_t(1) << 40;

// ATen's integers wrap around, as the finaliser needs. Their right shift keeps the sign, which the
// mask removes.
void xor_shifted(const at::Tensor& x, int64_t bits) {
  const int64_t mask = (int64_t(1) << (64 - bits)) - 1;
  x.bitwise_xor_(x.bitwise_right_shift(bits).bitwise_and_(mask));
}

// Returns 16 random bits for each counter, as int32.
at::Tensor random_bits(const at::Tensor& counter) {
  at::Tensor x = counter.mul(int64_t(0x9e3779b97f4a7c15ull));
  xor_shifted(x, 30);
  x.mul_(int64_t(0xbf58476d1ce4e5b9ull));
  xor_shifted(x, 27);
  x.mul_(int64_t(0x94d049bb133111ebull));
  return x.bitwise_right_shift_(48).bitwise_and_(0xffff).to(at::kInt);
}

} // namespace

void round_stochastically(const at::Tensor& from, const at::Tensor& to, uint64_t seed,
                          const at::Tensor& updates, int64_t first) {
  const at::NoGradGuard no_grad;
  const int64_t chunk = from.is_cpu() ? kChunkCpu : kChunkGpu, size = from.numel();
  const at::Tensor index =
      at::arange(std::min(chunk, size), from.options().dtype(at::kLong)).add_(first);
  // Multiplication spreads neighbouring seeds apart.
  const at::Tensor base =
      updates.to(at::kLong).mul_(kUpdateStride).add_(int64_t(seed * 0xd1342543de82ef95ull));
  for (int64_t begin = 0; begin < size; begin += chunk) {
    const int64_t count = std::min(chunk, size - begin);
    const at::Tensor random = random_bits(index.narrow(0, 0, count).add(base).add_(begin));
    // A BF16 is the upper half of an FP32. Adding a random lower half carries into it with a
    // probability proportional to the lower half. This also works for negative numbers, whose bits
    // grow with their magnitude.
    const at::Tensor bits =
        random.add_(from.narrow(0, begin, count).view(at::kInt)).bitwise_and_(int64_t(-0x10000));
    to.narrow(0, begin, count).copy_(bits.view(at::kFloat));
  }
}

} // namespace nsa::train
