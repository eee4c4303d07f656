// Which kernels compute a model on a rank, and why not others, made of the conditions that the
// operations ask themselves (nsa_model/choice/serves.h). Pure, no LibTorch; any thread.
#pragma once

#include "nsa_model/model/config.h"

#include <map>
#include <string>
#include <string_view>

namespace nsa::model {

// Why the attention kernels do not serve a model on such a rank, as far as the configuration tells:
// what the GPU and the sizes say besides is ops::why_not_fused(). Empty where nothing is against
// them.
std::string_view why_attention_cannot_be_fused(const ModelConfig& config, bool gpu, bool bf16);

// The same of the dense twin's own kernels (DenseBackend::kFused), and ops::why_not_fused_causal().
std::string_view why_dense_cannot_be_fused(const ModelConfig& config, bool gpu, bool bf16);

// Why the tied embedding's gradient is not put together in one pass
// (ModelConfig::joined_embedding_gradient) in a micro-batch of `rows` tokens; empty where it is
// served. With config.fused_layers as it will be.
std::string_view why_embedding_cannot_be_joined(const ModelConfig& config, int64_t rows);

// What a rank computes on, and how much at a time.
struct Place {
  bool gpu = false, bf16 = false;
  int compute_capability = 0; // 10 * major + minor; 0 on a CPU
  int64_t sequence = 0;       // tokens of a sequence
  int64_t rows = 0;           // tokens of a micro-batch
  bool documents = false;     // attention restarts at each
};

// Whether FlashAttention can compute dense attention over all packed documents at once: in BF16
// from compute capability 8.0, unless another backend was requested. A backend that is called for
// each document does otherwise.
bool flash_serves_documents(const ModelConfig& config, const Place& place);

// Part -> what computes it, and behind it in brackets why nothing faster does: each branch
// ("fused hopper", "aten regrouped", "aten chunked (why)"), or "dense"; "layers", and where they
// are fused "layers.norm" and so on, "layers.embedding" being "joined" or "separate".
// `attention_detail`: what serves fused attention ("hopper"), or what computes dense attention
// ("aten cudnn", "fused hopper").
std::map<std::string, std::string> kernels_in_effect(const ModelConfig& config, const Place& place,
                                                     const std::string& attention_detail);

} // namespace nsa::model
