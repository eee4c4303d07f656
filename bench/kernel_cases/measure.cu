#include "bench/kernel_cases/measure.h"

#include "bench/kernel_cases/device.h"

namespace nsa::kernels::check {
namespace {

constexpr int kThreads = 256;

__device__ uint64_t mix(uint64_t x) { // splitmix64
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}
__device__ float unit(uint64_t bits) {
  return (static_cast<float>(bits >> 40) + 0.5f) * (1.0f / 16777216.0f);
}

__global__ void normal_kernel(__nv_bfloat16* target, std::size_t count, float deviation,
                              uint64_t seed) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const float radius = sqrtf(-2.0f * logf(unit(mix(seed + 2 * i))));
  target[i] = __float2bfloat16(deviation * radius * cospif(2.0f * unit(mix(seed + 2 * i + 1))));
}
__global__ void uniform_kernel(float* target, std::size_t count, float low, float high,
                               uint64_t seed) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) target[i] = low + (high - low) * unit(mix(seed + i));
}

struct Totals {
  double difference;
  double reference;
  unsigned long long worst; // bits of a non-negative double: they order like integers
  unsigned long long invalid;
};

__device__ double to_double(__nv_bfloat16 value) {
  return static_cast<double>(__bfloat162float(value));
}
__device__ double to_double(float value) {
  return static_cast<double>(value);
}

template <typename T>
__global__ void norm_kernel(const T* value, Reference reference, std::size_t count,
                            Totals* totals) {
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += static_cast<std::size_t>(gridDim.x) * kThreads) {
    double expected = 0.0;
    for (int part = 0; part < 3; ++part) {
      if (reference.parts[part] == nullptr) continue;
      const double gate =
          reference.gates == nullptr ? 1.0 : reference.gates[i / reference.row * 3 + part];
      expected += gate * reference.parts[part][i];
    }
    const double got = to_double(value[i]);
    if (isinf(expected) && got == expected) continue;
    if (!isfinite(got) || !isfinite(expected)) {
      atomicAdd(&totals->invalid, 1ull);
      continue;
    }
    const double error = fabs(got - expected);
    difference += error * error;
    norm += expected * expected;
    atomicMax(&totals->worst, static_cast<unsigned long long>(__double_as_longlong(error)));
  }
  atomicAdd(&totals->difference, difference);
  atomicAdd(&totals->reference, norm);
}

// Integer sums do not depend on the order of the additions.
__global__ void hash_kernel(const uint32_t* words, std::size_t count, unsigned long long* hash) {
  unsigned long long sum = 0;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += static_cast<std::size_t>(gridDim.x) * kThreads)
    sum += mix(mix(i) ^ words[i]);
  atomicAdd(hash, sum);
}

template <typename T>
ErrorNorm norm(const T* value, const Reference& reference, std::size_t count) {
  DeviceBuffer<Totals> totals(1);
  totals.from_host({Totals{}});
  if (count > 0) norm_kernel<<<512, kThreads>>>(value, reference, count, totals.get());
  cuda_check(cudaGetLastError(), "norm");
  const Totals host = totals.to_host()[0];
  ErrorNorm result;
  result.relative =
      host.reference > 0.0 ? sqrt(host.difference / host.reference) : sqrt(host.difference);
  result.worst = __builtin_bit_cast(double, host.worst);
  result.invalid = host.invalid;
  return result;
}

unsigned blocks_for(std::size_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

} // namespace

void fill_normal(__nv_bfloat16* target, std::size_t count, float deviation, uint64_t seed) {
  if (count == 0) return;
  normal_kernel<<<blocks_for(count), kThreads>>>(target, count, deviation, seed << 40);
  cuda_check(cudaGetLastError(), "fill_normal");
}
void fill_uniform(float* target, std::size_t count, float low, float high, uint64_t seed) {
  if (count == 0) return;
  uniform_kernel<<<blocks_for(count), kThreads>>>(target, count, low, high, seed << 40);
  cuda_check(cudaGetLastError(), "fill_uniform");
}
void add_hash(const void* data, std::size_t words, unsigned long long* hash) {
  if (words == 0) return;
  hash_kernel<<<512, kThreads>>>(static_cast<const uint32_t*>(data), words, hash);
  cuda_check(cudaGetLastError(), "add_hash");
}
ErrorNorm error_norm(const __nv_bfloat16* value, const Reference& reference, std::size_t count) {
  return norm(value, reference, count);
}
ErrorNorm error_norm(const float* value, const Reference& reference, std::size_t count) {
  return norm(value, reference, count);
}

} // namespace nsa::kernels::check
