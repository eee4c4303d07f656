#include "bench/kernels/vocabulary_times.h"

#include <cublasLt.h>

#include <array>
#include <cstdio>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/kernel_cases/measure.h"
#include "bench/kernels/timing.h"
#include "nsa_model/kernels/cross_entropy/cross_entropy.h"
#include "nsa_model/kernels/vocabulary_product/vocabulary_product.h"

namespace nsa::kernels::check {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int kRows = 4096, kColumns = 50304, kInner = 768;
constexpr double kFlop = 2.0 * kRows * kColumns * kInner;
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

void blas_check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string("cuBLASLt, ") + what + ": " +
                             cublasLtGetStatusString(status));
}

// A row-major matrix without gaps, which a product may transpose.
struct Matrix {
  void* data;
  int rows, columns;
  bool transposed = false;
  cudaDataType type = CUDA_R_16BF;
};

// out = a b, or out += a b. cuBLASLt's matrices are column-major, so it computes out^T = b^T a^T.
// The constructor times its proposals, and the object keeps the fastest.
class BlasProduct {
public:
  BlasProduct(const Matrix& out, const Matrix& a, const Matrix& b, bool add)
      : out_(out.data), a_(a.data), b_(b.data), add_(add ? 1.0f : 0.0f),
        workspace_(kWorkspaceBytes) {
    blas_check(cublasLtCreate(&handle_), "create");
    blas_check(cublasLtMatmulDescInit(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "product");
    transpose(CUBLASLT_MATMUL_DESC_TRANSA, b.transposed);
    transpose(CUBLASLT_MATMUL_DESC_TRANSB, a.transposed);
    lay_out(layouts_[0], b);
    lay_out(layouts_[1], a);
    lay_out(layouts_[2], out);
    choose();
  }
  BlasProduct(const BlasProduct&) = delete;
  BlasProduct& operator=(const BlasProduct&) = delete;
  ~BlasProduct() { cublasLtDestroy(handle_); }

  void run() { blas_check(multiply(), "product"); }

private:
  void transpose(cublasLtMatmulDescAttributes_t attribute, bool transposed) {
    const cublasOperation_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    blas_check(cublasLtMatmulDescSetAttribute(&operation_, attribute, &operation, sizeof operation),
               "product");
  }
  static void lay_out(cublasLtMatrixLayoutOpaque_t& layout, const Matrix& matrix) {
    blas_check(cublasLtMatrixLayoutInit(&layout, matrix.type, static_cast<uint64_t>(matrix.columns),
                                        static_cast<uint64_t>(matrix.rows), matrix.columns),
               "layout");
  }
  cublasStatus_t multiply() {
    const float one = 1.0f;
    return cublasLtMatmul(handle_, &operation_, &one, b_, layouts_.data(), a_, &layouts_[1], &add_,
                          out_, &layouts_[2], out_, &layouts_[2], &algorithm_, workspace_.get(),
                          kWorkspaceBytes, nullptr);
  }
  void choose() {
    cublasLtMatmulPreferenceOpaque_t preference;
    blas_check(cublasLtMatmulPreferenceInit(&preference), "preference");
    blas_check(cublasLtMatmulPreferenceSetAttribute(&preference,
                                                    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                    &kWorkspaceBytes, sizeof kWorkspaceBytes),
               "preference");
    std::array<cublasLtMatmulHeuristicResult_t, 8> proposals{};
    int count = 0;
    blas_check(cublasLtMatmulAlgoGetHeuristic(
                   handle_, &operation_, layouts_.data(), &layouts_[1], &layouts_[2], &layouts_[2],
                   &preference, static_cast<int>(proposals.size()), proposals.data(), &count),
               "choice of an algorithm");
    double fastest = 0.0;
    cublasLtMatmulAlgo_t best{};
    for (int i = 0; i < count; ++i) {
      algorithm_ = proposals[i].algo;
      if (multiply() != CUBLAS_STATUS_SUCCESS) continue;
      const double time = time_of([&] { run(); }, 5).median;
      if (fastest > 0.0 && time >= fastest) continue;
      fastest = time;
      best = algorithm_;
    }
    if (fastest == 0.0) throw std::runtime_error("cuBLASLt has no algorithm for a product");
    algorithm_ = best;
  }

  void* out_;
  const void *a_, *b_;
  float add_;
  DeviceBuffer<uint8_t> workspace_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDescOpaque_t operation_{};
  std::array<cublasLtMatrixLayoutOpaque_t, 3> layouts_{}; // b, a, out
  cublasLtMatmulAlgo_t algorithm_{};
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
  const Matrix x{c.x.get(), kRows, kInner}, weight{c.weight.get(), kColumns, kInner},
      logits{c.logits.get(), kRows, kColumns}, d_x{c.d_x.get(), kRows, kInner},
      wide{c.product.get(), kRows, kInner, false, CUDA_R_32F},
      d_weight{c.d_weight.get(), kColumns, kInner, false, CUDA_R_32F};
  const auto transposed = [](Matrix matrix) {
    matrix.transposed = true;
    return matrix;
  };
  BlasProduct logits_product(logits, x, transposed(weight), false);
  BlasProduct hidden_product(d_x, logits, weight, false), wide_product(wide, logits, weight, false);
  BlasProduct weight_product(d_weight, transposed(logits), x, true);
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
