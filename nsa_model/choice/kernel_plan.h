// KernelPlan: which backend computes each part of a model on a rank, and why. Only plan_kernels()
// decides it. Validation of run files, the estimate, the worker, its report of effective toggles
// and `nsactl plan` read the plan. The operators count which backends ran (ops/kernel_counts.h),
// and the worker compares the counts with the plan. Pure, no LibTorch; any thread.
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
  kSelection,         // chooses the blocks of each token (Eq. 8 to 12)
  kDense,             // the dense twin's attention
  kNorm,              // residual sum and RMSNorm
  kRotation,          // splits the joined projections and applies RoPE
  kCompression,       // phi of Eq. 7
  kGate,              // the branches' gates
  kProducts,          // matrix products, including the output layer's
  kMlp,               // the MLP's products with SiLU
  kLoss,              // softmax cross-entropy of a chunk of logits
  kEmbeddingGradient, // gradient of the embedding, which is tied to the output layer
};
inline constexpr size_t kParts = 13;
std::string_view part_name(Part part); // name in reports: "compressed", "layers.norm"

enum class Backend : uint8_t {
  kSm90,      // our kernels for Hopper
  kPortable,  // our kernels for every GPU with compute capability 8.0 or higher
  kCublasLt,  // cuBLASLt with the fastest of its algorithms for each size
  kFlash,     // LibTorch's FlashAttention
  kSdpa,      // scaled_dot_product_attention, for which LibTorch chooses the kernel
  kAten,      // LibTorch's operations
  kReference, // the float64 oracle
};
inline constexpr size_t kBackends = 7;
std::string_view backend_name(Backend backend); // "sm90", "cublaslt", ...

// ---- request ------------------------------------------------------------------------------------

// LibTorch's kernels for scaled_dot_product_attention, in the order of at::SDPBackend.
enum class SdpaKernel : uint8_t { kMath, kFlash, kEfficient, kCudnn, kNone };
constexpr std::array<std::string_view, 5> choice_names(SdpaKernel) {
  return {"math", "flash", "efficient", "cudnn", "none"};
}

// Capabilities of a rank's device and process.
struct Capabilities {
  bool gpu = false;
  bool bf16 = false;              // computes in BF16; otherwise in FP32
  int compute_capability = 0;     // 10 * major + minor; 0 on a CPU
  bool kernels_loaded = true;     // libnsa_ops_cuda.so is loaded, on a GPU
  bool flash = true;              // LibTorch's FlashAttention is enabled
  std::optional<SdpaKernel> sdpa; // what LibTorch chooses for the dense twin; empty if unknown
  std::string why_not_cudnn;
};

struct ModelSizes {
  bool dense = false; // the dense twin
  int64_t vocabulary = 0, dimension = 0, heads = 0, kv_groups = 0, head_dimension = 0,
          mlp_ratio = 0;
  bool compressed = true, selected = true, sliding = true; // the branches
  bool learned_compression = false;                        // phi is an MLP, not the mean
  bool group_gate = true; // softmax over a group's branches; otherwise sigmoids
  serves::NsaSizes nsa;

  int branches() const { return int(compressed) + int(selected) + int(sliding); }
};

// Values of the toggles and their texts (common/spec/worker_toggles.h), as closed lists
// (common/base/choice.h).
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
  int64_t micro_batch = 1; // sequences per micro-batch
  int64_t sequence = 0;    // tokens of each sequence
  // ranks that share a sequence: attention splits by heads, everything else by tokens
  int64_t context_ranks = 1;
  bool documents = false; // attention restarts at each document
  bool deterministic = false;
};

// ---- plan ---------------------------------------------------------------------------------------

struct PlannedKernel {
  Part part = Part::kNorm;
  Backend backend = Backend::kAten;
  std::string reason;  // why this backend was chosen
  std::string variant; // how the backend computes it: "regrouped", "cudnn"; may be empty
  // A faster backend exists but does not support this; `reason` says why.
  bool falls_back = false;
  std::optional<Backend> other;         // a backend that also computes some of the part
  std::optional<Backend> in_evaluation; // may compute a batch with fewer sequences
};

// A requested value of a toggle that is not available.
struct Refusal {
  std::string_view toggle, value, instead; // names; `instead` lists the available values
  serves::Reasons reasons;                 // at least one
};

struct KernelPlan {
  std::vector<PlannedKernel> kernels; // for the parts that the model has, in order of Part
  std::vector<Refusal> refusals;      // empty if the request can be met

  const PlannedKernel* find(Part part) const; // nullptr if the model has no such part
  bool computes(Part part, Backend backend) const;
  // Whether our kernels compute attention (NSA's or the dense twin's), the parts around it, or both
  // gradients of the embedding in one pass.
  bool fused_attention() const;
  bool fused_dense() const { return computes(Part::kDense, Backend::kSm90); }
  bool fused_layers() const { return computes(Part::kNorm, Backend::kPortable); }
  bool compression_in_place() const; // a learned phi by our kernel
  bool joined_embedding() const { return computes(Part::kEmbeddingGradient, Backend::kPortable); }
};

KernelPlan plan_kernels(const Capabilities& capabilities, const ModelSizes& model,
                        const KernelRequest& request);

// With attention.dense = "auto", our kernels compute models with this many heads a KV group. With
// them a step is 1.3 to 4 % faster than with cuDNN at 1,024 to 65,536 tokens (H200; docs/lab:
// dense-attention). Other numbers of heads are supported but have not been timed.
inline constexpr int64_t kFusedDenseHeads = 6;

// Maps each part to its text in a rank's report: "fused hopper", "aten regrouped", "aten (why)".
// The first word is the value of the part's toggle. "layers" stands for all parts around attention.
std::map<std::string, std::string> report_of(const KernelPlan& plan);

// The effective value of each toggle that chooses kernels. attention.dense is absent if the model
// has no dense attention.
std::map<std::string, std::string> effective_toggles(const KernelPlan& plan);

// ---- counts -------------------------------------------------------------------------------------

// How often each backend ran for each part.
using KernelCounts = std::array<std::array<uint64_t, kBackends>, kParts>;

enum class Pass : uint8_t {
  kFirstStep,  // every planned part must have run
  kTraining,   // later steps; replayed graphs are not counted
  kEvaluation, // forward passes; the last batch may have fewer sequences
};
// Describes in a sentence how the counts of a pass differ from the plan; empty if they agree.
std::string difference(const KernelPlan& plan, const KernelCounts& counts, Pass pass);

} // namespace nsa::choice
