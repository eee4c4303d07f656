// KernelPlan: what computes each part of a model on a rank, and why. plan_kernels() is the one
// place that decides it. Validation of run files, the estimate, the worker, its report of toggles
// in effect and `nsactl plan` read the plan; the operators count what really ran
// (ops/kernel_counts.h), and the worker compares the two. Pure, no LibTorch; any thread.
#pragma once

#include "nsa_model/choice/model_words.h"
#include "nsa_model/choice/serves.h"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::choice {

enum class Part : uint8_t {
  kCompressed, // the branches of NSA
  kSelected,
  kSliding,
  kSelection,         // which blocks each token selects (Eq. 8 to 12)
  kDense,             // the dense twin's attention
  kNorm,              // residual sum and RMSNorm
  kRotation,          // the joined projections taken apart, RoPE
  kCompression,       // phi of Eq. 7
  kGate,              // the branches' gates
  kProducts,          // matrix products, the output layer's too
  kMlp,               // the products with SiLU
  kLoss,              // softmax cross-entropy of a chunk of logits
  kEmbeddingGradient, // of the embedding, which is tied to the output layer
};
inline constexpr size_t kParts = 13;
std::string_view part_name(Part part); // as reports have it: "compressed", "layers.norm"

enum class Backend : uint8_t {
  kSm90,      // our kernels on Hopper's instructions
  kPortable,  // our kernels for every GPU from compute capability 8.0
  kCublasLt,  // cuBLASLt, with the fastest of its algorithms for each size
  kFlash,     // LibTorch's FlashAttention
  kSdpa,      // scaled_dot_product_attention: LibTorch chooses the kernel
  kAten,      // LibTorch's operations
  kReference, // the float64 oracle
};
inline constexpr size_t kBackends = 7;
std::string_view backend_name(Backend backend); // "sm90", "cublaslt", ...

// ---- what is asked -----------------------------------------------------------------------------

// LibTorch's kernels for scaled_dot_product_attention, in the order of at::SDPBackend.
enum class SdpaKernel : uint8_t { kMath, kFlash, kEfficient, kCudnn, kNone };
constexpr std::array<std::string_view, 5> choice_names(SdpaKernel) {
  return {"math", "flash", "efficient", "cudnn", "none"};
}

// Of a rank's device and process.
struct Capabilities {
  bool gpu = false;
  bool bf16 = false;              // computes in BF16; else in FP32
  int compute_capability = 0;     // 10 * major + minor; 0 on a CPU
  bool kernels_loaded = true;     // libnsa_ops_cuda.so, on a GPU
  bool flash = true;              // LibTorch's FlashAttention is switched on
  std::optional<SdpaKernel> sdpa; // what LibTorch takes for the dense twin; empty: not asked yet
  std::string why_not_cudnn;
};

struct ModelSizes {
  bool dense = false; // the dense twin
  int64_t vocabulary = 0, dimension = 0, heads = 0, kv_groups = 0, head_dimension = 0,
          mlp_ratio = 0;
  bool compressed = true, selected = true, sliding = true; // the branches
  bool learned_compression = false;                        // phi is an MLP, not the mean
  bool group_gate = true;                                  // softmax of a group; else sigmoids
  serves::NsaSizes nsa;

  int branches() const { return int(compressed) + int(selected) + int(sliding); }
};

// Values of the toggles and their texts (common/spec/worker_toggles.h), as common/base/choice.h has
// closed lists.
enum class AttentionKernels : uint8_t { kAuto, kAten, kReference, kFused };
constexpr std::array<std::string_view, 4> choice_names(AttentionKernels) {
  return {"auto", "aten", "reference", "fused"};
}
enum class LayerKernels : uint8_t { kAuto, kAten, kFused };
constexpr std::array<std::string_view, 3> choice_names(LayerKernels) {
  return {"auto", "aten", "fused"};
}
enum class EmbeddingGradient : uint8_t { kAuto, kSeparate, kJoined };
constexpr std::array<std::string_view, 3> choice_names(EmbeddingGradient) {
  return {"auto", "separate", "joined"};
}

struct KernelRequest {
  AttentionKernels attention = AttentionKernels::kAuto;
  DenseAttention dense = DenseAttention::kAuto;
  LayerKernels layers = LayerKernels::kAuto;
  EmbeddingGradient embedding = EmbeddingGradient::kAuto;
  int64_t micro_batch = 1;   // sequences
  int64_t sequence = 0;      // tokens of each
  int64_t context_ranks = 1; // that share each: they divide tokens, but for attention heads
  bool documents = false;    // attention restarts at each document
  bool deterministic = false;
  // A learned phi by its kernel. No run asks for it before a GPU has checked that kernel; tests and
  // nsa-bench model do (docs/lab: learned-phi).
  bool compression_in_place = false;
};

// ---- what is answered --------------------------------------------------------------------------

struct PlannedKernel {
  Part part = Part::kNorm;
  Backend backend = Backend::kAten;
  std::string reason;  // why this backend
  std::string variant; // how it does it: "regrouped", "cudnn"; may be empty
  // A faster backend does not serve this; `reason` says why.
  bool falls_back = false;
  std::optional<Backend> other;         // that computes some of the part as well
  std::optional<Backend> in_evaluation; // that may compute a batch with fewer sequences
};

// A toggle's value that cannot be had.
struct Refusal {
  std::string_view toggle, value, instead; // names; `instead`: the values that can be had
  serves::Reasons reasons;                 // at least one
};

struct KernelPlan {
  std::vector<PlannedKernel> kernels; // of the parts that the model has, in their order
  std::vector<Refusal> refusals;      // empty where the request can be met

  const PlannedKernel* find(Part part) const; // nullptr: the model has no such part
  bool computes(Part part, Backend backend) const;
  // Our kernels compute: attention, NSA's or the dense twin's; the parts around it; both gradients
  // of the embedding in one pass.
  bool fused_attention() const;
  bool fused_dense() const { return computes(Part::kDense, Backend::kSm90); }
  bool fused_layers() const { return computes(Part::kNorm, Backend::kPortable); }
  bool compression_in_place() const; // of a learned phi, by our kernel
  bool joined_embedding() const { return computes(Part::kEmbeddingGradient, Backend::kPortable); }
};

KernelPlan plan_kernels(const Capabilities& capabilities, const ModelSizes& model,
                        const KernelRequest& request);

// "auto" of attention.dense takes our kernels for sequences up to this many tokens, cuDNN for
// longer ones: a step with them is 1.3 to 3.8 % faster than with cuDNN at 1,024 to 8,192 tokens on
// an H200, with six heads a group (docs/lab: dense-attention). Other counts of heads are served,
// and have not been timed.
inline constexpr int64_t kFusedDenseTokens = 8192;
inline constexpr int64_t kFusedDenseHeads = 6;

// Part -> text, as a rank reports it: "fused hopper", "aten regrouped", "aten (why)". The first
// word is the value of the part's toggle. "layers": all parts around attention together.
std::map<std::string, std::string> report_of(const KernelPlan& plan);

// The effective value of each toggle that decides about kernels. attention.dense is left out for a
// model that has none.
std::map<std::string, std::string> effective_toggles(const KernelPlan& plan);

// ---- what ran ----------------------------------------------------------------------------------

// How often each backend was taken for each part.
using KernelCounts = std::array<std::array<uint64_t, kBackends>, kParts>;

enum class Pass : uint8_t {
  kFirstStep,  // every planned part must have run
  kTraining,   // later steps, which may be replayed as graphs and are not counted then
  kEvaluation, // the forward pass; its last batch may have fewer sequences
};
// What differs between the plan and the counts of a pass, in a sentence; empty: nothing.
std::string difference(const KernelPlan& plan, const KernelCounts& counts, Pass pass);

} // namespace nsa::choice
