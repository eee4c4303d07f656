#include "bench/kernels/vocabulary_times.h"

#include <cstdio>
#include <functional>
#include <random>
#include <vector>

#include "bench/kernel_cases/measure.h"
#include "bench/kernels/timing.h"
#include "nsa_model/blas_product/blas_product.h"
#include "nsa_model/kernels/cross_entropy/cross_entropy.h"
#include "nsa_model/kernels/vocabulary_product/vocabulary_product.h"

namespace nsa::kernels::check {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int kRows = 4096, kColumns = 50304, kInner = 768;
constexpr double kFlop = 2.0 * kRows * kColumns * kInner;

// A product as training computes it.
class BlasProduct {
public:
  BlasProduct(const blas::Product& product, void* out, const void* a, const void* b, bool add)
      : operands_{out, a, b, add, workspace_.get(), nullptr},
        plan_(blas::new_handle(), product, &operands_) {}

  void run() { plan_.run(operands_); }

private:
  DeviceBuffer<uint8_t> workspace_{blas::kWorkspaceBytes};
  blas::Operands operands_;
  blas::Plan plan_;
};

DeviceBuffer<Bf16> normal(std::size_t count, float deviation, uint64_t seed) {
  DeviceBuffer<Bf16> tensor(count);
  fill_normal(tensor.get(), count, deviation, seed);
  return tensor;
}

// The tensors of a chunk. All products together move more bytes than L2 has.
struct Chunk {
  static constexpr std::size_t kTable = std::size_t{kColumns} * kInner,
                               kHidden = std::size_t{kRows} * kInner,
                               kLogits = std::size_t{kRows} * kColumns;
  DeviceBuffer<Bf16> x = normal(kHidden, 1.0f, 1), weight = normal(kTable, 0.04f, 2),
                     logits = normal(kLogits, 1.0f, 3), scaled{kHidden}, d_x{kHidden};
  DeviceBuffer<int64_t> labels{kRows};
  DeviceBuffer<float> row_weight{kRows}, loss{kRows}, factor{kRows}, label_factor{kRows},
      product{kHidden}, d_weight{kTable}, workspace{vocabulary_product_workspace(kRows, kColumns)};

  Chunk() {
    std::mt19937_64 generator(4);
    std::vector<int64_t> ids(kRows);
    for (int64_t& id : ids)
      id = static_cast<int64_t>(generator() % kColumns);
    labels.from_host(ids);
    row_weight.from_host(std::vector<float>(kRows, 1.0f / kRows));
    cuda_check(cudaMemset(d_weight.get(), 0, kTable * sizeof(float)), "cudaMemset");
  }
};

struct Line {
  const char* name;
  bool product; // counts in TFLOP/s
  std::function<void()> run;
  std::vector<double> times = {};
};

} // namespace

void time_vocabulary_product() {
  const Chunk c;
  const blas::Product to_logits{kRows, kColumns, kInner, false, true, false},
      to_hidden{kRows, kInner, kColumns, false, false, false},
      to_wide{kRows, kInner, kColumns, false, false, true},
      to_weight{kColumns, kInner, kRows, true, false, true};
  BlasProduct logits_product(to_logits, c.logits.get(), c.x.get(), c.weight.get(), false);
  BlasProduct hidden_product(to_hidden, c.d_x.get(), c.logits.get(), c.weight.get(), false);
  BlasProduct wide_product(to_wide, c.product.get(), c.logits.get(), c.weight.get(), false);
  BlasProduct weight_product(to_weight, c.d_weight.get(), c.logits.get(), c.x.get(), true);
  CrossEntropyParams entropy{};
  entropy.rows = kRows;
  entropy.columns = kColumns;
  entropy.logits = c.logits.get();
  entropy.labels = c.labels.get();
  entropy.weight = c.row_weight.get();
  entropy.loss = c.loss.get();
  entropy.gradient = true;
  const VocabularyProductParams ours{kRows,
                                     kColumns,
                                     kInner,
                                     c.x.get(),
                                     c.weight.get(),
                                     c.labels.get(),
                                     c.row_weight.get(),
                                     c.workspace.get(),
                                     c.logits.get(),
                                     c.loss.get(),
                                     c.factor.get(),
                                     c.label_factor.get(),
                                     c.scaled.get()};
  const HiddenGradientParams hidden{kRows,           kColumns,       kInner,
                                    c.product.get(), c.factor.get(), c.label_factor.get(),
                                    c.labels.get(),  c.weight.get(), c.d_x.get()};
  std::vector<Line> lines = {
      {"logits, cuBLASLt", true, [&] { logits_product.run(); }},
      {"cross-entropy", false,
       [&] { cuda_check(launch_cross_entropy(entropy, nullptr), "cross_entropy"); }},
      {"with cross-entropy", true,
       [&] { cuda_check(launch_vocabulary_product(ours, nullptr), "vocabulary_product"); }},
      {"d hidden, cuBLASLt, BF16", true, [&] { hidden_product.run(); }},
      {"d hidden, cuBLASLt, FP32", true, [&] { wide_product.run(); }},
      {"d hidden, label's row", false,
       [&] { cuda_check(launch_hidden_gradient(hidden, nullptr), "hidden_gradient"); }},
      {"d weight, cuBLASLt, adds", true, [&] { weight_product.run(); }},
      {"all, separate", false,
       [&] {
         logits_product.run();
         cuda_check(launch_cross_entropy(entropy, nullptr), "cross_entropy");
         hidden_product.run();
         weight_product.run();
       }},
      {"all, with cross-entropy", false, [&] {
         cuda_check(launch_vocabulary_product(ours, nullptr), "vocabulary_product");
         wide_product.run();
         cuda_check(launch_hidden_gradient(hidden, nullptr), "hidden_gradient");
         weight_product.run();
       }}};
  constexpr int kTurns = 3, kRepeats = 15; // in turns, because the clock depends on the work before
  cuda_check(launch_vocabulary_product(ours, nullptr), "vocabulary_product");
  for (int turn = 0; turn < kTurns; ++turn)
    for (Line& line : lines)
      add_times(line.run, kRepeats, line.times);
  std::printf("  output layer, %d x %d x %d\n", kRows, kColumns, kInner);
  for (const Line& line : lines) {
    const Timing time = timing_of(line.times);
    std::printf("  %-24s %8.1f us (%.1f-%.1f)", line.name, 1e3 * time.median, 1e3 * time.low,
                1e3 * time.high);
    if (line.product) std::printf("  %5.0f TFLOP/s", kFlop / (time.median * 1e9));
    std::printf("\n");
  }
}

} // namespace nsa::kernels::check
