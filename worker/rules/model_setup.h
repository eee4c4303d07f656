// From the run's spec to what the model is: a pure translation, no LibTorch.
#pragma once

#include "common/base/result.h"
#include "common/spec/run_spec.h"
#include "nsa_model/model/config.h"

#include <map>
#include <string>

namespace nsa::train {

// `toggles`: resolved, defaults filled in. What "auto" of the kernels' toggles means is chosen
// below, once it is known what the rank computes on.
Result<model::ModelConfig> model_config(const spec::RunSpec& spec,
                                        const std::map<std::string, std::string>& toggles);

// Toggle attention.kernels: "auto" takes the fused kernels where `why_not_fused` (of
// model::why_attention_cannot_be_fused() and ops::why_not_fused()) is empty, else ATen's. An error
// when "fused" is asked for and not served.
Result<model::Kernels> choose_attention_kernels(const std::map<std::string, std::string>& toggles,
                                                const model::ModelConfig& config,
                                                const std::string& why_not_fused);

// "auto" of attention.dense takes our kernels for sequences up to this many tokens, cuDNN for
// longer ones: a step with them is 1.3 to 3.8 % faster than with cuDNN at 1,024 to 8,192 tokens on
// an H200, with six heads a group (docs/lab: dense-attention). Other counts
// of heads are served, and have not been timed.
inline constexpr int64_t kFusedDenseTokens = 8192;
inline constexpr int64_t kFusedDenseHeads = 6;

// Toggle attention.dense, which `config` holds as it was asked for. "auto" takes our kernels where
// `why_not_fused` (of model::why_dense_cannot_be_fused() and ops::why_not_fused_causal()) is empty,
// attention.kernels is not "aten", documents are not packed (FlashAttention takes all at once) and
// a group has kFusedDenseHeads heads and the sequence is no longer than kFusedDenseTokens, or the
// run is deterministic, which cuDNN is not;
// with attention.kernels = "fused" wherever they serve. An error when "fused" is asked for and not
// served. Without a dense model: as asked for.
Result<model::DenseBackend> choose_dense_backend(const std::map<std::string, std::string>& toggles,
                                                 const model::ModelConfig& config,
                                                 const spec::RunSpec& spec,
                                                 const std::string& why_not_fused);

// Toggle layers.kernels for a rank that computes on a GPU or not, in BF16 or not: true where the
// kernels around attention run. An error when "fused" is asked for and not served.
Result<bool> choose_fused_layers(const std::map<std::string, std::string>& toggles,
                                 const model::ModelConfig& config, bool gpu, bool bf16);

// Toggle layers.embedding_gradient in a micro-batch of `rows` tokens, with config.fused_layers
// chosen: true where both gradients are put together in one pass. An error when "joined" is asked
// for and not served.
Result<bool> choose_joined_embedding(const std::map<std::string, std::string>& toggles,
                                     const model::ModelConfig& config, int64_t rows);

// "auto" of cuda.graphs records micro-batches of fewer tokens than this: with more the device is
// busy longer than the host takes to launch. On an H200 a step of 4,096 tokens gains 15 to 19 %, of
// 16,384 tokens 0.5 to 1.7 %, of 32,768 nothing that is sure (docs/lab: cuda-graphs).
inline constexpr int64_t kGraphsBelowTokens = 32768;

// Toggle cuda.graphs. `device_cannot`: why the device records none
// (runtime::Runtime::why_no_graphs()); empty where it does. An error when "on" is asked for and not
// served.
struct GraphChoice {
  bool on = false;     // steps are recorded as graphs
  std::string why_not; // where "auto" leaves it
};
Result<GraphChoice> choose_graphs(const std::map<std::string, std::string>& toggles,
                                  const spec::RunSpec& spec, const std::string& device_cannot);

} // namespace nsa::train
