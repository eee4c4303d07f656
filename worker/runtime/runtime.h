// Runtime: the device that a rank computes on. One implementation for the CPU is linked in; the one
// for CUDA lives in libnsa_runtime_cuda.so, so that the worker loads where there is no CUDA.
//
// The training thread calls it, and no other, but for allocate_host, which any may call. Work on a
// GPU is enqueued; synchronize() waits for it.
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

// A few numbers on their way from the device to the host.
class Reading {
public:
  virtual ~Reading() = default;
  virtual std::vector<double> take() = 0; // waits until they are there
};

// A point in the device's work: it passes when what was enqueued before it is done.
class DeviceEvent {
public:
  virtual ~DeviceEvent() = default;
  // Both are of one runtime, and the device has passed both, else it throws.
  virtual double seconds_since(const DeviceEvent& earlier) const = 0;
};

class Runtime {
public:
  virtual ~Runtime() = default;

  virtual at::Device device() const = 0;
  virtual std::string device_name() const = 0; // "cpu AMD EPYC", "cuda:0 NVIDIA H200 GPU-..."
  virtual std::map<std::string, std::string> versions() const = 0; // "libtorch", "cuda", "nccl"
  // Empty when BF16 is fast here, else why it is not.
  virtual std::string why_bf16_is_slow() const = 0;
  virtual DeviceMemory memory() const = 0;
  // Bytes that all processes use on the device, as its driver says; 0 on a CPU. Asks the driver:
  // not for every step.
  virtual uint64_t used_on_device() const { return 0; }
  // Gives cached memory back and lets the peak begin anew: for measurements.
  virtual void reset_peak_memory() {}

  virtual void synchronize() = 0;
  // Debug: while on, an operation of LibTorch that makes the host wait for the device throws
  // c10::Error. synchronize() and take() may wait.
  virtual void refuse_host_waits(bool) {}
  // How many steps may be enqueued before the results of the oldest are waited for: 1 where the
  // host is the device.
  virtual int steps_in_flight() const = 0;
  // A small floating-point tensor of the device, as it is when the work enqueued so far is done.
  virtual std::unique_ptr<Reading> read_later(const at::Tensor& values) = 0;
  // Behind the work enqueued so far. Nothing waits.
  virtual std::shared_ptr<const DeviceEvent> record_event() = 0;

  // Empty where work can be recorded as graphs, which on a GPU takes Request::graphs; else why not.
  virtual std::string why_no_graphs() const { return "this device records no graphs"; }
  // Waits for the device and gives its cached memory back, so that what graphs keep to themselves
  // does not lie beside what the same work took before.
  virtual Result<std::unique_ptr<Recorder>> make_recorder() {
    return fail(ErrorCode::kUnsupported, "there are no graphs: " + why_no_graphs());
  }

  // The progress page's device words. mark() stores one of them when the work enqueued so far is
  // done; before attach_progress() it does nothing.
  virtual Status attach_progress(void* device_words) = 0;
  virtual void mark(progress::DeviceWord word, uint64_t value) = 0;

  // A fault on purpose: enqueues work that never ends, so that nothing behind it begins. Where the
  // host is the device, it does not return.
  virtual void stall_device() = 0;

  // Host memory that copies from and to the device need not wait for (pinned on a GPU).
  virtual std::shared_ptr<std::byte> allocate_host(size_t bytes) = 0;
  // Enqueues a copy of a contiguous tensor; `into` holds it after synchronize().
  virtual void copy_to_host(const at::Tensor& from, std::byte* into) = 0;

  virtual Result<std::unique_ptr<comm::Collectives>>
  make_collectives(Rank rank, int world, const comm::RendezvousAddress& address,
                   Duration collective_limit) = 0;
};

struct Request {
  spec::Device device = spec::Device::kAuto;
  Rank rank = 0;   // among those of its node: its GPU's place among those that it sees
  int threads = 1; // CPU threads that tensor operations use
  bool deterministic = false;
  bool graphs = false; // the training thread gets a stream of its own, which can be recorded
  // Where a GPU's runtime says what its memory holds when it is exhausted (out_of_memory.h). Empty:
  // nowhere.
  std::filesystem::path out_of_memory_file;
  // Called once LibTorch's CUDA part and the plug-ins are loaded, before the device is opened. May
  // be empty.
  std::function<void()> libraries_loaded;
};

// Must be the first thing in a process that touches LibTorch: the CUDA library is found only if it
// is loaded before anything asks whether it is there. "cuda" without a usable GPU is an error that
// names what is missing; "auto" then means the CPU, and says so in the log.
Result<std::unique_ptr<Runtime>> open_runtime(const Request& request);

Result<std::unique_ptr<Runtime>> make_cpu_runtime(const Request& request);

// What libnsa_runtime_cuda.so exports under kCudaEntryPoint. Both sides are of one build, which
// `build` (of the caller) lets the library check, since C++ objects pass between them.
inline constexpr const char* kCudaLibrary = "libnsa_runtime_cuda.so";
inline constexpr const char* kCudaEntryPoint = "nsa_make_cuda_runtime";
using MakeCudaRuntime = Result<std::unique_ptr<Runtime>> (*)(const Request& request,
                                                             const std::string& build);

} // namespace nsa::runtime
