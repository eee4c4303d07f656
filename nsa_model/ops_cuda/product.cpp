// The operations of nsa_model/ops/product.h for CUDA: cuBLASLt products and the products with SiLU.
#include "nsa_model/ops/product.h"

#include "nsa_model/choice/serves.h"
#include "nsa_model/kernels/silu_product/silu_product.h"
#include "nsa_model/ops/kernel_counts.h"
#include "nsa_model/ops_cuda/launch.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <array>
#include <c10/core/DeviceGuard.h>
#include <cublasLt.h>
#include <map>
#include <mutex>
#include <torch/library.h>
#include <vector>

namespace nsa::ops::on_cuda {
namespace {

using at::Tensor;

// bytes, of every matrix; views of flat buffers guarantee no more
constexpr uint32_t kAlignment = 16;
// the size that cuBLAS uses on Hopper
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
constexpr int kAlgorithms = 8; // number of algorithms that are timed
constexpr int kTrials = 3;     // timed runs of each; the fastest counts

void check_blas(cublasStatus_t status, const char* what) {
  TORCH_CHECK(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt, ", what, ": ",
              cublasLtGetStatusString(status));
}

// The key of an algorithm's choice: a product of row-major matrices. cuBLASLt's matrices are
// column-major, so it computes out^T = b^T a^T.
struct Product {
  int64_t rows, columns, inner; // rows and columns of the result, length of the sum
  bool a_transposed, b_transposed, wide;
  auto operator<=>(const Product&) const = default;
};

// Arguments of cublasLtMatmul for a product, computed once.
struct Plan {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, out;
  cublasLtMatmulAlgo_t algorithm;
};

class Products {
public:
  // Creates a handle for the current device.
  Products() { check_blas(cublasLtCreate(&handle_), "create"); }

  void run(const Product& product, const Tensor& out, const Tensor& a, const Tensor& b, bool add) {
    const Tensor workspace =
        at::empty({static_cast<int64_t>(kWorkspaceBytes)}, out.options().dtype(at::kByte));
    Plan& plan = plan_of(product, out, a, b, add, workspace);
    check_blas(multiply(plan, plan.algorithm, out, a, b, add, workspace), "product");
  }

private:
  static void lay_out(cublasLtMatrixLayoutOpaque_t& layout, cudaDataType type, int64_t rows,
                      int64_t columns) { // column-major, without gaps
    check_blas(cublasLtMatrixLayoutInit(&layout, type, static_cast<uint64_t>(rows),
                                        static_cast<uint64_t>(columns), rows),
               "layout");
  }

  cublasStatus_t multiply(Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const Tensor& out,
                          const Tensor& a, const Tensor& b, bool add,
                          const Tensor& workspace) const {
    const float one = 1.0f, keep = add ? 1.0f : 0.0f;
    return cublasLtMatmul(handle_, &plan.operation, &one, b.data_ptr(), &plan.b, a.data_ptr(),
                          &plan.a, &keep, out.data_ptr(), &plan.out, out.data_ptr(), &plan.out,
                          &algorithm, workspace.data_ptr(), kWorkspaceBytes, current_stream());
  }

  Plan& plan_of(const Product& product, const Tensor& out, const Tensor& a, const Tensor& b,
                bool add, const Tensor& workspace) {
    const std::lock_guard lock(mutex_);
    const auto known = plans_.find(product);
    if (known != plans_.end()) return known->second;
    Plan plan{};
    check_blas(cublasLtMatmulDescInit(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "product");
    // cuBLASLt's first operand is b, its second a.
    const cublasOperation_t first = product.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = product.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    check_blas(cublasLtMatmulDescSetAttribute(&plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, &first,
                                              sizeof first),
               "product");
    check_blas(cublasLtMatmulDescSetAttribute(&plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                              sizeof second),
               "product");
    lay_out(plan.b, CUDA_R_16BF, b.size(1), b.size(0));
    lay_out(plan.a, CUDA_R_16BF, a.size(1), a.size(0));
    lay_out(plan.out, product.wide ? CUDA_R_32F : CUDA_R_16BF, product.columns, product.rows);
    choose(plan, add ? at::empty_like(out) : out, a, b, workspace);
    return plans_.emplace(product, plan).first->second;
  }

  // Chooses the fastest of cuBLASLt's proposals. With deterministic algorithms it chooses the first
  // one, since two nearly equal times may order differently in another process. Writes `out`.
  void choose(Plan& plan, const Tensor& out, const Tensor& a, const Tensor& b,
              const Tensor& workspace) const {
    cublasLtMatmulPreferenceOpaque_t preference;
    check_blas(cublasLtMatmulPreferenceInit(&preference), "preference");
    check_blas(cublasLtMatmulPreferenceSetAttribute(&preference,
                                                    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                    &kWorkspaceBytes, sizeof kWorkspaceBytes),
               "preference");
    // By default cuBLASLt assumes pointers that are multiples of 256 bytes. A plan is used for
    // every call with its sizes, so it may rely only on the alignment that all of them have.
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      check_blas(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &kAlignment,
                                                      sizeof kAlignment),
                 "preference");
    std::array<cublasLtMatmulHeuristicResult_t, kAlgorithms> proposals{};
    int count = 0;
    check_blas(cublasLtMatmulAlgoGetHeuristic(handle_, &plan.operation, &plan.b, &plan.a, &plan.out,
                                              &plan.out, &preference, kAlgorithms, proposals.data(),
                                              &count),
               "choice of an algorithm");
    TORCH_CHECK(count > 0, "cuBLASLt has no algorithm for a product of ", a.sizes(), " and ",
                b.sizes());
    plan.algorithm = proposals[0].algo;
    if (at::globalContext().deterministicAlgorithms()) return;
    const cudaStream_t stream = current_stream();
    std::array<cudaEvent_t, 2> events{};
    for (cudaEvent_t& event : events)
      check_cuda(cudaEventCreate(&event), "event");
    float fastest = 0;
    for (int i = 0; i < count; ++i)
      for (int trial = 0; trial <= kTrials; ++trial) { // the first one warms up
        check_cuda(cudaEventRecord(events[0], stream), "event");
        if (multiply(plan, proposals[i].algo, out, a, b, false, workspace) != CUBLAS_STATUS_SUCCESS)
          break;
        check_cuda(cudaEventRecord(events[1], stream), "event");
        check_cuda(cudaEventSynchronize(events[1]), "event");
        float milliseconds = 0;
        check_cuda(cudaEventElapsedTime(&milliseconds, events[0], events[1]), "event");
        if (trial == 0 || (fastest > 0 && milliseconds >= fastest)) continue;
        fastest = milliseconds;
        plan.algorithm = proposals[i].algo;
      }
    for (cudaEvent_t& event : events)
      check_cuda(cudaEventDestroy(event), "event");
  }

  cublasLtHandle_t handle_ = nullptr; // never destroyed
  std::mutex mutex_;
  std::map<Product, Plan> plans_;
};

// `device` must be the current device.
Products& products_of(int device) {
  static std::mutex mutex;
  static std::map<int, Products> all;
  const std::lock_guard lock(mutex);
  return all[device];
}

bool is_served(const Tensor& matrix) {
  return matrix.scalar_type() == at::kBFloat16 && matrix.dim() == 2 && is_aligned(matrix) &&
         serves::matrix(matrix.size(0), matrix.size(1));
}

void product_(const Tensor& out, const Tensor& a, const Tensor& b, bool a_transposed,
              bool b_transposed, bool add) {
  const bool wide = out.scalar_type() == at::kFloat;
  if (!is_served(a) || !is_served(b) || out.dim() != 2 || !out.is_contiguous() ||
      !is_aligned(out.data_ptr()) || (!wide && out.scalar_type() != at::kBFloat16)) {
    composed::product_(out, a, b, a_transposed, b_transposed, add);
    return;
  }
  const Product product{out.size(0),  out.size(1),  a.size(a_transposed ? 0 : 1),
                        a_transposed, b_transposed, wide};
  TORCH_CHECK(a.size(a_transposed ? 1 : 0) == product.rows &&
                  b.size(b_transposed ? 0 : 1) == product.columns &&
                  b.size(b_transposed ? 1 : 0) == product.inner,
              "nsa: product_: ", a.sizes(), " and ", b.sizes(), " do not give ", out.sizes());
  const c10::DeviceGuard guard(a.device());
  count_kernel(choice::Part::kProducts, choice::Backend::kCublasLt);
  products_of(a.device().index()).run(product, out, a, b, add);
}

std::tuple<Tensor, Tensor> silu_product(const Tensor& x, const Tensor& weight) {
  check_silu_product(x, weight);
  if (!is_served(x) || !is_served(weight) ||
      !serves::silu_product(major_of(x), x.size(0), weight.size(0), x.size(1)))
    return composed::silu_product(x, weight);
  const c10::DeviceGuard guard(x.device());
  const Tensor before = at::empty({x.size(0), weight.size(0)}, x.options());
  const Tensor after = at::empty_like(before);
  count_kernel(choice::Part::kMlp, choice::Backend::kSm90);
  kernels::SiluProductParams params{};
  params.rows = static_cast<int>(x.size(0));
  params.columns = static_cast<int>(weight.size(0));
  params.inner = static_cast<int>(x.size(1));
  params.x = bf16(x);
  params.weight = bf16(weight);
  params.before = bf16(before);
  params.after = bf16(after);
  check_cuda(kernels::launch_silu_product(params, current_stream()), "silu_product");
  return {before, after};
}

// Fills `after` if it is defined.
Tensor launch_silu_backward(const Tensor& d_out, const Tensor& weight, const Tensor& before,
                            const Tensor& after) {
  const c10::DeviceGuard guard(d_out.device());
  const Tensor d_before = at::empty_like(before);
  count_kernel(choice::Part::kMlp, choice::Backend::kSm90);
  kernels::SiluProductBackwardParams params{};
  params.rows = static_cast<int>(before.size(0));
  params.columns = static_cast<int>(before.size(1));
  params.inner = static_cast<int>(d_out.size(1));
  params.d_out = bf16(d_out);
  params.weight = bf16(weight);
  params.before = bf16(before);
  params.d_before = bf16(d_before);
  params.after = after.defined() ? bf16(after) : nullptr;
  check_cuda(kernels::launch_silu_product_backward(params, current_stream()),
             "silu_product_backward");
  return d_before;
}

bool serves_silu_backward(const Tensor& d_out, const Tensor& weight, const Tensor& before) {
  check_silu_product_backward(d_out, weight, before);
  return is_served(d_out) && is_served(weight) && is_served(before) &&
         serves::silu_product(major_of(d_out), before.size(0), before.size(1), d_out.size(1));
}

Tensor silu_product_backward(const Tensor& d_out, const Tensor& weight, const Tensor& before) {
  if (!serves_silu_backward(d_out, weight, before))
    return composed::silu_product_backward(d_out, weight, before);
  return launch_silu_backward(d_out, weight, before, Tensor());
}

std::tuple<Tensor, Tensor>
silu_product_backward_with_after(const Tensor& d_out, const Tensor& weight, const Tensor& before) {
  if (!serves_silu_backward(d_out, weight, before))
    return composed::silu_product_backward_with_after(d_out, weight, before);
  const Tensor after = at::empty_like(before);
  return {launch_silu_backward(d_out, weight, before, after), after};
}

} // namespace

TORCH_LIBRARY_IMPL(nsa, CUDA, library) {
  library.impl("product_", &product_);
  library.impl("silu_product", &silu_product);
  library.impl("silu_product_backward", &silu_product_backward);
  library.impl("silu_product_backward_with_after", &silu_product_backward_with_after);
}

} // namespace nsa::ops::on_cuda
