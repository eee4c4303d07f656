// Compares the plan of kernels with the kernels that the operators use, for thousands of
// configurations. `Operators` follows a training step and an evaluation as nsa_model/model does. It
// asks the functions of serves.h that nsa_model/ops_cuda asks before each launch. It does not use
// the planner.
#include "nsa_model/choice/kernel_plan.h"

#include <gtest/gtest.h>

#include <random>

namespace nsa::choice {
namespace {

struct Configuration {
  Capabilities on;
  ModelSizes model;
  KernelRequest request;
};

class Operators {
public:
  explicit Operators(const Configuration& c)
      : on_(c.on), m_(c.model), r_(c.request), plan_(plan_kernels(c.on, c.model, c.request)),
        fused_layers_(plan_.fused_layers()) {}

  const KernelPlan& plan() const { return plan_; }
  const KernelCounts& counts() const { return counts_; }

  // Follows LanguageModel::loss and its backward pass, or token_losses, for `batch` sequences.
  void pass(int64_t batch, bool training) {
    const int64_t rows = batch * r_.sequence;
    norm();
    linear(rows, heads_width());
    rotation();
    m_.dense ? dense() : attention(batch);
    linear(rows, m_.dimension);
    norm();
    mlp(rows);
    loss(rows, training);
    if (training) embedding(rows);
  }

private:
  void count(Part part, Backend backend) {
    ++counts_[static_cast<size_t>(part)][static_cast<size_t>(backend)];
  }
  // ops_cuda counts `ours` if the shape is supported. Otherwise the composed operation counts ATen.
  void count(Part part, bool served, Backend ours) {
    count(part, fused_layers_ && served ? ours : Backend::kAten);
  }

  int64_t sets() const { return 2 * (m_.dense ? 1 : m_.branches()); }
  int64_t heads_width() const { return (m_.heads + sets() * m_.kv_groups) * m_.head_dimension; }
  void norm() { count(Part::kNorm, serves::norm(m_.dimension), Backend::kPortable); }
  void rotation() {
    count(Part::kRotation, serves::head_split(m_.head_dimension, sets()), Backend::kPortable);
  }
  // As ops_cuda/product.cpp: a, b and the operands of the gradients are matrices of these sizes.
  void product(int64_t rows, int64_t columns, int64_t inner) {
    const bool served = serves::matrix(rows, inner) && serves::matrix(columns, inner) &&
                        serves::matrix(rows, columns);
    count(Part::kProducts, served, Backend::kCublasLt);
  }
  void linear(int64_t rows, int64_t columns) { product(rows, columns, m_.dimension); }

  void mlp(int64_t rows) {
    const int64_t width = m_.mlp_ratio * m_.dimension;
    const bool served =
        serves::silu_product(on_.compute_capability / 10, rows, width, m_.dimension);
    count(Part::kMlp, served, Backend::kSm90);
    if (!fused_layers_) return;       // at::linear
    if (!served) linear(rows, width); // the composed operation calls it
    product(rows, m_.dimension, width);
  }

  // As model/cross_entropy.cpp.
  void loss(int64_t rows, bool training) {
    const bool exponentials =
        training && fused_layers_ && plan_.joined_embedding() &&
        serves::exponentials(on_.compute_capability / 10, rows, m_.vocabulary, m_.dimension);
    const int64_t step = serves::loss_chunk(on_.gpu, fused_layers_, m_.vocabulary);
    for (int64_t begin = 0; begin < rows; begin += step) {
      linear(std::min(step, rows - begin), m_.vocabulary); // or the products of the gradients
      count(Part::kLoss, serves::loss(m_.vocabulary),
            exponentials ? Backend::kSm90 : Backend::kPortable);
    }
  }
  void embedding(int64_t rows) {
    const bool served = serves::embedding_gradient(rows, m_.vocabulary, m_.dimension);
    count(Part::kEmbeddingGradient, plan_.joined_embedding() && served, Backend::kPortable);
  }

  // As model/attention_layer.cpp and ops/attention.cpp.
  void attention(int64_t batch) {
    gate();
    const bool fused = plan_.fused_attention();
    EXPECT_TRUE(!fused || serves::why_not_attention(problem(batch)).empty());
    const Backend family = serves::hopper_attention(on_.compute_capability, m_.head_dimension)
                               ? Backend::kSm90
                               : Backend::kPortable;
    if (m_.compressed && m_.learned_compression)
      count(Part::kCompression, fused_layers_ && !r_.documents && learned_compression_served()
                                    ? Backend::kPortable
                                    : Backend::kAten);
    else if (m_.compressed)
      count(Part::kCompression, fused && fused_layers_ ? family : Backend::kAten);
    const auto branch = [&](Part part, bool has) {
      if (!has) return;
      if (fused) return count(part, family);
      for (const int64_t length : documents())
        count(part, regrouped(part, length) ? Backend::kFlash : Backend::kAten);
    };
    branch(Part::kCompressed, m_.compressed);
    branch(Part::kSelected, m_.selected);
    branch(Part::kSliding, m_.sliding);
    if (m_.selected && r_.sequence > m_.nsa.selected_blocks * m_.nsa.selection_block)
      count(Part::kSelection, fused ? family : Backend::kAten);
  }
  // As ops_cuda/learned_compression.cpp.
  bool learned_compression_served() const {
    return serves::learned_compression(m_.head_dimension, m_.nsa.compression_block,
                                       m_.nsa.compression_stride, 2 * m_.head_dimension) &&
           r_.sequence >= m_.nsa.compression_block;
  }
  bool regrouped(Part part, int64_t length) const {
    return serves::why_not_regrouped({.gpu = on_.gpu,
                                      .narrow = on_.bf16,
                                      .head_dimension = m_.head_dimension,
                                      .length = length,
                                      .compressed = part == Part::kCompressed,
                                      .compression_block = m_.nsa.compression_block,
                                      .compression_stride = m_.nsa.compression_stride})
        .empty();
  }
  void gate() {
    if (m_.group_gate && m_.branches() == 1) return;
    count(Part::kGate,
          m_.group_gate &&
              serves::group_gate(m_.head_dimension, m_.head_dimension / 2, m_.branches()),
          Backend::kPortable);
  }
  void dense() {
    const bool flash = r_.dense == DenseAttention::kAuto || r_.dense == DenseAttention::kFlash;
    EXPECT_TRUE(!plan_.fused_dense() || serves::why_not_causal(problem(1)).empty());
    const bool together =
        r_.documents && flash && on_.flash && !plan_.fused_dense() &&
        serves::flash_documents(on_.gpu, on_.bf16, on_.compute_capability, m_.head_dimension);
    count(Part::kDense, plan_.fused_dense() ? Backend::kSm90
                        : together          ? Backend::kFlash
                                            : Backend::kSdpa);
  }
  serves::AttentionProblem problem(int64_t batch) const {
    return {.compute_capability = on_.compute_capability,
            .batch = batch,
            .sequence = r_.sequence,
            .heads = m_.heads,
            .groups = m_.kv_groups,
            .head_dimension = m_.head_dimension,
            .nsa = m_.nsa};
  }
  // A first document of 200 tokens, and one with the rest.
  std::vector<int64_t> documents() const {
    if (!r_.documents || r_.sequence <= 200) return {r_.sequence};
    return {200, r_.sequence - 200};
  }

  const Capabilities& on_;
  const ModelSizes& m_;
  const KernelRequest& r_;
  const KernelPlan plan_;
  const bool fused_layers_;
  KernelCounts counts_{};
};

// Returns "" if every pass agrees with the plan.
std::string differing(const Configuration& c) {
  Operators first(c);
  if (!first.plan().refusals.empty()) return ""; // such a run does not start
  first.pass(c.request.micro_batch, true);
  std::string differs = difference(first.plan(), first.counts(), Pass::kFirstStep);
  if (differs.empty()) differs = difference(first.plan(), first.counts(), Pass::kTraining);
  for (int64_t batch = 1; batch <= c.request.micro_batch && differs.empty(); ++batch) {
    Operators evaluation(c);
    evaluation.pass(batch, false);
    differs = difference(evaluation.plan(), evaluation.counts(), Pass::kEvaluation);
    if (!differs.empty()) differs += ", in an evaluation of " + std::to_string(batch);
  }
  return differs;
}

std::string text(const Configuration& c) {
  const ModelSizes& m = c.model;
  return "capability " + std::to_string(c.on.compute_capability) + ", micro-batch " +
         std::to_string(c.request.micro_batch) + " x " + std::to_string(c.request.sequence) +
         ", vocabulary " + std::to_string(m.vocabulary) + ", dimension " +
         std::to_string(m.dimension) + ", head_dimension " + std::to_string(m.head_dimension) +
         (m.dense ? ", dense" : "") + (c.request.documents ? ", documents" : "");
}

class Random {
public:
  template <class T> T of(std::initializer_list<T> values) {
    return *(values.begin() + std::uniform_int_distribution<size_t>(0, values.size() - 1)(engine_));
  }
  int64_t between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  bool once_in(int64_t count) { return between(1, count) == 1; }

  Configuration configuration() {
    Configuration c;
    const int capability = of({0, 75, 80, 86, 90, 90, 90, 100});
    c.on = {.gpu = capability != 0,
            .bf16 = !once_in(5),
            .compute_capability = capability,
            .kernels_loaded = !once_in(8),
            .flash = !once_in(8),
            .sdpa = of<SdpaKernel>({SdpaKernel::kCudnn, SdpaKernel::kFlash, SdpaKernel::kEfficient,
                                    SdpaKernel::kMath})};
    c.model = {.dense = once_in(3),
               .vocabulary = of<int64_t>({512, 50304, 50257, 125000, 250000, 100008}),
               .dimension = of<int64_t>({96, 256, 512, 768, 1024, 1280}),
               .heads = of<int64_t>({12, 16, 34}),
               .kv_groups = of<int64_t>({1, 2, 12}),
               .head_dimension = of<int64_t>({16, 24, 32, 64, 64, 128, 512}),
               .mlp_ratio = of<int64_t>({1, 2, 4}),
               .learned_compression = once_in(6),
               .group_gate = !once_in(5)};
    if (once_in(4)) {
      c.model.sliding = once_in(2);
      c.model.selected = c.model.sliding && once_in(2);
      c.model.compressed = c.model.selected || !c.model.sliding || once_in(2);
    }
    if (once_in(4)) c.model.nsa.window = 256;
    if (once_in(6)) c.model.nsa.selected_blocks = 3;
    c.request = {.attention = of({AttentionKernels::kAuto, AttentionKernels::kAuto,
                                  AttentionKernels::kAten, AttentionKernels::kFused}),
                 .dense = of({DenseAttention::kAuto, DenseAttention::kAuto, DenseAttention::kFlash,
                              DenseAttention::kMath, DenseAttention::kFused}),
                 .layers = of({LayerKernels::kAuto, LayerKernels::kAuto, LayerKernels::kAten,
                               LayerKernels::kFused}),
                 .embedding = of({EmbeddingGradient::kAuto, EmbeddingGradient::kSeparate,
                                  EmbeddingGradient::kJoined}),
                 .micro_batch = between(1, 6),
                 .sequence = once_in(2) ? 64 * between(1, 140) : between(1, 9000),
                 .documents = once_in(3),
                 .deterministic = once_in(4)};
    return c;
  }

private:
  std::mt19937_64 engine_{20261123}; // the same configurations in every run
};

TEST(Operators, TakeWhatIsPlannedForEveryConfiguration) {
  Random random;
  int fused = 0, mixed = 0;
  for (int i = 0; i < 20000; ++i) {
    const Configuration c = random.configuration();
    ASSERT_EQ(differing(c), "") << text(c);
    const KernelPlan plan = plan_kernels(c.on, c.model, c.request);
    fused += plan.fused_layers();
    for (const PlannedKernel& kernel : plan.kernels)
      mixed += kernel.other || kernel.in_evaluation;
  }
  EXPECT_GT(fused, 1000) << "the configurations have few of our kernels";
  EXPECT_GT(mixed, 500) << "few of two backends in one pass";
}

// 2^29 / 250,000 = 2,147 tokens per chunk: two chunks of 2,147 rows and a last one of 8.
TEST(Operators, TheLastChunkOfLogitsMayBeTheOnlyOneServed) {
  Configuration c;
  c.on = {.gpu = true, .bf16 = true, .compute_capability = 90};
  c.model = {.vocabulary = 250000,
             .dimension = 768,
             .heads = 12,
             .kv_groups = 2,
             .head_dimension = 64,
             .mlp_ratio = 4};
  c.request = {.micro_batch = 1, .sequence = 2 * 2147 + 8};
  EXPECT_EQ(differing(c), "");
  const KernelPlan plan = plan_kernels(c.on, c.model, c.request);
  EXPECT_EQ(plan.find(Part::kProducts)->backend, Backend::kAten);
  EXPECT_EQ(plan.find(Part::kProducts)->other, Backend::kCublasLt);
}

} // namespace
} // namespace nsa::choice
