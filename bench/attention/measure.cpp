#include "bench/attention/measure.h"

#include <ATen/Functions.h>
#include <algorithm>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <vector>

namespace nsa::bench {

Times time_of(const std::function<void()>& run, int repeats) {
  constexpr int kWarmUp = 3;
  const c10::impl::VirtualGuardImpl device(c10::DeviceType::CUDA);
  const auto now = [&] {
    c10::Event event(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT); // keeps the time
    event.record(device.getStream(device.getDevice()));
    return event;
  };
  std::vector<double> times;
  for (int i = 0; i < repeats + kWarmUp; ++i) {
    const c10::Event begin = now();
    run();
    const c10::Event end = now();
    end.synchronize();
    if (i >= kWarmUp) times.push_back(begin.elapsedTime(end));
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[times.size() / 10], times[times.size() * 9 / 10]};
}

Ceilings measure_ceilings() {
  const auto options = at::TensorOptions().device(at::kCUDA);
  constexpr double kBytes = 1024.0 * 1024 * 1024;
  const at::Tensor from = at::randn({256 * 1024 * 1024}, options.dtype(at::kFloat));
  at::Tensor to = at::empty_like(from);
  constexpr double kSide = 8192;
  const at::Tensor a = at::randn({int64_t(kSide), int64_t(kSide)}, options.dtype(at::kBFloat16));
  const at::Tensor b = at::randn_like(a);
  at::Tensor c = at::empty_like(a);
  Ceilings ceilings;
  ceilings.copy_gb_s = 2 * kBytes / 1e6 / time_of([&] { to.copy_(from); }, 10).median;
  ceilings.product_tflop_s =
      2 * kSide * kSide * kSide / 1e9 / time_of([&] { at::mm_out(c, a, b); }, 10).median;
  return ceilings;
}

} // namespace nsa::bench
