#include "nsa_model/blas_product/blas_product.h"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace nsa::blas {
namespace {

constexpr uint32_t kAlignment = 16; // bytes; views of flat buffers guarantee no more
constexpr int kAlgorithms = 8;      // number of algorithms that are timed
constexpr int kTrials = 3;          // timed runs of each; the fastest counts

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string("cuBLASLt, ") + what + ": " +
                             cublasLtGetStatusString(status));
}
void check(cudaError_t error) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string("timing a product: ") + cudaGetErrorString(error));
}

void lay_out(cublasLtMatrixLayoutOpaque_t& layout, cudaDataType type, int64_t rows, int64_t columns,
             bool transposed) {
  if (transposed) std::swap(rows, columns);
  check(cublasLtMatrixLayoutInit(&layout, type, static_cast<uint64_t>(columns),
                                 static_cast<uint64_t>(rows), columns),
        "layout");
}

struct Event {
  cudaEvent_t event = nullptr;
  Event() { check(cudaEventCreate(&event)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event); }
};

} // namespace

cublasLtHandle_t new_handle() {
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle), "create");
  return handle;
}

// cuBLASLt's matrices are column-major, so it computes out^T = b^T a^T: its first operand is b.
Plan::Plan(cublasLtHandle_t handle, const Product& product, const Operands* trial)
    : handle_(handle) {
  check(cublasLtMatmulDescInit(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "product");
  const auto transpose = [&](cublasLtMatmulDescAttributes_t attribute, bool transposed) {
    const cublasOperation_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(cublasLtMatmulDescSetAttribute(&operation_, attribute, &operation, sizeof operation),
          "product");
  };
  transpose(CUBLASLT_MATMUL_DESC_TRANSA, product.b_transposed);
  transpose(CUBLASLT_MATMUL_DESC_TRANSB, product.a_transposed);
  lay_out(b_, CUDA_R_16BF, product.inner, product.columns, product.b_transposed);
  lay_out(a_, CUDA_R_16BF, product.rows, product.inner, product.a_transposed);
  lay_out(out_, product.wide ? CUDA_R_32F : CUDA_R_16BF, product.rows, product.columns, false);

  cublasLtMatmulPreferenceOpaque_t preference;
  check(cublasLtMatmulPreferenceInit(&preference), "preference");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value),
          "preference");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  // By default cuBLASLt assumes pointers that are multiples of 256 bytes. A plan is used for every
  // call with its sizes, so it may rely only on the alignment that all of them have.
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(attribute, kAlignment);
  std::array<cublasLtMatmulHeuristicResult_t, kAlgorithms> proposals{};
  int count = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle_, &operation_, &b_, &a_, &out_, &out_, &preference,
                                       kAlgorithms, proposals.data(), &count),
        "choice of an algorithm");
  if (count == 0)
    throw std::runtime_error("cuBLASLt has no algorithm for a product of " +
                             std::to_string(product.rows) + " x " + std::to_string(product.inner) +
                             " x " + std::to_string(product.columns));
  algorithm_ = proposals[0].algo;
  float fastest = std::numeric_limits<float>::infinity();
  for (int i = 0; trial != nullptr && i < count; ++i) {
    const float time = time_of(*trial, proposals[i].algo);
    if (time >= fastest) continue;
    fastest = time;
    algorithm_ = proposals[i].algo;
  }
}

void Plan::run(const Operands& operands) {
  check(multiply(operands, algorithm_), "product");
}

// In milliseconds; infinite if the algorithm does not run.
float Plan::time_of(const Operands& trial, const cublasLtMatmulAlgo_t& algorithm) {
  const Event begin, end;
  float fastest = std::numeric_limits<float>::infinity();
  for (int run = 0; run <= kTrials; ++run) { // the first one warms up
    check(cudaEventRecord(begin.event, trial.stream));
    if (multiply(trial, algorithm) != CUBLAS_STATUS_SUCCESS) break;
    check(cudaEventRecord(end.event, trial.stream));
    check(cudaEventSynchronize(end.event));
    float time = 0;
    check(cudaEventElapsedTime(&time, begin.event, end.event));
    if (run > 0) fastest = std::min(fastest, time);
  }
  return fastest;
}

cublasStatus_t Plan::multiply(const Operands& operands, const cublasLtMatmulAlgo_t& algorithm) {
  const float one = 1.0f, keep = operands.add ? 1.0f : 0.0f;
  return cublasLtMatmul(handle_, &operation_, &one, operands.b, &b_, operands.a, &a_, &keep,
                        operands.out, &out_, operands.out, &out_, &algorithm, operands.workspace,
                        kWorkspaceBytes, operands.stream);
}

} // namespace nsa::blas
