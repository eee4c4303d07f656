#include "bench/gpu_times/gpu_times.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <algorithm>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <filesystem>
#include <vector>

namespace nsa::bench {

Status load_kernels(const std::string& library) {
  const auto missing = [](const std::string& what) { return fail(ErrorCode::kUnavailable, what); };
  if (::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr)
    return missing(std::string("LibTorch's CUDA part cannot be loaded: ") + ::dlerror());
  if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0)
    return missing("there is no GPU");
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  std::string file = library;
  for (const auto& place : {folder / "../lib/libnsa_ops_cuda.so", folder / "libnsa_ops_cuda.so"})
    if (file.empty() && std::filesystem::exists(place)) file = place.string();
  if (file.empty())
    return missing("libnsa_ops_cuda.so is neither beside the program nor in ../lib");
  if (::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr)
    return missing(std::string("the kernels cannot be loaded: ") + ::dlerror());
  return {};
}

Timer::Timer()
    : filled_(at::empty({1024 * 1024 * 1024},
                        at::TensorOptions().device(at::kCUDA).dtype(at::kByte))) {}

Times Timer::time(const std::function<void()>& run, int64_t repeats, double seconds) const {
  constexpr int64_t kWarmUp = 3, kLeast = 5;
  const c10::impl::VirtualGuardImpl device(c10::DeviceType::CUDA);
  const auto now = [&] {
    c10::Event event(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT); // with timing enabled
    event.record(device.getStream(device.getDevice()));
    return event;
  };
  std::vector<double> times;
  double spent = 0;
  for (int64_t i = 0; i < repeats + kWarmUp; ++i) {
    if (int64_t(times.size()) >= kLeast && spent > 1e3 * seconds) break;
    filled_.fill_(i % 2);
    const c10::Event begin = now();
    run();
    const c10::Event end = now();
    end.synchronize();
    if (i < kWarmUp) continue;
    times.push_back(begin.elapsedTime(end));
    spent += times.back();
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[times.size() / 10], times[times.size() * 9 / 10],
          int64_t(times.size())};
}

namespace {

c10::CachingDeviceAllocator::Stat allocated(bool reset) {
  const auto device = c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getDevice().index();
  auto* const allocator = c10::getDeviceAllocator(c10::DeviceType::CUDA);
  if (reset) allocator->resetPeakStats(device);
  constexpr std::size_t kAll = 0; // StatType::AGGREGATE
  return allocator->getDeviceStats(device).allocated_bytes[kAll];
}

} // namespace

PeakMemory::PeakMemory() : before_(allocated(true).current) {}
int64_t PeakMemory::bytes() const {
  return allocated(false).peak - before_;
}

std::string device_name() {
  // Calls the driver's function, so that no CUDA header is needed here.
  using GetName = int (*)(char*, int, int);
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  const auto get = driver ? reinterpret_cast<GetName>(::dlsym(driver, "cuDeviceGetName")) : nullptr;
  char name[256] = "";
  const int device = c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getDevice().index();
  if (get == nullptr || get(name, sizeof(name), device) != 0) return "unknown GPU";
  return name;
}

Ceilings measure_ceilings(const Timer& timer) {
  const auto options = at::TensorOptions().device(at::kCUDA);
  constexpr double kBytes = 1024.0 * 1024 * 1024;
  const at::Tensor from = at::randn({256 * 1024 * 1024}, options.dtype(at::kFloat));
  at::Tensor to = at::empty_like(from);
  constexpr double kSide = 8192;
  const at::Tensor a = at::randn({int64_t(kSide), int64_t(kSide)}, options.dtype(at::kBFloat16));
  const at::Tensor b = at::randn_like(a);
  at::Tensor c = at::empty_like(a);
  Ceilings ceilings;
  ceilings.copy_gb_s = 2 * kBytes / 1e6 / timer.time([&] { to.copy_(from); }, 10).median;
  ceilings.product_tflop_s =
      2 * kSide * kSide * kSide / 1e9 / timer.time([&] { at::mm_out(c, a, b); }, 10).median;
  return ceilings;
}

} // namespace nsa::bench
