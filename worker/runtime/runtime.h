// Runtime is the device that a rank computes on. The implementation for the CPU is linked in. The
// one for CUDA is in libnsa_runtime_cuda.so, so that the worker loads on machines without CUDA.
//
// Training thread only, except allocate_host(), which any thread may call. Work on a GPU is
// enqueued; synchronize() waits for it.
#pragma once

#include "common/base/result.h"
#include "common/progress/page.h"
#include "common/spec/run_spec.h"
#include "worker/comm/collectives.h"
#include "worker/graphs/graph.h"

#include <ATen/core/TensorBody.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace nsa::runtime {

struct DeviceMemory {
  uint64_t allocated = 0, reserved = 0, peak = 0; // bytes; all 0 on a CPU
};

// A few numbers that are copied from the device to the host.
class Reading {
public:
  virtual ~Reading() = default;
  virtual std::vector<double> take() = 0; // waits for the copy
};

// A point in the device's work. The device passes it after all work that was enqueued before it.
class DeviceEvent {
public:
  virtual ~DeviceEvent() = default;
  // Both must be of one runtime, and the device must have passed both; otherwise it throws.
  virtual double seconds_since(const DeviceEvent& earlier) const = 0;
};

class Runtime {
public:
  virtual ~Runtime() = default;

  virtual at::Device device() const = 0;
  virtual std::string device_name() const = 0; // for example "cpu AMD EPYC", "cuda:0 NVIDIA H200
                                               // GPU-..."
  virtual std::map<std::string, std::string> versions() const = 0; // "libtorch", "cuda", "nccl"
  // Empty if BF16 is fast here; otherwise the reason why it is slow.
  virtual std::string why_bf16_is_slow() const = 0;
  virtual DeviceMemory memory() const = 0;
  // Bytes that all processes use on the device, reported by its driver; 0 on a CPU. The call is too
  // slow for every step.
  virtual uint64_t used_on_device() const { return 0; }
  // Releases cached memory and resets the peak, for measurements.
  virtual void reset_peak_memory() {}

  virtual void synchronize() = 0;
  // For debugging. While it is on, a LibTorch operation that makes the host wait for the device
  // throws c10::Error. synchronize() and take() may wait.
  virtual void refuse_host_waits(bool) {}
  // Number of steps in flight before the host waits for the oldest one's results; 1 on a CPU.
  virtual int steps_in_flight() const = 0;
  // Reads a small floating-point tensor of the device after all work enqueued so far.
  virtual std::unique_ptr<Reading> read_later(const at::Tensor& values) = 0;
  // Records an event after the work enqueued so far, without waiting.
  virtual std::shared_ptr<const DeviceEvent> record_event() = 0;

  // Empty if work can be captured as graphs; otherwise the reason. A GPU needs Request::graphs.
  virtual std::string why_no_graphs() const { return "this device records no graphs"; }
  // Waits for the device and releases its cached memory, because graphs allocate from a separate
  // pool.
  virtual Result<std::unique_ptr<Recorder>> make_recorder() {
    return fail(ErrorCode::kUnsupported, "there are no graphs: " + why_no_graphs());
  }

  // attach_progress() takes the progress page's device words. mark() stores one of them after the
  // work enqueued so far; before attach_progress() it does nothing.
  virtual Status attach_progress(void* device_words) = 0;
  virtual void mark(progress::DeviceWord word, uint64_t value) = 0;

  // Fault injection: enqueues work that never ends, so that later work never starts. On a CPU it
  // does not return.
  virtual void stall_device() = 0;

  // Host memory for asynchronous copies from and to the device (pinned on a GPU).
  virtual std::shared_ptr<std::byte> allocate_host(size_t bytes) = 0;
  // Enqueues a copy of a contiguous tensor. `into` is valid after synchronize().
  virtual void copy_to_host(const at::Tensor& from, std::byte* into) = 0;

  virtual Result<std::unique_ptr<comm::Collectives>>
  make_collectives(Rank rank, int world, const comm::RendezvousAddress& address,
                   Duration collective_limit) = 0;
};

struct Request {
  spec::Device device = spec::Device::kAuto;
  Rank rank = 0;   // local rank: index of its GPU among the visible ones
  int threads = 1; // CPU threads for tensor operations
  bool deterministic = false;
  bool graphs = false; // the training thread gets its own stream, which can be captured
  // File for a GPU runtime's report when memory is exhausted (out_of_memory.h). Empty: no report.
  std::filesystem::path out_of_memory_file;
  // Called after LibTorch's CUDA part and the plug-ins are loaded, before the device is opened. May
  // be empty.
  std::function<void()> libraries_loaded;
};

// It must be the first use of LibTorch in a process: LibTorch finds its CUDA library only if it is
// loaded before any check for it. With "cuda", the error names what is missing if no GPU is usable.
// With "auto", a machine without a GPU uses the CPU and logs a warning.
Result<std::unique_ptr<Runtime>> open_runtime(const Request& request);

Result<std::unique_ptr<Runtime>> make_cpu_runtime(const Request& request);

// The function that libnsa_runtime_cuda.so exports as kCudaEntryPoint. C++ objects pass between
// both sides, so they must be of one build; the library compares `build` of the caller with its
// own.
inline constexpr const char* kCudaLibrary = "libnsa_runtime_cuda.so";
inline constexpr const char* kCudaEntryPoint = "nsa_make_cuda_runtime";
using MakeCudaRuntime = Result<std::unique_ptr<Runtime>> (*)(const Request& request,
                                                             const std::string& build);

} // namespace nsa::runtime
