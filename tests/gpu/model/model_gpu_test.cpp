// The whole model's claims (docs/design/model.md) on the ways that a GPU computes it: regrouped
// ATen or fused kernels, composed or fused layers, NSA and its dense twin, at the M7C's head shape.
// (Of the dense twin, ATen's kernels are cuDNN's or what LibTorch takes besides.)
// The judge is the same model with the same weights in FP64; the measure is the same model in BF16
// on the CPU, where attention is dense products under a mask. A way may be 1.5 times as wrong as
// that. Small models take the CPU's ways through the same tests, so that they run wherever they are
// built.
#include "nsa_model/model/decode.h"
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
namespace {

using at::Tensor;

constexpr uint64_t kSeed = 7;
constexpr double kPlainFactor = 1.5; // of the plain BF16 evaluation's error

enum class Kind { kAverage, kLearned, kDense }; // group gate; head gate and phi an MLP; the twin

struct Way {
  const char* name;
  bool gpu;
  Kind kind;
  Kernels kernels;
  bool fused_layers;
  bool hopper = false; // nothing else serves it
};
void PrintTo(const Way& way, std::ostream* out) {
  *out << way.name;
}

at::Device device_of(const Way& way) {
  return way.gpu ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
}

std::string missing(const Way& way) {
  if (!way.gpu) return "";
  const std::string& none =
      way.kernels == Kernels::kFused || way.fused_layers ? fused_missing() : gpu_missing();
  return none.empty() && way.hopper && ops::compute_capability(device_of(way)) != 90
             ? "needs a GPU of compute capability 9.0"
             : none;
}

// Sizes and lengths. `rounding` tokens select every block, so that only rounding can differ;
// `selecting` tokens really select, in the query-major kernels and behind them, and are no multiple
// of any block.
struct Scale {
  ModelConfig config;
  int64_t rounding, selecting;
  int batches;                // so many that chance hardly shows in the error of a small parameter
  std::vector<int64_t> edges; // lengths around l, l' and n * l'
};
Scale scale_of(const Way& way) {
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

// A model with weights that BF16 holds, the same in every type and on every device; matrices twice
// as large as initial ones, so that attention is far from uniform.
LanguageModel build(const ModelConfig& config, at::Device device, at::ScalarType type) {
  LanguageModel model(config, device, type, kSeed);
  for (const NamedParameter& p : model.named_parameters()) {
    const Tensor value = model.initial_value(p.name).to(at::kBFloat16);
    p.tensor.detach().copy_(p.tensor.dim() == 2 ? value * 2 : value);
  }
  return model;
}

// As a way computes it, exactly, and plainly.
ModelConfig config_for(const Way& way, ModelConfig config) {
  config.kernels = way.kernels;
  if (way.kernels == Kernels::kFused) config.dense_backend = DenseBackend::kFused;
  config.fused_layers = config.joined_embedding_gradient = way.fused_layers;
  config.check_dtypes = true;
  return config;
}

struct Batch {
  Tensor tokens, targets; // [B, S] on the CPU
  std::optional<Tensor> starts;
};
Batch random_batch(const ModelConfig& config, int64_t rows, int64_t length) {
  const Tensor text = at::randint(1, config.vocabulary, {rows, length + 1}, at::kLong);
  return {text.narrow(1, 0, length).contiguous(), text.narrow(1, 1, length).contiguous(), {}};
}
// Of one row, by turns odd and even in length.
std::vector<Batch> several(const Scale& s, int count, int64_t length) {
  std::vector<Batch> batches;
  for (int i = 0; i < count; ++i)
    batches.push_back(random_batch(s.config, 1, length - i % 2));
  return batches;
}
// Documents that end before `begins`, in every row.
void cut_into_documents(Batch& batch, const std::vector<int64_t>& begins) {
  for (const int64_t begin : begins)
    batch.tokens.select(1, begin - 1).fill_(0);
  batch.starts = document_starts(batch.tokens, 0);
}

// FP64 on the CPU.
Tensor home(const Tensor& x) {
  return x.detach().to(at::kCPU, at::kDouble);
}

// Gradients of every parameter over a few batches, one behind the other.
using Gradients = std::map<std::string, Tensor>;
Gradients gradients(LanguageModel& model, at::Device device, const std::vector<Batch>& batches) {
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
Tensor logits(LanguageModel& model, at::Device device, const Batch& batch, int64_t offset = 0) {
  c10::NoGradGuard no_grad;
  return home(model.logits(batch.tokens.to(device), batch.starts, offset));
}

double relative(const Tensor& found, const Tensor& exact) {
  const double norm = exact.norm().item<double>(), error = (found - exact).norm().item<double>();
  return norm > 0 ? error / norm : error;
}

// Every tensor finite and at most kPlainFactor times as wrong as the plain evaluation. Prints the
// one that is nearest its limit.
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

void expect_same_bits(const Gradients& a, const Gradients& b, const std::string& what) {
  for (const auto& [name, value] : a)
    EXPECT_TRUE(at::equal(value, b.at(name)))
        << what << ": " << name << " is " << relative(b.at(name), value) << " off";
}

// What several ways are judged by is computed once. `key` names everything that it depends on.
template <class Value> const Value& once(const std::string& key, std::function<Value()> make) {
  static std::map<std::string, Value> kept;
  const auto found = kept.find(key);
  return found != kept.end() ? found->second : kept.emplace(key, make()).first->second;
}

class WholeModel : public testing::TestWithParam<Way> {
protected:
  void SetUp() override {
    if (const std::string reason = missing(way()); !reason.empty()) GTEST_SKIP() << reason;
    at::manual_seed(1);
    // Two threads on tiny tensors wait for each other longer than they work.
    at::set_num_threads(way().gpu ? int(std::max(1u, std::thread::hardware_concurrency())) : 1);
    at::globalContext().setDeterministicAlgorithms(false, false);
  }
  const Way& way() const { return GetParam(); }
  Scale scale() const { return scale_of(way()); }
  at::Device device() const { return device_of(way()); }

  LanguageModel model(const ModelConfig& config) const {
    return build(config_for(way(), config), device(), at::kBFloat16);
  }
  // The exact and the plain evaluation of the same model. FP64 goes on the way's device, where it
  // takes no time; Fp64.IsTheSameOnGpuAndCpu holds the GPU's to the CPU's.
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

// What holds for some of the ways.
class Fp64 : public WholeModel {};
class Branches : public WholeModel {};
class AveragedKeys : public WholeModel {};

TEST_P(Fp64, IsTheSameOnGpuAndCpu) {
  const Scale s = scale();
  const std::vector<Batch> batches{random_batch(s.config, 1, s.selecting / 2 + 100)};
  LanguageModel here = build(s.config, at::kCPU, at::kDouble), there = exact(s.config);
  const Gradients wanted = gradients(here, at::kCPU, batches),
                  found = gradients(there, device(), batches);
  for (const auto& [name, value] : wanted)
    EXPECT_LE(relative(found.at(name), value), 1e-9) << name;
  EXPECT_LE(relative(logits(there, device(), batches[0]), logits(here, at::kCPU, batches[0])),
            1e-9);
}

TEST_P(WholeModel, LengthsAtTheEdges) {
  const Scale s = scale();
  std::vector<Batch> few, many;
  for (const int64_t length : s.edges)
    (length <= s.rounding / 2 ? few : many).push_back(random_batch(s.config, 1, length));
  expect_logits_as_good("shortest texts", s.config, few);
  expect_logits_as_good("texts about n * l'", s.config, many);
}

TEST_P(WholeModel, GradientsOfEveryParameter) {
  const Scale s = scale();
  expect_gradients_as_good("all blocks selected", s.config, several(s, s.batches, s.rounding));
  expect_gradients_as_good("some blocks selected", s.config,
                           several(s, s.batches / 3, s.selecting));
}

TEST_P(Branches, SwitchedOff) {
  const Scale s = scale();
  const std::vector<Batch> batches = several(s, s.batches, s.rounding * 2 / 3);
  for (const std::vector<const char*>& off : {std::vector<const char*>{"selected"},
                                              {"sliding"},
                                              {"selected", "sliding"},
                                              {"compressed", "selected"}}) {
    ModelConfig config = s.config;
    std::string what = "off:";
    for (const char* branch : off) {
      ASSERT_TRUE(set_branch(config.nsa, branch, false));
      what += ' ' + std::string(branch);
    }
    expect_gradients_as_good(what, config, batches);
  }
}

// With the sliding branch alone and a window that holds the text, NSA is the dense twin.
TEST_P(Branches, TheWindowOverEverythingIsTheDenseTwin) {
  Scale s = scale();
  s.config.nsa.compressed = s.config.nsa.selected = false;
  s.config.nsa.gate = Gate::kGroupSoftmax; // over one branch: 1
  const Batch batch = random_batch(s.config, 2, s.config.nsa.window);
  ModelConfig twin = s.config;
  twin.attention = Attention::kDense;
  const auto with_weights_of_the_window = [&](at::ScalarType type) {
    LanguageModel m = build(twin, at::kCPU, type);
    LanguageModel sliding = build(s.config, at::kCPU, type);
    for (size_t i = 0; i < m.named_parameters().size(); ++i)
      m.named_parameters()[i].tensor.detach().copy_(sliding.named_parameters()[i].tensor.detach());
    return logits(m, at::kCPU, batch);
  };
  LanguageModel ours = model(s.config);
  Judge("window over everything")("logits", logits(ours, device(), batch),
                                  with_weights_of_the_window(at::kBFloat16),
                                  with_weights_of_the_window(at::kDouble));
}

TEST_P(WholeModel, LossIsTheMeanOfTokenLosses) {
  const Scale s = scale();
  LanguageModel ours = model(s.config);
  const Batch batch = random_batch(s.config, 2, s.selecting / 2 + 100);
  const Tensor tokens = batch.tokens.to(device()), targets = batch.targets.to(device());
  const c10::NoGradGuard no_grad;
  const double loss = ours.loss(tokens, targets).item<double>();
  EXPECT_NEAR(ours.token_losses(tokens, targets).mean(at::kDouble).item<double>(), loss,
              1e-5 * loss);
}

TEST_P(WholeModel, FutureTokensChangeNoPastBit) {
  const Scale s = scale();
  LanguageModel ours = model(s.config);
  const Batch batch = random_batch(s.config, 1, s.selecting);
  const Tensor before = logits(ours, device(), batch);
  for (const int64_t cut :
       {int64_t(1), s.selecting / 3, s.selecting * 2 / 3, s.selecting * 19 / 20, s.selecting - 1}) {
    Batch changed = batch;
    changed.tokens = batch.tokens.clone();
    changed.tokens.narrow(1, cut, s.selecting - cut)
        .copy_(random_batch(s.config, 1, s.selecting - cut).tokens);
    const Tensor after = logits(ours, device(), changed);
    EXPECT_TRUE(at::equal(after.narrow(1, 0, cut), before.narrow(1, 0, cut))) << "cut " << cut;
    EXPECT_FALSE(at::equal(after.narrow(1, cut, s.selecting - cut),
                           before.narrow(1, cut, s.selecting - cut)))
        << "cut " << cut;
  }
}

TEST_P(WholeModel, DecodeEqualsPrefill) {
  const Scale s = scale();
  // One by one over the border from where blocks are selected, then in pieces.
  const int64_t border = s.config.nsa.selected_blocks * s.config.nsa.selection_block;
  const int64_t length = border + std::max<int64_t>(20, border / 10);
  const Batch batch = random_batch(s.config, 2, length);
  std::vector<int64_t> pieces{1, 2, border - 6, 1, 1, 1, 1, 1, 1, 1, 1};
  for (int64_t fed = border + 5; fed < length;)
    fed += pieces.emplace_back(std::min<int64_t>(length - fed, 7));
  const auto decoded = [&](LanguageModel& m, at::Device on) {
    DecodeState state = m.start_decoding(2, length);
    std::vector<Tensor> parts;
    int64_t begin = 0;
    for (const int64_t piece : pieces) {
      parts.push_back(home(m.decode(state, batch.tokens.narrow(1, begin, piece).to(on))));
      begin += piece;
    }
    EXPECT_EQ(begin, length);
    return at::cat(parts, 1);
  };
  LanguageModel wide = exact(s.config);
  const Tensor wanted = logits(wide, device(), batch);
  EXPECT_LE(relative(decoded(wide, device()), wanted), 1e-9);
  LanguageModel ours = model(s.config), simple = plain(s.config);
  const Tensor& measure =
      once<Tensor>(key("prefill plain"), [&] { return logits(simple, at::kCPU, batch); });
  Judge("decoding step by step")("logits", decoded(ours, device()), measure, wanted);
  Judge("prefill of the same")("logits", logits(ours, device(), batch), measure, wanted);
}

// Packed, against each document alone in FP64.
TEST_P(WholeModel, DocumentsAreAsAlone) {
  const Scale s = scale();
  const int64_t length = s.selecting;
  const std::vector<int64_t> begins{length / 3, length / 3 + 1, length / 3 + 20};
  Batch packed = random_batch(s.config, s.batches / 3, length);
  cut_into_documents(packed, begins);
  std::vector<std::pair<int64_t, int64_t>> documents; // begin, length
  for (size_t i = 0; i <= begins.size(); ++i) {
    const int64_t begin = i == 0 ? 0 : begins[i - 1], end = i == begins.size() ? length : begins[i];
    documents.emplace_back(begin, end - begin);
  }
  LanguageModel wide = exact(s.config);
  std::vector<Tensor> alone;
  Gradients wanted;
  for (const auto& [begin, count] : documents) {
    const Batch one{packed.tokens.narrow(1, begin, count).contiguous(),
                    packed.targets.narrow(1, begin, count).contiguous(),
                    {}};
    alone.push_back(logits(wide, device(), one));
    for (const auto& [name, gradient] : gradients(wide, device(), {one})) {
      const Tensor part = gradient * (double(count) / double(length)); // of the mean loss
      wanted[name] = wanted.contains(name) ? wanted[name] + part : part;
    }
  }
  LanguageModel ours = model(s.config), simple = plain(s.config);
  const Tensor& simple_logits =
      once<Tensor>(key("documents plain"), [&] { return logits(simple, at::kCPU, packed); });
  const Gradients& simple_gradients = once<Gradients>(
      key("documents plain"), [&] { return gradients(simple, at::kCPU, {packed}); });
  Judge judge("documents packed");
  judge("logits", logits(ours, device(), packed), simple_logits, at::cat(alone, 1));
  judge(gradients(ours, device(), {packed}), simple_gradients, wanted);
}

TEST_P(WholeModel, RecomputeAndRepetitionChangeNoBit) {
  at::globalContext().setDeterministicAlgorithms(true, false); // as train.deterministic does
  Scale s = scale();
  Batch packed = random_batch(s.config, 2, s.selecting);
  const Batch whole = packed;
  cut_into_documents(packed, {s.selecting / 3, s.selecting / 3 + 5});
  LanguageModel kept = model(s.config);
  s.config.activation_recompute = true;
  LanguageModel recomputed = model(s.config);
  for (const Batch& batch : {whole, packed}) {
    const Gradients first = gradients(kept, device(), {batch});
    expect_same_bits(first, gradients(recomputed, device(), {batch}), "recompute");
    expect_same_bits(first, gradients(kept, device(), {batch}), "again");
  }
}

TEST_P(WholeModel, OnlyRelativePositionsCount) {
  const Scale s = scale();
  const Batch batch = random_batch(s.config, 1, s.selecting);
  LanguageModel wide = exact(s.config);
  const Tensor wanted = logits(wide, device(), batch);
  EXPECT_LE(relative(logits(wide, device(), batch, 1000), wanted), 1e-8);
  Batch reversed = batch; // that is no accident of a model blind to order
  reversed.tokens = batch.tokens.flip(1);
  EXPECT_GT(relative(logits(wide, device(), reversed).select(1, s.selecting - 1),
                     wanted.select(1, s.selecting - 1)),
            1e-2);
  LanguageModel ours = model(s.config), simple = plain(s.config);
  const Tensor& measure =
      once<Tensor>(key("positions plain"), [&] { return logits(simple, at::kCPU, batch); });
  Judge("1,000 positions later")("logits", logits(ours, device(), batch, 1000), measure, wanted);
}

// Compressed keys of zero make every block score the same: the lowest ones are selected.
TEST_P(AveragedKeys, TiesGoToTheLowestBlocks) {
  const Scale s = scale();
  expect_logits_as_good("ties", s.config, {random_batch(s.config, 1, s.selecting)},
                        [](LanguageModel& m) {
                          for (const NamedParameter& p : m.named_parameters())
                            if (p.name.ends_with("w_k_compressed.weight"))
                              p.tensor.detach().zero_();
                        });
}

// AdamW without decay on flat buffers, FP32 masters.
class Adam {
public:
  Adam(LanguageModel& model, double rate) : rate_(rate) {
    int64_t count = 0;
    for (const NamedParameter& p : model.named_parameters())
      count += p.tensor.numel();
    const auto& any = model.named_parameters()[0].tensor;
    weights_ = at::empty({count}, any.options());
    grads_ = at::zeros_like(weights_);
    int64_t begin = 0;
    for (const NamedParameter& p : model.named_parameters()) {
      const auto view = [&](const Tensor& flat) {
        return flat.narrow(0, begin, p.tensor.numel()).view(p.tensor.sizes());
      };
      view(weights_).copy_(p.tensor.detach());
      p.tensor.set_data(view(weights_));
      p.tensor.mutable_grad() = view(grads_);
      begin += p.tensor.numel();
    }
    masters_ = weights_.to(at::kFloat);
    first_ = at::zeros_like(masters_);
    second_ = at::zeros_like(masters_);
  }
  void step() {
    ++count_;
    const Tensor grad = grads_.to(at::kFloat);
    first_.mul_(0.9).add_(grad, 0.1);
    second_.mul_(0.95).addcmul_(grad, grad, 0.05);
    const Tensor root = (second_ / (1 - std::pow(0.95, count_))).sqrt_().add_(1e-8);
    masters_.addcdiv_(first_, root, -rate_ / (1 - std::pow(0.9, count_)));
    weights_.copy_(masters_);
    grads_.zero_();
  }

private:
  double rate_;
  int count_ = 0;
  Tensor weights_, grads_, masters_, first_, second_;
};

// Fresh random tokens cannot be predicted: a model that does better sees its targets. That it would
// learn to use what it sees is shown by targets that it may see, its own tokens.
TEST_P(WholeModel, NeverBeatsRandomTokens) {
  const Scale s = scale();
  const double uniform = std::log(double(s.config.vocabulary));
  struct Losses {
    double first = 0, late = 0; // late: mean of the later half
  };
  const auto train = [&](bool visible, int steps) {
    LanguageModel m(config_for(way(), s.config), device(), at::kBFloat16, kSeed);
    Adam adam(m, way().gpu ? 1e-3 : 5e-3);
    Losses losses;
    for (int step = 0; step < steps; ++step) {
      const Batch batch = random_batch(s.config, way().gpu ? 1 : 4, s.rounding + s.rounding / 5);
      const Tensor loss =
          m.loss(batch.tokens.to(device()), (visible ? batch.tokens : batch.targets).to(device()));
      loss.backward();
      c10::NoGradGuard no_grad;
      adam.step();
      if (step == 0) losses.first = loss.item<double>();
      if (2 * step >= steps) losses.late += loss.item<double>() / (steps - steps / 2);
    }
    return losses;
  };
  const Losses seen = train(true, way().gpu ? 20 : 40), unseen = train(false, way().gpu ? 40 : 60);
  std::printf("  loss less ln(vocabulary): own token %+.4f, then %+.4f; next token %+.4f, %+.4f\n",
              seen.first - uniform, seen.late - uniform, unseen.first - uniform,
              unseen.late - uniform);
  EXPECT_LT(seen.late, seen.first - 0.3) << "what is visible is not learned";
  EXPECT_GT(unseen.late, uniform - 0.005);
  EXPECT_LT(unseen.late, uniform + 0.5);
}

std::vector<Way> ways(const std::function<bool(const Way&)>& fit) {
  const Way all[] = {
      {"cpu_average_fused_layers", false, Kind::kAverage, Kernels::kAten, true},
      {"cpu_learned_fused_layers", false, Kind::kLearned, Kernels::kAten, true},
      {"cpu_dense_fused_layers", false, Kind::kDense, Kernels::kAten, true},
      {"gpu_average_fused_fused_layers", true, Kind::kAverage, Kernels::kFused, true},
      {"gpu_average_fused", true, Kind::kAverage, Kernels::kFused, false},
      {"gpu_average_aten", true, Kind::kAverage, Kernels::kAten, false},
      {"gpu_average_aten_fused_layers", true, Kind::kAverage, Kernels::kAten, true},
      {"gpu_learned_fused_fused_layers", true, Kind::kLearned, Kernels::kFused, true},
      {"gpu_learned_aten", true, Kind::kLearned, Kernels::kAten, false},
      {"gpu_dense", true, Kind::kDense, Kernels::kAten, false},
      {"gpu_dense_fused_layers", true, Kind::kDense, Kernels::kAten, true},
      {"gpu_dense_fused_fused_layers", true, Kind::kDense, Kernels::kFused, true, true}};
  std::vector<Way> chosen;
  std::copy_if(std::begin(all), std::end(all), std::back_inserter(chosen), fit);
  return chosen;
}
const auto name_of = [](const auto& info) { return std::string(info.param.name); };

INSTANTIATE_TEST_SUITE_P(, Fp64, testing::ValuesIn(ways([](const Way& way) {
                           return way.gpu && way.kernels == Kernels::kAten && !way.fused_layers;
                         })),
                         name_of);
INSTANTIATE_TEST_SUITE_P(, WholeModel, testing::ValuesIn(ways([](const Way&) { return true; })),
                         name_of);
INSTANTIATE_TEST_SUITE_P(, Branches, testing::ValuesIn(ways([](const Way& way) {
                           return way.kind != Kind::kDense;
                         })),
                         name_of);
INSTANTIATE_TEST_SUITE_P(, AveragedKeys, testing::ValuesIn(ways([](const Way& way) {
                           return way.kind == Kind::kAverage;
                         })),
                         name_of);

} // namespace
} // namespace nsa::model
