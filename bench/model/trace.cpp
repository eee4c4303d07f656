#include "bench/model/trace.h"

#include <torch/csrc/autograd/profiler_kineto.h>

namespace nsa::bench {

void write_trace(const std::string& path, at::Device device, const std::function<void()>& work) {
  using torch::profiler::impl::ActivityType;
  namespace profiler = torch::autograd::profiler;
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set<ActivityType> activities{device.is_cpu() ? ActivityType::CPU : ActivityType::CUDA};
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  work();
  profiler::disableProfiler()->save(path);
}

} // namespace nsa::bench
