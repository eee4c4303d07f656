// ModelConfig: every size and choice that fixes the model's parameters and its arithmetic. Plain
// values, no LibTorch, so that whoever plans a run can count parameters without loading it.
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

// Native Sparse Attention (arXiv 2502.11089), section 3 there; sizes in tokens.
struct NsaConfig {
  int64_t compression_block = 32;  // l; a multiple of the stride
  int64_t compression_stride = 16; // d
  int64_t selection_block = 64;    // l'; a multiple of the stride
  int64_t selected_blocks = 16;    // n, the three forced ones included
  int64_t window = 512;            // w: keys seen, the token itself included
  Compression compression = Compression::kAverage;
  Gate gate = Gate::kGroupSoftmax;
  double gate_temperature = 1.0; // of the group softmax
  // Branches switched off for an ablation have no parameters. `selected` needs `compressed`, whose
  // keys score the blocks and learn to only through the compressed output.
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
  NsaConfig nsa; // not looked at when attention is dense

  // How it is computed; these change no parameter.
  Kernels kernels = Kernels::kAten;
  DenseAttention dense_backend = DenseAttention::kAuto; // where attention is dense
  // What lies around attention as single operations (nsa_model/ops/layer.h), which are single
  // kernels for BF16 on CUDA; false: as ATen operations, to compare with.
  bool fused_layers = false;
  // With fused_layers (toggle layers.embedding_gradient): both gradients of the tied embedding, the
  // lookup's and the output layer's, in one pass (nsa_model/ops/embedding.h); false: two gradients,
  // which autograd adds.
  bool joined_embedding_gradient = false;
  // With fused_layers: a learned phi reads tokens in place (nsa_model/ops/learned_compression.h)
  // where there are no documents; false: LibTorch's products of copied blocks.
  bool compression_in_place = false;
  bool activation_recompute = false; // keep each block's input only, compute it again in backward
  bool recompute_attention = true;   // with it: false keeps the attention's results as well
  bool check_dtypes = false;         // every module boundary checks dtype and device
  bool gate_statistics = false;      // accumulate the mean gate of each branch and layer
  bool selection_statistics = false; // sample the selected blocks of each layer, while watched
};

bool has_branch(const NsaConfig& nsa, Branch branch);
int branch_count(const NsaConfig& nsa);

// Sizes that cannot be built, or that the equations exclude, with the key's name in the error.
Status validate(const ModelConfig& config);

// Number of scalars in all parameters; the embedding, tied to the output layer, counts once.
int64_t parameter_count(const ModelConfig& config);

// Widths that follow from the others.
int64_t gate_hidden(const ModelConfig& config);        // of the gate's MLP
int64_t compression_hidden(const ModelConfig& config); // of phi's MLP

} // namespace nsa::model
