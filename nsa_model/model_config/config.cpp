#include "nsa_model/model_config/config.h"

#include <utility>

namespace nsa::model {

namespace {

Status require(bool holds, std::string what, std::string next) {
  if (holds) return {};
  return fail(ErrorCode::kInvalidArgument, std::move(what), std::move(next));
}

Status validate_nsa(const NsaConfig& nsa) {
  NSA_TRY(require(nsa.compression_stride >= 1, "nsa.compression_stride must be at least 1",
                  "the paper uses 16"));
  NSA_TRY(require(nsa.compression_block >= nsa.compression_stride &&
                      nsa.compression_block % nsa.compression_stride == 0,
                  "nsa.compression_block must be a multiple of nsa.compression_stride",
                  "Eq. 9 counts shared strides"));
  NSA_TRY(require(nsa.selection_block >= nsa.compression_stride &&
                      nsa.selection_block % nsa.compression_stride == 0,
                  "nsa.selection_block must be a multiple of nsa.compression_stride",
                  "Eq. 9 counts shared strides"));
  NSA_TRY(require(nsa.selected_blocks >= 3, "nsa.selected_blocks must be at least 3",
                  "the first block and the two local ones are always selected"));
  NSA_TRY(require(nsa.window >= 1, "nsa.window must be at least 1", "it counts the token itself"));
  NSA_TRY(require(nsa.gate_temperature > 0, "nsa.gate_temperature must be positive", "1 is usual"));
  NSA_TRY(require(branch_count(nsa) > 0, "nsa.branches is empty", "name at least one branch"));
  NSA_TRY(require(!nsa.selected || nsa.compressed,
                  "nsa.branches: selected without compressed: the compressed keys score the blocks "
                  "and are trained by the compressed output alone",
                  "add compressed, or take selected out"));
  return {};
}

} // namespace

bool has_branch(const NsaConfig& nsa, Branch branch) {
  switch (branch) {
  case Branch::kCompressed:
    return nsa.compressed;
  case Branch::kSelected:
    return nsa.selected;
  case Branch::kSliding:
    return nsa.sliding;
  }
  return false;
}

int branch_count(const NsaConfig& nsa) {
  return int(nsa.compressed) + int(nsa.selected) + int(nsa.sliding);
}

Status validate(const ModelConfig& config) {
  NSA_TRY(require(config.vocabulary >= 2, "model.vocabulary must be at least 2", ""));
  NSA_TRY(require(config.dimension >= 1 && config.layers >= 1 && config.mlp_ratio >= 1,
                  "model.dimension, model.layers and model.mlp_ratio must be at least 1", ""));
  NSA_TRY(require(config.kv_groups >= 1 && config.heads >= config.kv_groups &&
                      config.heads % config.kv_groups == 0,
                  "model.heads must be a multiple of model.kv_groups",
                  "each group of query heads shares one key/value head"));
  NSA_TRY(require(config.head_dimension >= 2 && config.head_dimension % 2 == 0,
                  "model.head_dimension must be even", "RoPE rotates pairs"));
  NSA_TRY(require(config.rope_base > 1, "model.rope_base must be above 1", "10000 is usual"));
  NSA_TRY(require(config.norm_epsilon > 0, "model.norm_epsilon must be positive", "1e-6 is usual"));
  if (config.attention == Attention::kNsa) NSA_TRY(validate_nsa(config.nsa));
  return {};
}

int64_t gate_hidden(const ModelConfig& config) {
  // The predecessor's group gate uses half of the head dimension. The paper does not specify the
  // width.
  return config.nsa.gate == Gate::kGroupSoftmax ? config.head_dimension / 2 : config.head_dimension;
}

int64_t compression_hidden(const ModelConfig& config) {
  return 2 * config.head_dimension;
}

int64_t parameter_count(const ModelConfig& config) {
  const int64_t query_width = config.heads * config.head_dimension;
  const int64_t kv_width = config.kv_groups * config.head_dimension;
  int64_t attention = 2 * config.dimension * query_width; // query and output projections
  if (config.attention == Attention::kDense) {
    attention += 2 * config.dimension * kv_width;
  } else {
    const NsaConfig& nsa = config.nsa;
    attention += branch_count(nsa) * 2 * config.dimension * kv_width;
    const int64_t hidden = gate_hidden(config);
    if (nsa.gate == Gate::kHeadSigmoid) {
      attention += config.dimension * hidden + hidden * config.heads * branch_count(nsa);
    } else if (branch_count(nsa) > 1) { // the softmax over one branch is always 1
      attention += config.head_dimension * hidden + hidden * branch_count(nsa);
    }
    if (nsa.compressed && nsa.compression == Compression::kMlp) {
      const int64_t block = nsa.compression_block * config.head_dimension;
      const int64_t width = compression_hidden(config);
      attention += 2 * (block + block * width + width * config.head_dimension);
    }
  }
  const int64_t mlp = 2 * config.dimension * config.mlp_ratio * config.dimension;
  const int64_t norms = 2 * config.dimension;
  return config.vocabulary * config.dimension + config.layers * (attention + mlp + norms) +
         config.dimension;
}

} // namespace nsa::model
