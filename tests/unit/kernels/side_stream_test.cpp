// Fork and join of the second stream, and the whole passes around them, with a CUDA runtime that
// computes nothing. This program defines the runtime's functions. They record what is enqueued on
// which stream, and each can be made to fail.
#include "nsa_model/kernels/fused/fused.h"
#include "nsa_model/kernels/fused/side_stream.h"

#include <cuda.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace {

// Uses vector clocks to know which work each stream comes after. Work is numbered. A stream knows
// the newest work of each stream that it waits for, and an event passes that knowledge on.
class FakeRuntime {
public:
  using Clock = std::map<cudaStream_t, int>;

  // One of the runtime's functions that can fail. A failing one does nothing.
  cudaError_t call(const char* name) {
    calls.emplace_back(name);
    return static_cast<int>(calls.size()) == failing ? cudaErrorInvalidValue : cudaSuccess;
  }
  void enqueue(cudaStream_t stream) { clocks_[stream][stream] = ++work_; }
  void record(cudaEvent_t event, cudaStream_t stream) { events_[event] = clocks_[stream]; }
  void wait(cudaStream_t stream, cudaEvent_t event) {
    enqueue(stream); // a capture then includes this stream, which must be joined
    for (const auto& [other, number] : events_[event]) {
      int& known = clocks_[stream][other];
      known = std::max(known, number);
    }
  }
  // Whether `stream` comes after all work of all streams.
  bool has_all(cudaStream_t stream) {
    for (const auto& [other, clock] : clocks_)
      if (clocks_[stream][other] < clock.at(other)) return false;
    return true;
  }
  int64_t count(const std::string& name) const {
    return std::count(calls.begin(), calls.end(), name);
  }

  void begin(int failing_call) {
    failing = failing_call;
    calls.clear();
    clocks_.clear();
    events_.clear();
  }
  std::vector<std::string> calls;
  int failing = 0;     // number of the failing call, from 1; 0: none
  bool context = true; // of the calling thread; functions of the driver need one

private:
  int work_ = 0;
  std::map<cudaStream_t, Clock> clocks_;
  std::map<cudaEvent_t, Clock> events_;
};

FakeRuntime& runtime() {
  static FakeRuntime fake;
  return fake;
}

template <class Handle> Handle handle(std::uintptr_t number) {
  return reinterpret_cast<Handle>(number * 4096);
}

} // namespace

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
  runtime().context = true;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9
           : attribute == cudaDevAttrMultiProcessorCount  ? 132
                                                          : 227 * 1024;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = handle<cudaStream_t>(1);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  static std::uintptr_t made = 1;
  *event = handle<cudaEvent_t>(++made);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const cudaError_t error = runtime().call("record");
  if (error == cudaSuccess) runtime().record(event, stream);
  return error;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const cudaError_t error = runtime().call("wait");
  if (error == cudaSuccess) runtime().wait(stream, event);
  return error;
}
cudaError_t cudaMemsetAsync(void*, int, std::size_t, cudaStream_t stream) {
  const cudaError_t error = runtime().call("memset");
  if (error == cudaSuccess) runtime().enqueue(stream);
  return error;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void*, void**) {
  const cudaError_t error = runtime().call("launch");
  if (error != cudaSuccess) return error;
  for (unsigned i = 0; i < config->numAttrs; ++i)
    if (config->attrs[i].id == cudaLaunchAttributeLaunchCompletionEvent)
      runtime().record(config->attrs[i].val.launchCompletionEvent.event, config->stream);
  runtime().enqueue(config->stream);
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** entry, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const decltype(&cuTensorMapEncodeTiled) encode =
      [](CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
         const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
         CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
        return runtime().context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
      };
  *entry = reinterpret_cast<void*>(encode);
  *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

} // extern "C"

namespace nsa::kernels {
namespace {

const cudaStream_t kMain = handle<cudaStream_t>(2);

TEST(SideFork, JoinsOnEveryWayOut) {
  runtime().begin(0);
  {
    SideFork fork;
    ASSERT_EQ(fork.fork(kMain), cudaSuccess);
    runtime().enqueue(fork.side().stream);
    EXPECT_FALSE(runtime().has_all(kMain));
  } // as if a function returned early
  EXPECT_TRUE(runtime().has_all(kMain));
  EXPECT_EQ(runtime().count("wait"), 2);

  runtime().begin(0);
  {
    SideFork fork;
    ASSERT_EQ(fork.fork(kMain), cudaSuccess);
    ASSERT_EQ(fork.fork(kMain), cudaSuccess);
    runtime().enqueue(fork.side().stream);
    ASSERT_EQ(fork.join(), cudaSuccess);
  }
  EXPECT_TRUE(runtime().has_all(kMain));
  EXPECT_EQ(runtime().count("wait"), 3) << "one join is enough";

  runtime().begin(2); // the wait of the side stream
  {
    SideFork fork;
    EXPECT_NE(fork.fork(kMain), cudaSuccess);
  }
  EXPECT_EQ(runtime().calls.size(), 2U) << "there is nothing to join";
}

enum class Pass { kForward, kBackward };

cudaError_t run(Pass pass, int sequence, bool window = true) {
  AttentionShape shape;
  shape.batch = 1;
  shape.sequence = sequence;
  shape.groups = 2;
  shape.heads = 6;
  shape.head_dim = kHeadDim;
  FusedInputs inputs = {};
  inputs.shape = shape;
  inputs.tuning = {};
  auto memory = [number = std::uintptr_t(1) << 20]() mutable { return ++number * 4096; };
  const auto bf16 = [&] { return reinterpret_cast<__nv_bfloat16*>(memory()); };
  const auto fp32 = [&] { return reinterpret_cast<float*>(memory()); };
  inputs.q = bf16();
  FusedSaved saved = {};
  FusedGradients gradients = {};
  for (int branch = 0; branch < kBranches; ++branch) {
    inputs.k[branch] = bf16();
    inputs.v[branch] = bf16();
    saved.branch_out[branch] = bf16();
    saved.branch_lse[branch] = fp32();
    gradients.d_k[branch] = bf16();
    gradients.d_v[branch] = bf16();
  }
  inputs.pool_k = bf16();
  inputs.pool_v = bf16();
  inputs.gates = fp32();
  if (!window) inputs.k[kBranches - 1] = nullptr;
  saved.indices = reinterpret_cast<int32_t*>(memory());
  saved.lists = reinterpret_cast<void*>(memory());
  gradients.d_out = bf16();
  gradients.d_q = bf16();
  gradients.d_gates = fp32();
  auto* workspace = reinterpret_cast<void*>(memory());
  return pass == Pass::kForward ? launch_fused_forward(inputs, saved, bf16(), workspace, kMain)
                                : launch_fused_backward(inputs, saved, gradients, workspace, kMain);
}

// Any call may fail, also one of the side stream. Work that the caller enqueues next must come
// after all other work.
void expect_joined_whichever_fails(Pass pass, int sequence, bool window, int64_t pieces) {
  SCOPED_TRACE(testing::Message() << sequence << (window ? "" : ", window off"));
  runtime().begin(0);
  ASSERT_EQ(run(pass, sequence, window), cudaSuccess);
  EXPECT_TRUE(runtime().has_all(kMain));
  const std::vector<std::string> whole = runtime().calls;
  const int64_t records = runtime().count("record");
  ASSERT_EQ(records, 2) << "one fork and one join";
  // Each piece waits for the kernel before it.
  ASSERT_GE(runtime().count("wait"), records + pieces);
  for (int failing = 1; failing <= static_cast<int>(whole.size()); ++failing) {
    SCOPED_TRACE(testing::Message() << "call " << failing << ", a " << whole[size_t(failing) - 1]);
    runtime().begin(failing);
    EXPECT_EQ(run(pass, sequence, window), cudaErrorInvalidValue);
    EXPECT_TRUE(runtime().has_all(kMain));
  }
}

TEST(FusedBackward, TheStreamsAreOneAgainWhicheverCallFails) {
  expect_joined_whichever_fails(Pass::kBackward, 8192, true, 1);
  expect_joined_whichever_fails(Pass::kBackward, 65536, true, 4); // several rounds of lists
  expect_joined_whichever_fails(Pass::kBackward, kMaxSequence, true, 4);
  expect_joined_whichever_fails(Pass::kBackward, 8192, false, 1);
  expect_joined_whichever_fails(Pass::kBackward, kMaxSequence, false, 1);
}
TEST(FusedForward, TheStreamsAreOneAgainWhicheverCallFails) {
  expect_joined_whichever_fails(Pass::kForward, 8192, true, 0);
  expect_joined_whichever_fails(Pass::kForward, kMaxSequence, true, 0);
}

// This is the first call of autograd's thread, and its memory comes from a cache.
TEST(FusedBackward, AThreadWithoutAContextGetsOne) {
  runtime().begin(0);
  runtime().context = false;
  EXPECT_EQ(run(Pass::kBackward, 8192), cudaSuccess);
  EXPECT_TRUE(runtime().context);
}

} // namespace
} // namespace nsa::kernels
