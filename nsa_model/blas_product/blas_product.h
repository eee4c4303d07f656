// Products of row-major BF16 matrices by cuBLASLt. They know no tensors, so benchmarks without
// LibTorch compute the products of training. Any thread. Failures are std::runtime_error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cublasLt.h>
#include <cuda_runtime_api.h>

namespace nsa::blas {

// the size that cuBLAS uses on Hopper
inline constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

// An algorithm is chosen for each of these. Matrices have no gaps and begin at multiples of 16
// bytes.
struct Product {
  int64_t rows, columns, inner;          // rows and columns of the result, length of the sum
  bool a_transposed, b_transposed, wide; // wide: the result is FP32
  auto operator<=>(const Product&) const = default;
};

struct Operands {
  void* out;
  const void *a, *b;
  bool add; // to `out`
  void* workspace;
  cudaStream_t stream;
};

cublasLtHandle_t new_handle(); // for the current device

// The arguments of cublasLtMatmul for a product, computed once.
class Plan {
public:
  // Takes the fastest of cuBLASLt's proposals with the operands of `trial`, whose `out` it writes.
  // Without a trial it takes the first proposal, since two nearly equal times may order differently
  // in another process.
  Plan(cublasLtHandle_t handle, const Product& product, const Operands* trial);

  void run(const Operands& operands);

private:
  float time_of(const Operands& trial, const cublasLtMatmulAlgo_t& algorithm);
  cublasStatus_t multiply(const Operands& operands, const cublasLtMatmulAlgo_t& algorithm);

  cublasLtHandle_t handle_;
  cublasLtMatmulDescOpaque_t operation_{};
  cublasLtMatrixLayoutOpaque_t a_{}, b_{}, out_{};
  cublasLtMatmulAlgo_t algorithm_{};
};

} // namespace nsa::blas
