// Shared parts of the tests of the whole model: the ways to compute it, its sizes, and the judge of
// its results.
#pragma once

#include "nsa_model/model/language_model.h"
#include "nsa_model/ops/fused_support.h"
#include "tests/gpu/gpu_host.h"
#include "tests/support/small_model.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <thread>

namespace nsa::model {

using at::Tensor;

constexpr uint64_t kSeed = 7;
constexpr double kPlainFactor = 1.5; // times the error of the plain BF16 evaluation

// Group gate; head gate and phi as an MLP; dense twin.
enum class Kind { kAverage, kLearned, kDense };

struct Way {
  const char* name;
  bool gpu;
  Kind kind;
  Kernels kernels;
  bool fused_layers;
  bool hopper = false;   // true: only Hopper supports it
  bool in_place = false; // true: our kernel computes a learned phi
};
inline void PrintTo(const Way& way, std::ostream* out) {
  *out << way.name;
}

inline at::Device device_of(const Way& way) {
  return way.gpu ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
}

inline std::string missing(const Way& way) {
  if (!way.gpu) return "";
  const std::string& none =
      way.kernels == Kernels::kFused || way.fused_layers ? fused_missing() : gpu_missing();
  return none.empty() && way.hopper && ops::compute_capability(device_of(way)) != 90
             ? "needs a GPU of compute capability 9.0"
             : none;
}

// Sizes and lengths. With `rounding` tokens every block is selected, so only rounding can differ.
// With `selecting` tokens the selection really chooses, in the query-major kernels and after them.
// That length is no multiple of any block.
struct Scale {
  ModelConfig config;
  int64_t rounding, selecting;
  int batches;                // enough to average out chance in the error of a small parameter
  std::vector<int64_t> edges; // lengths around l, l' and n * l'
};
inline Scale scale_of(const Way& way) {
  ModelConfig c;
  if (way.gpu) {
    c.layers = 2;
    c.mlp_ratio = 2;
    c.dimension = 256;
    c.vocabulary = 512;
  } else {
    c = test::small_model(64);
  }
  if (way.kind == Kind::kDense) c.attention = Attention::kDense;
  if (way.kind == Kind::kLearned) {
    c.nsa.compression = Compression::kMlp;
    c.nsa.gate = Gate::kHeadSigmoid;
  }
  if (way.gpu) return {c, 800, 2100, 3, {1, 31, 32, 33, 63, 64, 65, 1023, 1024, 1025}};
  return {c, 30, 101, 10, {1, 7, 8, 9, 31, 32, 33, 40}};
}

// Builds a model whose weights BF16 can represent, the same in every type and on every device.
// Matrices are twice as large as the initial ones, so attention is far from uniform.
inline LanguageModel build(const ModelConfig& config, at::Device device, at::ScalarType type) {
  LanguageModel model(config, device, type, kSeed);
  for (const NamedParameter& p : model.named_parameters()) {
    const Tensor value = model.initial_value(p.name).to(at::kBFloat16);
    p.tensor.detach().copy_(p.tensor.dim() == 2 ? value * 2 : value);
  }
  return model;
}

// Configures a model as a way computes it. exact() and plain() use other configurations.
inline ModelConfig config_for(const Way& way, ModelConfig config) {
  config.kernels = way.kernels;
  if (way.kernels == Kernels::kFused) config.dense_backend = DenseAttention::kFused;
  config.fused_layers = config.joined_embedding_gradient = way.fused_layers;
  config.compression_in_place = way.in_place;
  config.check_dtypes = true;
  return config;
}

struct Batch {
  Tensor tokens, targets; // [B, S] on the CPU
  std::optional<Tensor> starts;
};
inline Batch random_batch(const ModelConfig& config, int64_t rows, int64_t length) {
  const Tensor text = at::randint(1, config.vocabulary, {rows, length + 1}, at::kLong);
  return {text.narrow(1, 0, length).contiguous(), text.narrow(1, 1, length).contiguous(), {}};
}
// Batches of one row, alternately of odd and even length.
inline std::vector<Batch> several(const Scale& s, int count, int64_t length) {
  std::vector<Batch> batches;
  for (int i = 0; i < count; ++i)
    batches.push_back(random_batch(s.config, 1, length - i % 2));
  return batches;
}
// In every row, documents begin at `begins`.
inline void cut_into_documents(Batch& batch, const std::vector<int64_t>& begins) {
  for (const int64_t begin : begins)
    batch.tokens.select(1, begin - 1).fill_(0);
  batch.starts = document_starts(batch.tokens, 0);
}

// Converts to FP64 on the CPU.
inline Tensor home(const Tensor& x) {
  return x.detach().to(at::kCPU, at::kDouble);
}

// Returns the gradients of every parameter for a few batches, one after the other.
using Gradients = std::map<std::string, Tensor>;
inline Gradients gradients(LanguageModel& model, at::Device device,
                           const std::vector<Batch>& batches) {
  std::map<std::string, std::vector<Tensor>> parts;
  for (const Batch& batch : batches) {
    for (const NamedParameter& p : model.named_parameters())
      p.tensor.mutable_grad().reset();
    model.loss(batch.tokens.to(device), batch.targets.to(device), batch.starts).backward();
    for (const NamedParameter& p : model.named_parameters()) {
      EXPECT_TRUE(p.tensor.grad().defined()) << p.name << " got no gradient";
      parts[p.name].push_back(home(p.tensor.grad()).flatten());
    }
  }
  Gradients all;
  for (const auto& [name, values] : parts)
    all[name] = at::cat(values);
  return all;
}
inline Tensor logits(LanguageModel& model, at::Device device, const Batch& batch,
                     int64_t offset = 0) {
  c10::NoGradGuard no_grad;
  return home(model.logits(batch.tokens.to(device), batch.starts, offset));
}

inline double relative(const Tensor& found, const Tensor& exact) {
  const double norm = exact.norm().item<double>(), error = (found - exact).norm().item<double>();
  return norm > 0 ? error / norm : error;
}

// Every tensor must be finite, and its error at most kPlainFactor times that of the plain
// evaluation. Prints the tensor that is closest to its limit.
class Judge {
public:
  explicit Judge(std::string what) : what_(std::move(what)) {}
  ~Judge() {
    std::printf("  %-34s error / plain BF16's, at most %.2f: %s (%.5f, plain %.5f)\n",
                what_.c_str(), worst_, where_.c_str(), error_, plain_);
  }
  void operator()(const std::string& name, const Tensor& found, const Tensor& plain,
                  const Tensor& exact) {
    ASSERT_TRUE(found.isfinite().all().item<bool>()) << what_ << ": " << name;
    const double error = relative(found, exact), allowed = relative(plain, exact);
    EXPECT_LE(error, kPlainFactor * allowed) << what_ << ": " << name;
    if (error / allowed <= worst_) return;
    worst_ = error / allowed;
    where_ = name;
    error_ = error;
    plain_ = allowed;
  }
  void operator()(const Gradients& found, const Gradients& plain, const Gradients& exact) {
    for (const auto& [name, value] : exact)
      (*this)(name, found.at(name), plain.at(name), value);
  }

private:
  std::string what_, where_;
  double worst_ = 0, error_ = 0, plain_ = 0;
};

inline void expect_same_bits(const Gradients& a, const Gradients& b, const std::string& what) {
  for (const auto& [name, value] : a)
    EXPECT_TRUE(at::equal(value, b.at(name)))
        << what << ": " << name << " is " << relative(b.at(name), value) << " off";
}

// Computes a value that several ways are compared with only once. `key` names everything that it
// depends on.
template <class Value>
const Value& once(const std::string& key, const std::function<Value()>& make) {
  static std::map<std::string, Value> kept;
  const auto found = kept.find(key);
  return found != kept.end() ? found->second : kept.emplace(key, make()).first->second;
}

class WholeModel : public testing::TestWithParam<Way> {
protected:
  void SetUp() override {
    if (const std::string reason = missing(way()); !reason.empty()) GTEST_SKIP() << reason;
    at::manual_seed(1);
    // With tiny tensors, two threads would wait for each other longer than they work.
    at::set_num_threads(way().gpu ? int(std::max(1u, std::thread::hardware_concurrency())) : 1);
    at::globalContext().setDeterministicAlgorithms(false, false);
  }
  const Way& way() const { return GetParam(); }
  Scale scale() const { return scale_of(way()); }
  at::Device device() const { return device_of(way()); }

  LanguageModel model(const ModelConfig& config) const {
    return build(config_for(way(), config), device(), at::kBFloat16);
  }
  // The exact and the plain evaluation of the same model. FP64 runs on the way's device, where it
  // is fast. Fp64.IsTheSameOnGpuAndCpu compares the GPU's FP64 with the CPU's.
  LanguageModel exact(const ModelConfig& config) const {
    return build(config, device(), at::kDouble);
  }
  LanguageModel plain(const ModelConfig& config) const {
    return build(config, at::kCPU, at::kBFloat16);
  }
  std::string key(const std::string& what) const {
    return std::to_string(int(way().kind)) + (way().gpu ? " gpu " : " cpu ") + what;
  }

  void expect_gradients_as_good(const std::string& what, const ModelConfig& config,
                                const std::vector<Batch>& batches) const {
    LanguageModel ours = model(config);
    const Gradients found = gradients(ours, device(), batches);
    const Gradients& wanted = once<Gradients>(key(what + " exact"), [&] {
      LanguageModel m = exact(config);
      return gradients(m, device(), batches);
    });
    const Gradients& simple = once<Gradients>(key(what + " plain"), [&] {
      LanguageModel m = plain(config);
      return gradients(m, at::kCPU, batches);
    });
    for (const auto& [name, gradient] : found)
      EXPECT_GT(gradient.abs().max().item<double>(), 0) << what << ": nothing reaches " << name;
    Judge judge(what);
    judge(found, simple, wanted);
  }
  void expect_logits_as_good(const std::string& what, const ModelConfig& config,
                             const std::vector<Batch>& batches,
                             const std::function<void(LanguageModel&)>& change = {}) const {
    const auto all = [&](LanguageModel m, at::Device on) {
      if (change) change(m);
      std::vector<Tensor> parts;
      for (const Batch& batch : batches)
        parts.push_back(logits(m, on, batch).flatten());
      return at::cat(parts);
    };
    const Tensor found = all(model(config), device());
    const Tensor& wanted =
        once<Tensor>(key(what + " exact"), [&] { return all(exact(config), device()); });
    const Tensor& simple =
        once<Tensor>(key(what + " plain"), [&] { return all(plain(config), at::kCPU); });
    Judge judge(what);
    judge("logits", found, simple, wanted);
  }
};

// Returns the ways that satisfy `fit`.
inline std::vector<Way> ways(const std::function<bool(const Way&)>& fit) {
  const Way all[] = {
      {"cpu_average_fused_layers", false, Kind::kAverage, Kernels::kAten, true},
      {"cpu_learned_fused_layers", false, Kind::kLearned, Kernels::kAten, true},
      {"cpu_learned_in_place", false, Kind::kLearned, Kernels::kAten, true, false, true},
      {"cpu_dense_fused_layers", false, Kind::kDense, Kernels::kAten, true},
      {"gpu_average_fused_fused_layers", true, Kind::kAverage, Kernels::kFused, true},
      {"gpu_average_fused", true, Kind::kAverage, Kernels::kFused, false},
      {"gpu_average_aten", true, Kind::kAverage, Kernels::kAten, false},
      {"gpu_average_aten_fused_layers", true, Kind::kAverage, Kernels::kAten, true},
      {"gpu_learned_fused_fused_layers", true, Kind::kLearned, Kernels::kFused, true},
      {"gpu_learned_in_place", true, Kind::kLearned, Kernels::kFused, true, false, true},
      {"gpu_learned_aten", true, Kind::kLearned, Kernels::kAten, false},
      {"gpu_dense", true, Kind::kDense, Kernels::kAten, false},
      {"gpu_dense_fused_layers", true, Kind::kDense, Kernels::kAten, true},
      {"gpu_dense_fused_fused_layers", true, Kind::kDense, Kernels::kFused, true, true}};
  std::vector<Way> chosen;
  std::copy_if(std::begin(all), std::end(all), std::back_inserter(chosen), fit);
  return chosen;
}

} // namespace nsa::model
