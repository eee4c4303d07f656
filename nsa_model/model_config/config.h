// ModelConfig: every size and choice that determines the model's parameters and its arithmetic. It
// consists of plain values without LibTorch, so planning code can count parameters without loading
// it.
//
// Thread-safe: pure functions of their arguments.
#pragma once

#include "common/base/choice.h"
#include "common/base/result.h"
#include "nsa_model/choice/attention_kernels.h"
#include "nsa_model/choice/model_words.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace nsa::model {

using choice::Attention;
using choice::Branch;
using choice::Compression;
using choice::DenseAttention; // toggle attention.dense
using choice::Gate;
using choice::kBranchCount;
using choice::Kernels; // toggle attention.kernels

// Native Sparse Attention (arXiv 2502.11089, section 3). Sizes are in tokens.
struct NsaConfig {
  int64_t compression_block = 32;  // l; a multiple of the stride
  int64_t compression_stride = 16; // d
  int64_t selection_block = 64;    // l'; a multiple of the stride
  int64_t selected_blocks = 16;    // n, including the three forced ones
  int64_t window = 512;            // w: visible keys, including the token itself
  Compression compression = Compression::kAverage;
  Gate gate = Gate::kGroupSoftmax;
  double gate_temperature = 1.0; // temperature of the group softmax
  // A branch that is switched off for an ablation has no parameters. `selected` needs `compressed`:
  // the compressed keys score the blocks, and they learn to do so only through the compressed
  // output.
  bool compressed = true, selected = true, sliding = true;
};

struct ModelConfig {
  Attention attention = Attention::kNsa;
  int64_t vocabulary = 50304;
  int64_t dimension = 768;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t kv_groups = 2;
  int64_t head_dimension = 64;
  int64_t mlp_ratio = 4;
  double rope_base = 10000.0;
  double norm_epsilon = 1e-6;
  NsaConfig nsa; // ignored if attention is dense

  // How attention is computed. These values change no parameter.
  Kernels kernels = Kernels::kAten;
  DenseAttention dense_backend = DenseAttention::kAuto; // used if attention is dense
  // The layers around attention run as single operations (nsa_model/ops/layer.h), which are single
  // kernels for BF16 on CUDA. If false, they are composed of ATen operations, for comparison.
  bool fused_layers = false;
  // With fused_layers (toggle layers.embedding_gradient): one pass computes both gradients of the
  // tied embedding, from the lookup and from the output layer (nsa_model/ops/embedding.h). If
  // false, autograd adds two gradients.
  bool joined_embedding_gradient = false;
  // With fused_layers: a learned phi reads tokens in place if there are no documents
  // (nsa_model/ops/learned_compression.h). If false, LibTorch multiplies copied blocks.
  bool compression_in_place = false;
  // keeps only the input of each block and computes the block again in the backward pass
  bool activation_recompute = false;
  bool recompute_attention = true;   // with it: if false, the attention's results are kept too
  bool check_dtypes = false;         // checks dtype and device at every module boundary
  bool gate_statistics = false;      // accumulates the mean gate of each branch and layer
  bool selection_statistics = false; // samples the selected blocks of each layer while watched
};

bool has_branch(const NsaConfig& nsa, Branch branch);
int branch_count(const NsaConfig& nsa);

// Rejects sizes that cannot be built or that the equations exclude. The error contains the key's
// name.
Status validate(const ModelConfig& config);

// Number of scalars in all parameters. The embedding is tied to the output layer and counts once.
int64_t parameter_count(const ModelConfig& config);

// Widths that follow from other sizes.
int64_t gate_hidden(const ModelConfig& config);        // hidden width of the gate's MLP
int64_t compression_hidden(const ModelConfig& config); // hidden width of phi's MLP

} // namespace nsa::model
