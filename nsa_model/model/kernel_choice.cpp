#include "nsa_model/model/kernel_choice.h"

#include "nsa_model/choice/serves.h"

namespace nsa::model {

namespace {

std::string composed(const std::string& why) {
  return "aten (" + why + ")";
}

std::string gate_kernel(const ModelConfig& config) {
  if (config.nsa.gate != Gate::kGroupSoftmax) return composed("the kernel is of the group softmax");
  if (!serves::group_gate(config.head_dimension, gate_hidden(config), branch_count(config.nsa)))
    return composed("the kernel serves three branches and a model.head_dimension of 64");
  return "fused";
}

std::string mlp_kernel(const ModelConfig& config, const Place& place) {
  const int major = place.compute_capability / 10;
  const int64_t hidden = config.mlp_ratio * config.dimension;
  if (serves::silu_product(major, place.rows, hidden, config.dimension)) return "fused";
  if (major != 9) return composed("the products with SiLU need compute capability 9");
  if (place.rows % 256 != 0)
    return composed("the products with SiLU serve multiples of 256 tokens a micro-batch");
  return composed("the products with SiLU serve multiples of 64 columns in and 256 within");
}

// All products take matrices of these sizes.
std::string product_kernel(const ModelConfig& config, const Place& place) {
  const int64_t sets = config.attention == Attention::kDense ? 2 : 2 * branch_count(config.nsa);
  const int64_t query = config.heads * config.head_dimension,
                joined = query + sets * config.kv_groups * config.head_dimension;
  for (const int64_t columns : {query, joined, config.mlp_ratio * config.dimension})
    if (!serves::matrix(place.rows, columns) || !serves::matrix(place.rows, config.dimension))
      return composed("a size of a matrix is no multiple of 8");
  return "fused";
}

std::string embedding_kernel(const ModelConfig& config, const Place& place) {
  if (config.joined_embedding_gradient) return "joined";
  const std::string_view why = why_embedding_cannot_be_joined(config, place.rows);
  return why.empty() ? "separate" : "separate (" + std::string(why) + ")";
}

void add_layers(const ModelConfig& config, const Place& place,
                std::map<std::string, std::string>& kernels) {
  if (!config.fused_layers) {
    const std::string_view why = why_layers_cannot_be_fused(config, place.gpu, place.bf16);
    kernels["layers"] = why.empty() ? "aten" : composed(std::string(why));
    return;
  }
  // What why_layers_cannot_be_fused() passes has norm, rotation and loss.
  kernels["layers"] = kernels["layers.norm"] = kernels["layers.rotation"] = kernels["layers.loss"] =
      "fused";
  kernels["layers.products"] = product_kernel(config, place);
  kernels["layers.mlp"] = mlp_kernel(config, place);
  kernels["layers.embedding"] = embedding_kernel(config, place);
  if (config.attention != Attention::kNsa) return;
  if (branch_count(config.nsa) > 1) kernels["layers.gate"] = gate_kernel(config);
  if (config.nsa.compressed && config.nsa.compression == Compression::kMlp)
    kernels["layers.compression"] = composed("learned compression has no kernel");
}

std::string_view why_not_on(bool gpu, bool bf16) {
  if (!gpu) return "they are GPU kernels, and this rank computes on a CPU";
  if (!bf16) return "they compute in BF16, and this rank computes in FP32";
  return "";
}

} // namespace

std::string_view why_attention_cannot_be_fused(const ModelConfig& config, bool gpu, bool bf16) {
  if (config.attention == Attention::kDense) return "they are of NSA, and this model is dense";
  return why_not_on(gpu, bf16);
}

std::string_view why_dense_cannot_be_fused(const ModelConfig& config, bool gpu, bool bf16) {
  if (config.attention != Attention::kDense) return "they are of dense attention";
  return why_not_on(gpu, bf16);
}

std::string_view why_embedding_cannot_be_joined(const ModelConfig& config, int64_t rows) {
  if (!config.fused_layers) return "it is one of the kernels around attention, and they do not run";
  if (!serves::embedding_gradient(rows, config.vocabulary, config.dimension))
    return "it serves a multiple of 256 columns up to 1,024 and 65,536 tokens a micro-batch";
  return "";
}

bool flash_serves_documents(const ModelConfig& config, const Place& place) {
  return place.gpu && place.bf16 && place.compute_capability >= 80 &&
         config.head_dimension % 8 == 0 && config.head_dimension <= 256 &&
         (config.dense_backend == DenseBackend::kAuto ||
          config.dense_backend == DenseBackend::kFlash);
}

std::map<std::string, std::string> kernels_in_effect(const ModelConfig& config, const Place& place,
                                                     const std::string& attention_detail) {
  std::map<std::string, std::string> kernels;
  add_layers(config, place, kernels);
  if (config.attention == Attention::kDense) {
    kernels["dense"] = attention_detail;
    return kernels;
  }
  for (const Branch branch : {Branch::kCompressed, Branch::kSelected, Branch::kSliding}) {
    if (!has_branch(config.nsa, branch)) continue;
    std::string& kernel = kernels[std::string(branch_name(branch))];
    kernel = kernels_name(config.kernels);
    if (config.kernels == Kernels::kFused) kernel += " " + attention_detail;
    if (config.kernels != Kernels::kAten) continue;
    const std::string_view why =
        serves::why_not_regrouped({.gpu = place.gpu,
                                   .narrow = place.bf16,
                                   .head_dimension = config.head_dimension,
                                   .length = place.sequence,
                                   .compressed = branch == Branch::kCompressed,
                                   .compression_block = config.nsa.compression_block,
                                   .compression_stride = config.nsa.compression_stride});
    if (!why.empty())
      kernel += " chunked (" + std::string(why) + ")";
    else if (place.documents && branch == Branch::kCompressed)
      kernel += " regrouped (chunked in documents of other lengths than nsa.compression_stride "
                "divides)";
    else
      kernel += " regrouped";
  }
  return kernels;
}

} // namespace nsa::model
