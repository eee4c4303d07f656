#include "nsa_model/choice/kernel_plan.h"

#include <algorithm>

namespace nsa::choice {

namespace {

using serves::Reason;
using serves::Reasons;

constexpr const char* kInPlace = "in place";
constexpr const char* kFastest = "it is the fastest that serves these sizes on this device";

std::string joined(const Reasons& reasons) {
  std::string text;
  for (const Reason& reason : reasons)
    text += (text.empty() ? "" : "; ") + reason.text;
  return text;
}

class Planner {
public:
  Planner(const Capabilities& on, const ModelSizes& model, const KernelRequest& request)
      : on_(on), m_(model), r_(request), rows_(request.micro_batch * tokens_of_sequence()) {}

  KernelPlan plan() {
    const Reasons layers = why_not_layers();
    fused_layers_ = layers.empty() && r_.layers != LayerKernels::kAten;
    if (m_.dense)
      dense();
    else
      attention();
    around_attention(layers);
    if (r_.layers == LayerKernels::kFused) refuse("layers.kernels", "fused", "aten", layers);
    std::sort(plan_.kernels.begin(), plan_.kernels.end(),
              [](const auto& a, const auto& b) { return a.part < b.part; });
    return std::move(plan_);
  }

private:
  PlannedKernel& add(Part part, Backend backend, std::string reason) {
    plan_.kernels.push_back({.part = part, .backend = backend, .reason = std::move(reason)});
    return plan_.kernels.back();
  }
  void refuse(std::string_view toggle, std::string_view value, std::string_view instead,
              const Reasons& why_not) {
    if (!why_not.empty()) plan_.refusals.push_back({toggle, value, instead, why_not});
  }

  // Reasons that exclude every kernel of ours.
  Reasons why_not_here() const {
    Reasons reasons;
    if (!on_.gpu)
      reasons.push_back(
          {"our kernels need a GPU, and the ranks compute on a CPU", {"parallel.device"}});
    else if (!on_.kernels_loaded)
      reasons.push_back({"libnsa_ops_cuda.so is not loaded, which a build with nvcc has", {}});
    if (on_.gpu && !on_.bf16)
      reasons.push_back({"our kernels compute in BF16, and the ranks compute in FP32",
                         {"precision.mode", "precision.compute"}});
    return reasons;
  }

  Reasons why_not_layers() const {
    Reasons reasons = why_not_here();
    if (!reasons.empty()) return reasons;
    if (!serves::norm(m_.dimension))
      reasons.push_back(
          {"the norm serves a model.dimension of 256, 512, 768 or 1,024", {"model.dimension"}});
    if (!serves::head_split(m_.head_dimension, 1))
      reasons.push_back({"the rotation serves a model.head_dimension that is a multiple of 16",
                         {"model.head_dimension"}});
    if (!serves::loss(m_.vocabulary))
      reasons.push_back(
          {"the loss serves a model.vocabulary that is a multiple of 8", {"model.vocabulary"}});
    return reasons;
  }

  serves::AttentionProblem problem() const {
    return {.compute_capability = on_.compute_capability,
            .batch = r_.micro_batch,
            .sequence = r_.sequence,
            .heads = m_.heads / r_.context_ranks,
            .groups = m_.kv_groups / r_.context_ranks,
            .head_dimension = m_.head_dimension,
            .nsa = m_.nsa};
  }

  Backend our_family() const {
    return serves::hopper_attention(on_.compute_capability, m_.head_dimension) ? Backend::kSm90
                                                                               : Backend::kPortable;
  }

  // ---- NSA ----
  void attention() {
    Reasons why_not = why_not_here();
    if (why_not.empty()) why_not = serves::why_not_attention(problem());
    if (r_.attention == AttentionKernels::kFused)
      refuse("attention.kernels", "fused", "aten", why_not);
    const bool asked_aten = r_.attention == AttentionKernels::kAten;
    const bool reference = r_.attention == AttentionKernels::kReference;
    const bool fused = why_not.empty() && !asked_aten && !reference;
    const std::string reason = fused        ? kFastest
                               : reference  ? "attention.kernels asks for the oracle"
                               : asked_aten ? "attention.kernels asks for LibTorch's operations"
                                            : joined(why_not);
    const auto branch = [&](Part part, bool has) {
      if (!has) return;
      if (fused || reference) {
        add(part, reference ? Backend::kReference : our_family(), reason);
        return;
      }
      aten_branch(part, reason).falls_back = !asked_aten;
    };
    branch(Part::kCompressed, m_.compressed);
    branch(Part::kSelected, m_.selected);
    branch(Part::kSliding, m_.sliding);
    if (m_.selected && r_.sequence > m_.nsa.selected_blocks * m_.nsa.selection_block)
      add(Part::kSelection,
          fused       ? our_family()
          : reference ? Backend::kReference
                      : Backend::kAten,
          reason);
    compression(fused);
    gate();
  }

  PlannedKernel& aten_branch(Part part, const std::string& reason) {
    const bool compressed = part == Part::kCompressed;
    const int64_t stride = std::max<int64_t>(1, m_.nsa.compression_stride);
    const auto why_not_of = [&](int64_t length) {
      return serves::why_not_regrouped({.gpu = on_.gpu,
                                        .narrow = on_.bf16,
                                        .head_dimension = m_.head_dimension,
                                        .length = length,
                                        .compressed = compressed,
                                        .compression_block = m_.nsa.compression_block,
                                        .compression_stride = stride});
    };
    const std::string_view why_not = why_not_of(r_.sequence);
    PlannedKernel& kernel = add(part, why_not.empty() ? Backend::kFlash : Backend::kAten, reason);
    kernel.variant = why_not.empty() ? "regrouped" : "chunked (" + std::string(why_not) + ")";
    if (!r_.documents || !compressed) return kernel;
    // The length of each document decides, not the length of the sequence.
    if (why_not.empty()) {
      kernel.variant = "regrouped (chunked in documents of other lengths than "
                       "nsa.compression_stride divides)";
      kernel.other = Backend::kAten;
    } else if (why_not_of(m_.nsa.compression_block * stride).empty()) {
      kernel.other = Backend::kFlash;
    }
    return kernel;
  }

  void compression(bool fused) {
    if (!m_.compressed) return;
    if (m_.learned_compression)
      learned_compression();
    else if (fused && fused_layers_)
      add(Part::kCompression, our_family(), "the attention kernels average keys and values");
    else
      add(Part::kCompression, Backend::kAten,
          fused ? "the parts around attention are not computed by our kernels"
                : "attention is not computed by our kernels");
  }

  void learned_compression() {
    const char* reason = nullptr;
    if (!fused_layers_)
      reason = "the parts around attention are not computed by our kernels";
    else if (!serves::learned_compression(m_.head_dimension, m_.nsa.compression_block,
                                          m_.nsa.compression_stride, 2 * m_.head_dimension))
      reason = "the learned compression serves blocks of 32 tokens every 16 and a "
               "model.head_dimension of 64";
    else if (r_.documents)
      reason = "the learned compression serves whole sequences, without data.document_mask";
    else if (r_.sequence < m_.nsa.compression_block)
      reason = "the sequence has no whole block";
    if (reason == nullptr)
      add(Part::kCompression, Backend::kPortable, kFastest).variant = kInPlace;
    else
      add(Part::kCompression, Backend::kAten, reason).falls_back = fused_layers_;
  }

  void gate() {
    if (m_.group_gate && m_.branches() < 2) return; // a softmax over one branch is always 1
    const auto aten = [&](const char* reason) {
      add(Part::kGate, Backend::kAten, reason).falls_back = fused_layers_;
    };
    if (!fused_layers_) return; // the gate follows the other parts around attention
    if (!m_.group_gate)
      aten("the kernel is of the group softmax");
    else if (!serves::group_gate(m_.head_dimension, m_.head_dimension / 2, m_.branches()))
      aten("the kernel serves three branches and a model.head_dimension of 64");
    else
      add(Part::kGate, Backend::kPortable, kFastest);
  }

  // ---- the dense twin ----
  void dense() {
    Reasons why_not = why_not_here();
    if (why_not.empty()) why_not = serves::why_not_causal(problem());
    if (r_.dense == DenseAttention::kFused)
      refuse("attention.dense", "fused", "cudnn", why_not);
    else if (r_.dense == DenseAttention::kAuto && r_.attention == AttentionKernels::kFused)
      refuse("attention.kernels", "fused", "aten", why_not);
    const std::string reason = why_not_fused_dense(why_not);
    const bool fused = reason.empty();
    // LibTorch's own backends and ours run once for each document.
    const std::string each = r_.documents ? " (each document)" : "";
    if (fused) {
      add(Part::kDense, Backend::kSm90, kFastest).variant = "hopper" + each;
      return;
    }
    const bool flash = r_.dense == DenseAttention::kAuto || r_.dense == DenseAttention::kFlash;
    if (r_.documents && flash && on_.flash &&
        serves::flash_documents(on_.gpu, on_.bf16, on_.compute_capability, m_.head_dimension)) {
      add(Part::kDense, Backend::kFlash, reason).variant = "flash (all documents)";
      return;
    }
    // If the user requested nothing, the report must say that cuDNN is not used, because steps are
    // slower without it.
    PlannedKernel& kernel = add(Part::kDense, Backend::kSdpa, reason);
    kernel.variant = on_.sdpa ? choice_names(*on_.sdpa).at(size_t(*on_.sdpa)) : "sdpa";
    if (on_.gpu && r_.dense == DenseAttention::kAuto && on_.sdpa && on_.sdpa != SdpaKernel::kCudnn)
      kernel.variant += " (" + on_.why_not_cudnn + ")";
    kernel.variant += each;
  }

  // Why our kernels do not compute the dense twin; empty if they do.
  std::string why_not_fused_dense(const Reasons& why_not) const {
    if (r_.dense != DenseAttention::kAuto && r_.dense != DenseAttention::kFused)
      return "attention.dense asks for it";
    if (!why_not.empty()) return joined(why_not);
    if (r_.dense == DenseAttention::kFused || r_.attention == AttentionKernels::kFused) return "";
    if (r_.attention == AttentionKernels::kAten)
      return "attention.kernels asks for LibTorch's operations";
    if (r_.documents) return "with data.document_mask our kernels are slower";
    if (m_.heads == kFusedDenseHeads * m_.kv_groups || r_.deterministic) return "";
    return "our kernels were timed with six heads a KV group only";
  }

  // ---- the rest ----
  void around_attention(const Reasons& why_not) {
    if (!fused_layers_) {
      const bool asked = r_.layers == LayerKernels::kAten;
      const std::string reason =
          asked ? "layers.kernels asks for LibTorch's operations" : joined(why_not);
      for (const Part part : {Part::kNorm, Part::kRotation, Part::kProducts, Part::kMlp,
                              Part::kLoss, Part::kEmbeddingGradient})
        add(part, Backend::kAten, reason).falls_back = !asked;
      if (!m_.dense && (!m_.group_gate || m_.branches() > 1))
        add(Part::kGate, Backend::kAten, reason).falls_back = !asked;
      if (r_.embedding == EmbeddingGradient::kJoined)
        refuse("layers.embedding_gradient", "joined", "separate",
               {{"it is one of our kernels around attention, and they do not run",
                 {"toggles.layers.kernels"}}});
      return;
    }
    for (const Part part : {Part::kNorm, Part::kRotation})
      add(part, Backend::kPortable, kFastest);
    products();
    mlp();
    embedding();
    loss();
  }

  // Which backends multiply the matrices of a batch. Every product has the rows of the batch or of
  // a chunk of logits. Columns are multiples of 8 if the norm and the rotation are supported.
  struct ProductBackends {
    bool cublaslt = false, aten = false;
    void add(int64_t rows) { (serves::matrix(rows, 8) ? cublaslt : aten) = true; }
  };
  ProductBackends products_of(int64_t rows) const {
    const int64_t chunk = serves::loss_chunk(true, true, m_.vocabulary);
    ProductBackends taken;
    taken.add(rows);
    if (rows > chunk) taken.add(chunk);
    if (rows > chunk && rows % chunk != 0) taken.add(rows % chunk);
    return taken;
  }

  // Visits the row counts of an evaluation's last batch, which may have any smaller number of
  // sequences.
  template <class Visit> void for_fewer_rows(Visit visit) const {
    for (int64_t batch = 1; batch < r_.micro_batch; ++batch)
      visit(batch * tokens_of_sequence());
  }

  void products() {
    const bool served = serves::matrix(rows_, 8);
    PlannedKernel& kernel =
        served ? add(Part::kProducts, Backend::kCublasLt, kFastest)
               : add(Part::kProducts, Backend::kAten, "a size of a matrix is no multiple of 8");
    kernel.falls_back = !served;
    const Backend second = served ? Backend::kAten : Backend::kCublasLt;
    const auto takes_second = [&](int64_t rows) {
      const ProductBackends taken = products_of(rows);
      return served ? taken.aten : taken.cublaslt;
    };
    if (takes_second(rows_)) kernel.other = second;
    for_fewer_rows([&](int64_t rows) {
      if (takes_second(rows)) kernel.in_evaluation = second;
    });
  }

  void mlp() {
    const int major = on_.compute_capability / 10;
    const auto served = [&](int64_t rows) {
      return serves::silu_product(major, rows, m_.mlp_ratio * m_.dimension, m_.dimension);
    };
    const char* reason = major != 9 ? "the products with SiLU need compute capability 9"
                         : rows_ % 256 != 0
                             ? "the products with SiLU serve multiples of 256 tokens a micro-batch"
                             : "the products with SiLU serve multiples of 64 columns in and 256 "
                               "within";
    const bool ours = served(rows_);
    PlannedKernel& kernel =
        ours ? add(Part::kMlp, Backend::kSm90, kFastest) : add(Part::kMlp, Backend::kAten, reason);
    kernel.falls_back = !ours;
    for_fewer_rows([&](int64_t rows) {
      if (served(rows) != ours) kernel.in_evaluation = ours ? Backend::kAten : Backend::kSm90;
    });
  }

  void embedding() {
    Reasons why_not;
    if (!serves::embedding_gradient(rows_, m_.vocabulary, m_.dimension))
      why_not.push_back({"it serves a multiple of 256 columns up to 1,024 and 1,048,576 tokens a "
                         "micro-batch",
                         {"train.micro_batch", "train.sequence_length"}});
    if (r_.embedding == EmbeddingGradient::kJoined)
      refuse("layers.embedding_gradient", "joined", "separate", why_not);
    if (r_.embedding == EmbeddingGradient::kSeparate)
      add(Part::kEmbeddingGradient, Backend::kAten, "layers.embedding_gradient asks for it");
    else if (!why_not.empty())
      add(Part::kEmbeddingGradient, Backend::kAten, joined(why_not)).falls_back = true;
    else
      add(Part::kEmbeddingGradient, Backend::kPortable, kFastest);
  }

  // Without gradients, and without both gradients of the embedding in one pass, the loss has
  // logits.
  void loss() {
    const bool exponentials =
        plan_.joined_embedding() &&
        serves::exponentials(on_.compute_capability / 10, rows_, m_.vocabulary, m_.dimension);
    PlannedKernel& kernel =
        add(Part::kLoss, exponentials ? Backend::kSm90 : Backend::kPortable, kFastest);
    if (exponentials) kernel.in_evaluation = Backend::kPortable;
  }

  // Tokens of a sequence that this rank holds.
  int64_t tokens_of_sequence() const { return r_.sequence / r_.context_ranks; }

  const Capabilities& on_;
  const ModelSizes& m_;
  const KernelRequest& r_;
  const int64_t rows_; // tokens of a micro-batch that this rank holds
  bool fused_layers_ = false;
  KernelPlan plan_;
};

} // namespace

std::string_view part_name(Part part) {
  constexpr std::array<std::string_view, kParts> kNames{
      "compressed",      "selected",        "sliding",         "selection",
      "dense",           "layers.norm",     "layers.rotation", "layers.compression",
      "layers.gate",     "layers.products", "layers.mlp",      "layers.loss",
      "layers.embedding"};
  return kNames.at(static_cast<size_t>(part));
}

std::string_view backend_name(Backend backend) {
  constexpr std::array<std::string_view, kBackends> kNames{"sm90", "portable", "cublaslt", "flash",
                                                           "sdpa", "aten",     "reference"};
  return kNames.at(static_cast<size_t>(backend));
}

const PlannedKernel* KernelPlan::find(Part part) const {
  for (const PlannedKernel& kernel : kernels)
    if (kernel.part == part) return &kernel;
  return nullptr;
}

bool KernelPlan::computes(Part part, Backend backend) const {
  const PlannedKernel* kernel = find(part);
  return kernel != nullptr && kernel->backend == backend;
}

bool KernelPlan::fused_attention() const {
  for (const Part part : {Part::kCompressed, Part::kSelected, Part::kSliding})
    if (computes(part, Backend::kSm90) || computes(part, Backend::kPortable)) return true;
  return false;
}

bool KernelPlan::compression_in_place() const {
  const PlannedKernel* kernel = find(Part::kCompression);
  return kernel != nullptr && kernel->variant == kInPlace;
}

KernelPlan plan_kernels(const Capabilities& capabilities, const ModelSizes& model,
                        const KernelRequest& request) {
  return Planner(capabilities, model, request).plan();
}

} // namespace nsa::choice
