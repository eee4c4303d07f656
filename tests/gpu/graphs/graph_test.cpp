// Training steps on a GPU, launched and as CUDA graphs. With deterministic kernels they give the
// same bits, for one rank and for two with buckets; the second rank is played by a stream of the
// same GPU. The tests also check the marks that the GPU stores during a replay, peak memory, and
// that the host waits for nothing in a step.
//
// Waits are counted in the functions themselves: this program defines the waiting functions of the
// CUDA runtime, counts the calls, and calls the real ones.
#include "tests/support/first_of_two.h"
#include "tests/support/small_training.h"
#include "tests/support/wrapped_runtime.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdio>

namespace {

std::atomic<int> g_host_waits = 0;

// Returns the function of that name in the runtime that LibTorch has loaded.
template <class Function> Function* real(const char* name) {
  const std::string library = "libcudart.so." + std::to_string(CUDART_VERSION / 1000);
  void* const handle = ::dlopen(library.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  void* const found = handle == nullptr ? nullptr : ::dlsym(handle, name);
  if (found == nullptr) {
    std::fprintf(stderr, "%s is not in %s\n", name, library.c_str());
    std::abort();
  }
  return reinterpret_cast<Function*>(found);
}

} // namespace

#define NSA_COUNTED(name, parameters, arguments)                                                   \
  extern "C" __attribute__((visibility("default"))) cudaError_t name parameters {                  \
    static auto* const function = real<cudaError_t parameters>(#name);                             \
    ++g_host_waits;                                                                                \
    return function arguments;                                                                     \
  }
NSA_COUNTED(cudaDeviceSynchronize, (), ())
NSA_COUNTED(cudaStreamSynchronize, (cudaStream_t stream), (stream))
NSA_COUNTED(cudaEventSynchronize, (cudaEvent_t event), (event))
NSA_COUNTED(cudaMemcpy, (void* to, const void* from, size_t bytes, cudaMemcpyKind kind),
            (to, from, bytes, kind))
NSA_COUNTED(cudaMalloc, (void** memory, size_t bytes), (memory, bytes))
NSA_COUNTED(cudaFree, (void* memory), (memory))
#undef NSA_COUNTED

namespace nsa::test {
namespace {

// A deterministic runtime on a stream that can be captured, one for the process. The error says why
// there is none.
Result<std::unique_ptr<runtime::Runtime>>& opened() {
  static Result<std::unique_ptr<runtime::Runtime>> runtime = runtime::open_runtime(
      {.device = spec::Device::kCuda, .threads = 1, .deterministic = true, .graphs = true});
  return runtime;
}

class Graphs : public testing::Test {
protected:
  void SetUp() override {
    if (!opened()) GTEST_SKIP() << opened().error().what;
  }
  static runtime::Runtime& gpu() { return **opened(); }
};

struct Way {
  const char* name;
  model::Attention attention;
  model::Kernels kernels;
  bool fused_layers, recompute = false;
  // cuDNN's backward pass is not deterministic.
  model::DenseAttention dense = model::DenseAttention::kFlash;
  int64_t sequence = 2048; // above this length, six heads per group have lists of blocks
};
constexpr Way kWays[] = {
    {"NSA, fused", model::Attention::kNsa, model::Kernels::kFused, true},
    {"NSA, fused, recompute", model::Attention::kNsa, model::Kernels::kFused, true, true},
    {"dense, fused layers", model::Attention::kDense, model::Kernels::kAten, true},
    {"dense, composed", model::Attention::kDense, model::Kernels::kAten, false},
    {"NSA, ATen", model::Attention::kNsa, model::Kernels::kAten, false},
    {"NSA, fused, with lists", model::Attention::kNsa, model::Kernels::kFused, true, false,
     model::DenseAttention::kFlash, 4096},
    {"dense, our kernels", model::Attention::kDense, model::Kernels::kAten, true, false,
     model::DenseAttention::kFused},
};

// Heads like those of the M7C. The sequence is long enough that blocks are really selected.
SmallTraining training(const Way& way, int64_t accumulate) {
  SmallTraining t{.type = at::kBFloat16};
  t.config.attention = way.attention;
  t.config.kernels = way.kernels;
  t.config.fused_layers = t.config.joined_embedding_gradient = way.fused_layers;
  t.config.activation_recompute = way.recompute;
  t.config.dense_backend = way.dense;
  t.config.gate_statistics = t.config.selection_statistics =
      way.attention == model::Attention::kNsa;
  t.config.dimension = 256;
  t.config.layers = 2;
  t.config.vocabulary = 512;
  t.bucket_bytes = 1 << 20;
  t.accumulate = accumulate;
  t.sequence = way.sequence;
  return t;
}

// A peer with the same gradients. It doubles the values on a separate stream, as NCCL uses one.
class SideStreamPeer : public FirstOfTwo {
public:
  explicit SideStreamPeer(at::Device device)
      : guard_(device.type()), device_(device), side_(guard_.getStreamFromGlobalPool(device)) {}

  std::unique_ptr<comm::Pending> all_reduce_sum(const at::Tensor& tensor, comm::Tag) override {
    ++started;
    c10::Event ready(device_.type());
    ready.record(guard_.getStream(device_));
    ready.block(side_);
    const c10::StreamGuard on_side(side_);
    tensor.mul_(2.0);
    return std::make_unique<Answer>(*this);
  }
  int started = 0;

private:
  class Answer : public comm::Pending {
  public:
    explicit Answer(SideStreamPeer& peer) : peer_(peer), done_(peer.device_.type()) {
      done_.record(peer.side_);
    }
    comm::Outcome wait() override {
      done_.block(peer_.guard_.getStream(peer_.device_));
      return {};
    }

  private:
    SideStreamPeer& peer_;
    c10::Event done_;
  };
  c10::impl::VirtualGuardImpl guard_;
  at::Device device_;
  c10::Stream side_;
};

TEST_F(Graphs, GiveTheBitsOfLaunches) {
  const auto alone = comm::make_single_rank_collectives();
  for (const Way& way : kWays)
    for (const int64_t accumulate : {1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << way.name << ", accumulate " << accumulate);
      const SmallTraining t = training(way, accumulate);
      const SmallOutcome launched = run_small(t, false, gpu(), *alone);
      const SmallOutcome again = run_small(t, false, gpu(), *alone);
      EXPECT_TRUE(at::equal(launched.masters, again.masters))
          << "launches do not repeat their bits";
      const SmallOutcome replayed = run_small(t, true, gpu(), *alone);
      expect_equal(launched, replayed);
      EXPECT_EQ(replayed.graphs, size_t(2 * accumulate));
    }
}

TEST_F(Graphs, GiveTheBitsOfLaunchesInOtherPrecisions) {
  const auto alone = comm::make_single_rank_collectives();
  for (const auto mode : {train::PrecisionMode::kStochasticRounding, train::PrecisionMode::kPure}) {
    SmallTraining t = training(kWays[0], 2);
    t.mode = mode;
    expect_equal(run_small(t, false, gpu(), *alone), run_small(t, true, gpu(), *alone));
  }
  SmallTraining fp32 = training(kWays[3], 2);
  fp32.type = at::kFloat;
  fp32.config.dense_backend = model::DenseAttention::kMath; // FlashAttention does not support FP32
  expect_equal(run_small(fp32, false, gpu(), *alone), run_small(fp32, true, gpu(), *alone));
}

TEST_F(Graphs, AreCutAtBucketsWithAPeer) {
  for (const Way& way : {kWays[0], kWays[2]})
    for (const int64_t accumulate : {1, 2, 3})
      for (const bool compressed : {false, true}) {
        SCOPED_TRACE(testing::Message() << way.name << ", accumulate " << accumulate
                                        << (compressed ? ", BF16 on the wire" : ""));
        SmallTraining t = training(way, accumulate);
        if (compressed) t.options.compress = at::kBFloat16;
        SideStreamPeer first(gpu().device()), second(gpu().device());
        const SmallOutcome launched = run_small(t, false, gpu(), first);
        const SmallOutcome replayed = run_small(t, true, gpu(), second);
        expect_equal(launched, replayed);
        EXPECT_GT(replayed.graphs, size_t(2 * accumulate + 1));
        EXPECT_EQ(second.started, first.started);
      }
}

TEST_F(Graphs, OtherShapesAndPoisonedStepsLieBetweenReplays) {
  const auto alone = comm::make_single_rank_collectives();
  SmallTraining t = training(kWays[0], 1);
  t.steps = 9;
  t.poisoned_step = 4;
  t.wider_step = 6;
  expect_equal(run_small(t, false, gpu(), *alone), run_small(t, true, gpu(), *alone));
}

// Compares the words in device memory with the marks of the step, before and after each mark.
class CheckedMarks : public WrappedRuntime {
public:
  CheckedMarks(runtime::Runtime& gpu, uint64_t* words)
      : WrappedRuntime(gpu), gpu_(gpu), words_(words) {}
  std::string why_no_graphs() const override { return gpu_.why_no_graphs(); }
  Result<std::unique_ptr<runtime::Recorder>> make_recorder() override {
    return gpu_.make_recorder();
  }
  void mark(progress::DeviceWord which, uint64_t value) override {
    const auto index = static_cast<size_t>(which);
    EXPECT_EQ(word(index), newest_[index]) << "recorded launches store none of their own";
    gpu_.mark(which, value);
    newest_[index] = value;
    EXPECT_EQ(word(index), value);
    ++checked_;
  }
  int checked() const { return checked_; }

private:
  uint64_t word(size_t i) {
    gpu_.synchronize();
    return std::atomic_ref(words_[i]).load();
  }
  runtime::Runtime& gpu_;
  uint64_t* words_;
  std::array<uint64_t, progress::kDeviceWords> newest_{};
  int checked_ = 0;
};

// Whenever the device has completed the enqueued work, its marks name that step and phase.
TEST_F(Graphs, MarksUnderReplayNameTheirStep) {
  constexpr size_t kPage = 4096;
  // The GPU keeps the page mapped for the life of the runtime.
  auto* const words = static_cast<uint64_t*>(std::aligned_alloc(kPage, kPage));
  std::fill_n(words, progress::kDeviceWords, 0);
  ASSERT_TRUE(gpu().attach_progress(words));
  CheckedMarks device(gpu(), words);
  const auto alone = comm::make_single_rank_collectives();
  run_small(training(kWays[0], 2), true, device, *alone);
  EXPECT_GT(device.checked(), 0);
}

TEST_F(Graphs, NeedNoMoreMemoryThanLaunches) {
  const auto alone = comm::make_single_rank_collectives();
  for (const Way& way : {kWays[0], kWays[2]}) {
    SmallTraining t = training(way, 3);
    t.rows = 8;
    std::array<runtime::DeviceMemory, 2> memory;
    for (const bool recorded : {false, true}) {
      gpu().reset_peak_memory();
      run_small(t, recorded, gpu(), *alone);
      memory[recorded] = gpu().memory();
    }
    std::printf("%s: peak %.1f MiB launched, %.1f as graphs; reserved %.1f and %.1f\n", way.name,
                double(memory[0].peak) / 1048576, double(memory[1].peak) / 1048576,
                double(memory[0].reserved) / 1048576, double(memory[1].reserved) / 1048576);
    EXPECT_LE(double(memory[1].peak), 1.05 * double(memory[0].peak));
  }
}

// Returns how often the host waits in four steps after the first ones.
int host_waits(SmallTraining t, bool recorded, runtime::Runtime& gpu, comm::Collectives& ranks) {
  int waits = 0, counted = 0;
  t.steps = 8;
  constexpr int kSteadyFrom = 5;
  SmallNotes notes;
  notes.step_begins = [&](int step) {
    if (step < kSteadyFrom) return;
    gpu.refuse_host_waits(true);
    g_host_waits = 0;
  };
  notes.step_enqueued = [&](int step) {
    if (step < kSteadyFrom) return;
    waits += g_host_waits;
    ++counted;
    gpu.refuse_host_waits(false);
  };
  run_small(t, recorded, gpu, ranks, notes);
  EXPECT_EQ(counted, 4);
  EXPECT_GT(g_host_waits, 0) << "reading a step's result is seen as a wait";
  return waits;
}

// While a step is enqueued, nothing waits for the device and nothing asks the driver for memory.
// After a few steps the allocator has all the memory that a step needs.
TEST_F(Graphs, TheHostWaitsForNothingInAStep) {
  for (const bool recorded : {false, true})
    for (const Way& way : {kWays[0], kWays[2], kWays[4]})
      for (const bool peer : {false, true}) {
        SCOPED_TRACE(testing::Message() << way.name << (recorded ? ", graphs" : ", launches")
                                        << (peer ? ", two ranks" : ""));
        SideStreamPeer two(gpu().device());
        const auto alone = comm::make_single_rank_collectives();
        EXPECT_EQ(host_waits(training(way, 2), recorded, gpu(),
                             peer ? static_cast<comm::Collectives&>(two) : *alone),
                  0);
      }
}

// About five documents per row. They are the same in every step, so the allocator has memory of
// their sizes.
TEST_F(Graphs, TheHostWaitsForNothingInAStepOfDocuments) {
  for (const Way& way : {kWays[0], kWays[1], kWays[2]}) {
    SCOPED_TRACE(way.name);
    SmallTraining t = training(way, 2);
    t.separator = 7;
    EXPECT_EQ(host_waits(t, false, gpu(), *comm::make_single_rank_collectives()), 0);
  }
}

} // namespace
} // namespace nsa::test
