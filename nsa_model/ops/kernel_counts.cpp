#include "nsa_model/ops/kernel_counts.h"

#include <atomic>

namespace nsa::ops {

namespace {

std::array<std::array<std::atomic<uint64_t>, choice::kBackends>, choice::kParts> g_counts{};

} // namespace

void count_kernel(choice::Part part, choice::Backend backend) {
  g_counts[static_cast<size_t>(part)][static_cast<size_t>(backend)].fetch_add(
      1, std::memory_order_relaxed);
}

choice::KernelCounts kernel_counts() {
  choice::KernelCounts counts{};
  for (size_t part = 0; part < choice::kParts; ++part)
    for (size_t backend = 0; backend < choice::kBackends; ++backend)
      counts[part][backend] = g_counts[part][backend].load(std::memory_order_relaxed);
  return counts;
}

} // namespace nsa::ops
