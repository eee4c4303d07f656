// The runtime on one NVIDIA GPU. Built into libnsa_runtime_cuda.so.
#include "common/base/build_info.h"
#include "worker/runtime/cuda/endless_kernel.h"
#include "worker/runtime/cuda/graph_recorder.h"
#include "worker/runtime/cuda/nccl_collectives.h"
#include "worker/runtime/cuda/progress_marks.h"
#include "worker/runtime/out_of_memory.h"
#include "worker/runtime/runtime.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cstdlib>
#include <dlfcn.h>
#include <torch/headeronly/version.h>

namespace nsa::runtime {

namespace {

class EventReading : public Reading {
public:
  explicit EventReading(const at::Tensor& values)
      : host_(
            at::empty(values.sizes(), at::TensorOptions().dtype(at::kDouble).pinned_memory(true))) {
    host_.copy_(values.detach().to(at::kDouble), /*non_blocking=*/true);
    done_.record(c10::cuda::getCurrentCUDAStream());
  }
  std::vector<double> take() override {
    done_.synchronize();
    return {host_.data_ptr<double>(), host_.data_ptr<double>() + host_.numel()};
  }

private:
  at::Tensor host_;
  at::cuda::CUDAEvent done_;
};

class CudaEvent : public DeviceEvent {
public:
  CudaEvent() { passed_.record(c10::cuda::getCurrentCUDAStream()); }
  double seconds_since(const DeviceEvent& earlier) const override {
    return dynamic_cast<const CudaEvent&>(earlier).passed_.elapsed_time(passed_) / 1e3;
  }

private:
  at::cuda::CUDAEvent passed_{cudaEventDefault}; // the class's default flag records no time
};

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    text += digits;
    if (i == 3 || i == 5 || i == 7 || i == 9) text += "-";
  }
  return text;
}

std::string version_text(int v) { // 13000 -> "13.0"
  return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10);
}
std::string library_version_text(size_t v) { // 91900 -> "9.19.0"
  return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
         std::to_string(v % 100);
}

// Asks the loaded library, because another one on the library path may have replaced ours.
std::string cublas_version() {
  using Version = size_t (*)();
  const auto version = reinterpret_cast<Version>(::dlsym(RTLD_DEFAULT, "cublasLtGetVersion"));
  return version == nullptr ? "unknown" : library_version_text(version());
}
std::string cudnn_version() {
  const auto& hooks = at::detail::getCUDAHooks();
  return hooks.hasCuDNN() ? library_version_text(static_cast<size_t>(hooks.versionRuntimeCuDNN()))
                          : "none";
}

// LibTorch calls the observer before it throws, because unwinding the stack frees the blocks.
void tell_out_of_memory(const std::filesystem::path& file) {
  c10::cuda::CUDACachingAllocator::attachOutOfMemoryObserver(
      [file](int64_t device, size_t asked, size_t total, size_t free) {
        OutOfMemory held{.asked_bytes = asked, .device_bytes = total, .free_bytes = free};
        for (const auto& segment : c10::cuda::CUDACachingAllocator::snapshot().segments) {
          if (segment.device != device) continue;
          held.reserved_bytes += segment.total_size;
          for (const auto& block : segment.blocks)
            if (block.allocated) held.live_blocks.push_back(block.size);
        }
        write_out_of_memory(file, held);
      });
}

class CudaRuntime : public Runtime {
public:
  CudaRuntime(c10::DeviceIndex index, bool graphs) : device_(at::kCUDA, index), graphs_(graphs) {
    c10::cuda::set_device(index);
    // The default stream cannot be captured. The other stream is current from the start, so that
    // everything that LibTorch binds to a stream (cuBLAS workspaces, autograd nodes) uses it.
    if (graphs) c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromPool(false, index));
  }

  at::Device device() const override { return device_; }

  std::string device_name() const override {
    cudaDeviceProp properties{};
    cudaGetDeviceProperties(&properties, device_.index());
    return "cuda:" + std::to_string(device_.index()) + " " + properties.name + " " +
           uuid_text(properties.uuid);
  }

  std::map<std::string, std::string> versions() const override {
    int runtime = 0, driver = 0;
    cudaRuntimeGetVersion(&runtime);
    cudaDriverGetVersion(&driver);
    return {{"libtorch", TORCH_VERSION},      {"cuda", version_text(runtime)},
            {"driver", version_text(driver)}, {"cublas", cublas_version()},
            {"cudnn", cudnn_version()},       {"nccl", nccl_version()}};
  }

  std::string why_bf16_is_slow() const override {
    cudaDeviceProp properties{};
    cudaGetDeviceProperties(&properties, device_.index());
    return properties.major >= 8 ? "" : "this GPU is older than compute capability 8.0";
  }

  DeviceMemory memory() const override {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device_.index());
    constexpr size_t kAll = 0; // StatType::AGGREGATE
    return {static_cast<uint64_t>(stats.allocated_bytes[kAll].current),
            static_cast<uint64_t>(stats.reserved_bytes[kAll].current),
            static_cast<uint64_t>(stats.allocated_bytes[kAll].peak)};
  }

  uint64_t used_on_device() const override {
    size_t free = 0, total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return total - free;
  }

  void reset_peak_memory() override {
    c10::cuda::CUDACachingAllocator::emptyCache();
    c10::cuda::CUDACachingAllocator::resetPeakStats(device_.index());
  }

  void synchronize() override { c10::cuda::device_synchronize(); }
  void refuse_host_waits(bool refuse) override {
    using Mode = c10::cuda::SyncDebugMode;
    c10::cuda::warning_state().set_sync_debug_mode(refuse ? Mode::L_ERROR : Mode::L_DISABLED);
  }
  int steps_in_flight() const override { return 2; }
  std::unique_ptr<Reading> read_later(const at::Tensor& values) override {
    return std::make_unique<EventReading>(values);
  }
  std::shared_ptr<const DeviceEvent> record_event() override {
    return std::make_shared<CudaEvent>();
  }

  std::string why_no_graphs() const override {
    return graphs_ ? "" : "the runtime was opened without them";
  }
  Result<std::unique_ptr<Recorder>> make_recorder() override {
    if (!graphs_) return Runtime::make_recorder();
    synchronize();
    c10::cuda::CUDACachingAllocator::emptyCache();
    return make_graph_recorder(c10::cuda::getCurrentCUDAStream(device_.index()));
  }

  Status attach_progress(void* device_words) override { return marks_.attach(device_words); }
  void mark(progress::DeviceWord word, uint64_t value) override {
    marks_.store(stream(), static_cast<size_t>(word), value);
  }

  void stall_device() override { C10_CUDA_CHECK(launch_endless_kernel(stream())); }

  std::shared_ptr<std::byte> allocate_host(size_t bytes) override {
    // The loader's thread calls it, too, and has not selected a GPU yet. Without this call its
    // allocation would create a context on the first visible GPU.
    c10::cuda::set_device(device_.index());
    void* memory = nullptr;
    C10_CUDA_CHECK(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable));
    return {static_cast<std::byte*>(memory), [](std::byte* p) { cudaFreeHost(p); }};
  }

  void copy_to_host(const at::Tensor& from, std::byte* into) override {
    C10_CUDA_CHECK(cudaMemcpyAsync(into, from.const_data_ptr(), from.nbytes(),
                                   cudaMemcpyDeviceToHost, stream()));
  }

  Result<std::unique_ptr<comm::Collectives>>
  make_collectives(Rank rank, int world, const comm::RendezvousAddress& address,
                   Duration collective_limit) override {
    if (world == 1) return comm::make_single_rank_collectives();
    return make_nccl_collectives(rank, world, device_, address, collective_limit);
  }

private:
  cudaStream_t stream() const { return c10::cuda::getCurrentCUDAStream(device_.index()).stream(); }
  at::Device device_;
  bool graphs_;
  ProgressMarks marks_;
};

} // namespace

extern "C" __attribute__((visibility("default"))) Result<std::unique_ptr<Runtime>>
nsa_make_cuda_runtime(const Request& request, const std::string& build) {
  const std::string own = build_info().version + "+" + build_info().commit;
  if (build != own)
    return fail(ErrorCode::kConflict,
                std::string(kCudaLibrary) + " is of build " + own + ", nsa-worker of " + build,
                "install the programs and plug-ins of one build");
  if (request.deterministic) at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setDeterministicAlgorithms(request.deterministic, false);
  at::set_num_threads(request.threads);
  if (!at::hasCUDA())
    return fail(ErrorCode::kUnavailable, "LibTorch's CUDA part is loaded but does not come up",
                "see that nothing used LibTorch before it was loaded");
  at::globalContext().lazyInitDevice(at::kCUDA); // the allocator knows no device before this call
  if (!request.out_of_memory_file.empty()) tell_out_of_memory(request.out_of_memory_file);
  const int devices = c10::cuda::device_count();
  if (devices == 0) return fail(ErrorCode::kUnavailable, "no GPU is visible to LibTorch");
  // nsad shows each rank one GPU only. Ranks that a user starts by hand share the visible GPUs.
  const auto index = static_cast<c10::DeviceIndex>(devices == 1 ? 0 : request.rank % devices);
  return std::unique_ptr<Runtime>(std::make_unique<CudaRuntime>(index, request.graphs));
}

} // namespace nsa::runtime
