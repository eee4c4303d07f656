#include "worker/process_info/process_info.h"
#include "worker/runtime/runtime.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/headeronly/version.h>

#include <atomic>
#include <cstring>

namespace nsa::runtime {

namespace {

class ReadNow : public Reading {
public:
  explicit ReadNow(const at::Tensor& values) {
    const at::Tensor wide = values.detach().to(at::kDouble).contiguous();
    values_.assign(wide.data_ptr<double>(), wide.data_ptr<double>() + wide.numel());
  }
  std::vector<double> take() override { return values_; }

private:
  std::vector<double> values_;
};

class EventNow : public DeviceEvent {
public:
  double seconds_since(const DeviceEvent& earlier) const override {
    return to_seconds(at_ - dynamic_cast<const EventNow&>(earlier).at_);
  }

private:
  const MonotonicTime at_ = MonotonicTime::now();
};

class CpuRuntime : public Runtime {
public:
  at::Device device() const override { return at::kCPU; }
  std::string device_name() const override { return "cpu " + cpu_model(); }
  std::map<std::string, std::string> versions() const override {
    return {{"libtorch", TORCH_VERSION}};
  }
  std::string why_bf16_is_slow() const override {
    return fast_bf16_instructions().empty() ? "this CPU has neither AMX nor AVX512-BF16" : "";
  }
  DeviceMemory memory() const override { return {}; }
  void synchronize() override {}
  int steps_in_flight() const override { return 1; }
  std::string why_no_graphs() const override { return "a CPU has no graphs"; }
  std::unique_ptr<Reading> read_later(const at::Tensor& values) override {
    return std::make_unique<ReadNow>(values);
  }
  std::shared_ptr<const DeviceEvent> record_event() override {
    return std::make_shared<EventNow>();
  }
  Status attach_progress(void* device_words) override {
    words_ = static_cast<uint64_t*>(device_words);
    return {};
  }
  void mark(progress::DeviceWord word, uint64_t value) override {
    if (words_ != nullptr)
      std::atomic_ref(words_[static_cast<size_t>(word)]).store(value, std::memory_order_release);
  }
  void stall_device() override {
    while (true)
      stalled_ = stalled_ + 1;
  }
  std::shared_ptr<std::byte> allocate_host(size_t bytes) override {
    const size_t rounded = (bytes + 63) / 64 * 64;
    return {static_cast<std::byte*>(std::aligned_alloc(64, std::max<size_t>(rounded, 64))),
            [](std::byte* p) { std::free(p); }};
  }
  void copy_to_host(const at::Tensor& from, std::byte* into) override {
    std::memcpy(into, from.const_data_ptr(), from.nbytes());
  }
  Result<std::unique_ptr<comm::Collectives>>
  make_collectives(Rank rank, int world, const comm::RendezvousAddress& address,
                   Duration collective_limit) override {
    if (world == 1) return comm::make_single_rank_collectives();
    return comm::make_cpu_collectives(rank, world, address, collective_limit);
  }

private:
  uint64_t* words_ = nullptr;
  volatile uint64_t stalled_ = 0; // counts turns of an endless loop
};

} // namespace

Result<std::unique_ptr<Runtime>> make_cpu_runtime(const Request& request) {
  // The thread count affects the bits of results (how sums are split), so it comes from the spec
  // and never from the machine.
  at::set_num_threads(request.threads);
  at::set_num_interop_threads(1);
  // Denormals are kept. Flushing them is a per-thread mode of the CPU, so results would depend on
  // the thread that computed them (docs/design/training.md).
  at::globalContext().setFlushDenormal(false);
  at::globalContext().setDeterministicAlgorithms(request.deterministic, false);
  return std::unique_ptr<Runtime>(std::make_unique<CpuRuntime>());
}

} // namespace nsa::runtime
