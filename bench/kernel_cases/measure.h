#pragma once
// Random inputs and error norms on the device, for the kernel check program.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace nsa::kernels::check {

// Normal random numbers with the given standard deviation; each is a function of (seed, index)
// alone.
void fill_normal(__nv_bfloat16* target, std::size_t count, float deviation, uint64_t seed);
// Uniform numbers in [low, high).
void fill_uniform(float* target, std::size_t count, float low, float high, uint64_t seed);

struct ErrorNorm {
  double relative =
      0.0; // ||value - reference|| / ||reference||; the plain norm when the reference is 0
  double worst = 0.0; // largest absolute difference
  // Values that are NaN or infinite while the reference is not (equal infinities agree)
  std::size_t invalid = 0;
};
// `reference` may be the sum of up to three arrays (nullptr: absent). With `gates`, array i is
// weighted by gates[row * 3 + i].
struct Reference {
  const double* parts[3] = {nullptr, nullptr, nullptr};
  const float* gates = nullptr;
  std::size_t row = 64; // elements that share a row of gates
};
ErrorNorm error_norm(const __nv_bfloat16* value, const Reference& reference, std::size_t count);
ErrorNorm error_norm(const float* value, const Reference& reference, std::size_t count);

// Adds to *hash, on the device and without waiting, a number that depends only on these 4-byte
// words and their positions.
void add_hash(const void* data, std::size_t words, unsigned long long* hash);

} // namespace nsa::kernels::check
