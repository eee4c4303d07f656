#include "nsa_model/model/decode.h"

#include "nsa_model/choice/serves.h"
#include "nsa_model/model/language_model_impl.h"
#include "nsa_model/ops/decode.h"
#include "nsa_model/ops/fused_support.h"

#include <c10/core/GradMode.h>

namespace nsa::model {

using at::Tensor;

namespace {

// Copies `fresh` [B, n, G, D] into a cache, starting at row `first`.
void store(const Tensor& cache, int64_t first, const Tensor& fresh) {
  cache.narrow(2, first, fresh.size(1)).copy_(fresh.transpose(1, 2));
}

// Stores position p in row p % rows. `first` is the position of the first token.
void store_in_ring(const Tensor& cache, int64_t first, const Tensor& fresh) {
  const int64_t rows = cache.size(2), tokens = fresh.size(1);
  for (int64_t begin = std::max<int64_t>(0, tokens - rows); begin < tokens;) {
    const int64_t row = (first + begin) % rows;
    const int64_t count = std::min(tokens - begin, rows - row);
    store(cache, row, fresh.narrow(1, begin, count));
    begin += count;
  }
}

// Returns the first `count` rows as [B, count, G, D].
Tensor rows_of(const Tensor& cache, int64_t count) {
  return cache.narrow(2, 0, count).transpose(1, 2);
}

// Returns positions [end - count, end) of a ring followed by `fresh`, as [B, count + n, G, D].
Tensor ring_and(const Tensor& cache, int64_t end, int64_t count, const Tensor& fresh) {
  const int64_t rows = cache.size(2), oldest = (end - count) % rows;
  const int64_t behind = std::min(count, rows - oldest);
  return at::cat(
      {cache.narrow(2, oldest, behind).transpose(1, 2), rows_of(cache, count - behind), fresh}, 1);
}

ops::OptionalTensor if_defined(const Tensor& x) {
  return x.defined() ? ops::OptionalTensor(x) : std::nullopt;
}

// Whether the decoding kernels compute steps of one token. The model's kernels are "fused" only if
// libnsa_ops_cuda.so is loaded and supports the GPU.
bool serves_decoding(const ModelConfig& config, at::Device device, at::ScalarType dtype,
                     int64_t batch, int64_t capacity) {
  const NsaConfig& nsa = config.nsa;
  const serves::NsaSizes sizes{nsa.compression_block, nsa.compression_stride, nsa.selection_block,
                               nsa.selected_blocks, nsa.window};
  return config.kernels == Kernels::kFused && config.attention == Attention::kNsa &&
         device.is_cuda() && dtype == at::kBFloat16 && nsa.compressed && nsa.selected &&
         nsa.sliding && sizes == serves::NsaSizes{} &&
         serves::decode(batch, config.heads, config.kv_groups, config.head_dimension, capacity);
}

} // namespace

DecodeState LanguageModel::start_decoding(int64_t batch, int64_t capacity) const {
  DecodeState state;
  state.batch_ = batch;
  state.capacity_ = capacity;
  state.fused_ = serves_decoding(impl_->config, impl_->device, impl_->dtype, batch, capacity);
  state.lengths_ = at::zeros({batch}, at::TensorOptions().dtype(at::kInt).device(
                                          state.fused_ ? impl_->device : at::Device(at::kCPU)));
  state.layers_.resize(impl_->config.layers);
  const ModelConfig& config = impl_->config;
  const NsaConfig& nsa = config.nsa;
  const auto options = at::TensorOptions().device(impl_->device).dtype(impl_->dtype);
  const auto take = [&](LayerCache& cache, int branch, int64_t rows) {
    for (auto* side : {&cache.k, &cache.v})
      (*side)[branch] = at::empty(
          {batch, config.kv_groups, std::max<int64_t>(rows, 1), config.head_dimension}, options);
  };
  for (LayerCache& cache : state.layers_) {
    if (config.attention == Attention::kDense) {
      take(cache, 0, capacity);
      continue;
    }
    const ops::Sizes sizes{nsa.compression_block, nsa.compression_stride};
    if (nsa.compressed) take(cache, 0, reference::compressed_count(capacity, sizes));
    if (nsa.selected) take(cache, 1, capacity);
    if (nsa.sliding) take(cache, 2, std::min(nsa.window, capacity));
  }
  return state;
}

bool LanguageModel::prefills_at_once(int64_t batch, int64_t tokens) const {
  // cuDNN, FlashAttention and our kernels need memory that grows linearly with the tokens.
  const bool linear =
      impl_->config.attention == Attention::kDense || impl_->config.kernels == Kernels::kFused;
  return impl_->device.is_cuda() && impl_->dtype == at::kBFloat16 && linear &&
         impl_->why_not_first_piece(batch, tokens).empty();
}

// The kernels were chosen for the sequences of a run; a prompt may have another length.
std::string LanguageModel::Impl::why_not_first_piece(int64_t batch, int64_t tokens) const {
  if (config.attention == Attention::kDense)
    return config.dense_backend == DenseAttention::kFused
               ? ops::why_not_fused_causal(device, batch, config.heads, config.kv_groups,
                                           config.head_dimension, tokens)
               : "";
  if (config.kernels == Kernels::kReference) return "the oracle is too slow";
  if (config.kernels == Kernels::kAten) return "";
  return ops::why_not_fused(device, batch, config.heads, config.kv_groups, config.head_dimension,
                            tokens, blocks.front().attention.settings().sizes);
}

Tensor LanguageModel::decode(DecodeState& state, const Tensor& tokens, Logits which) {
  c10::NoGradGuard no_grad;
  TORCH_CHECK(tokens.dim() == 2 && tokens.size(0) == state.batch_ && tokens.size(1) > 0,
              "decode: tokens must be [", state.batch_, ", n], got ", tokens.sizes());
  TORCH_CHECK(state.length_ + tokens.size(1) <= state.capacity_, "decode: ", tokens.size(1),
              " more tokens do not fit a capacity of ", state.capacity_, ", ", state.length_,
              " used");
  const int64_t first = state.length_;
  const bool first_piece = first == 0 && tokens.size(1) > 1 &&
                           impl_->why_not_first_piece(state.batch_, tokens.size(1)).empty();
  SequenceContext context;
  if (first_piece)
    context = impl_->context(tokens.size(1), std::nullopt, 0, nullptr);
  else
    std::tie(context.cos, context.sin) = impl_->tables(
        at::arange(first, first + tokens.size(1), at::TensorOptions().dtype(at::kLong)));
  if (tokens.size(1) == 1) state.lengths_.fill_(first + 1);
  Tensor x = at::embedding(impl_->embedding, tokens);
  for (int64_t layer = 0; layer < impl_->config.layers; ++layer) {
    const Impl::Block& block = impl_->blocks[layer];
    const Tensor normed = impl_->norm(x, block.attention_norm);
    LayerCache& cache = state.layers_[layer];
    x = x + (first_piece
                 ? impl_->attend_first_piece(block.attention, cache, normed, context)
                 : impl_->decode_attention(block.attention, cache, normed, first, context, state));
    x = x + impl_->mlp(block, impl_->norm(x, block.mlp_norm));
  }
  state.length_ += tokens.size(1);
  if (which == Logits::kLast) x = x.narrow(1, x.size(1) - 1, 1).contiguous();
  return at::linear(impl_->norm(x, impl_->final_norm), impl_->embedding)
      .to(ops::compute_type(impl_->dtype));
}

Tensor LanguageModel::Impl::attend_first_piece(const AttentionLayer& layer, LayerCache& cache,
                                               const Tensor& normed,
                                               const SequenceContext& context) {
  const Heads heads = layer.project(normed, context);
  check(heads);
  if (config.attention == Attention::kDense) {
    store(cache.k[0], 0, *heads.k[0]);
    store(cache.v[0], 0, *heads.v[0]);
    return layer.attend(heads, context);
  }
  if (heads.k[0]) add_compressed(layer, cache, heads, 0);
  if (heads.k[1]) {
    store(cache.k[1], 0, *heads.k[1]);
    store(cache.v[1], 0, *heads.v[1]);
  }
  if (heads.k[2]) {
    store_in_ring(cache.k[2], 0, *heads.k[2]);
    store_in_ring(cache.v[2], 0, *heads.v[2]);
  }
  return layer.attend(heads, context);
}

Tensor LanguageModel::Impl::decode_attention(const AttentionLayer& layer, LayerCache& cache,
                                             const Tensor& normed, int64_t first,
                                             const SequenceContext& context,
                                             const DecodeState& state) {
  const Heads heads = layer.project(normed, context);
  check(heads);
  const int64_t fresh = normed.size(1), total = first + fresh;
  const double scale = 1.0 / std::sqrt(double(config.head_dimension));
  const auto attend = [&](ops::Branch branch, const Tensor& k, const Tensor& v,
                          const Tensor& indices, const ops::Sizes& sizes, const Tensor& selection) {
    const Tensor o = at::empty(heads.q.sizes(), heads.q.options());
    const int64_t first_key = branch == ops::Branch::kSliding ? total - k.size(1) : 0;
    ops::branch_forward({branch, heads.q, k, v, indices, sizes, scale, {first, first_key}},
                        {o, Tensor(), Tensor(), selection});
    return o;
  };

  if (config.attention == Attention::kDense) {
    store(cache.k[0], first, *heads.k[0]);
    store(cache.v[0], first, *heads.v[0]);
    ops::Sizes everything;
    everything.window = total; // A window over all keys is causal attention.
    return layer.output(attend(ops::Branch::kSliding, rows_of(cache.k[0], total),
                               rows_of(cache.v[0], total), Tensor(), everything, Tensor()));
  }
  const ops::Settings settings = layer.settings();
  const ops::Sizes& sizes = settings.sizes;
  if (heads.k[0]) add_compressed(layer, cache, heads, first);
  if (heads.k[1]) {
    store(cache.k[1], first, *heads.k[1]);
    store(cache.v[1], first, *heads.v[1]);
  }
  if (fresh == 1) {
    if (heads.k[2]) {
      store_in_ring(cache.k[2], first, *heads.k[2]);
      store_in_ring(cache.v[2], first, *heads.v[2]);
    }
    ops::DecodeInputs in{heads.q, {}, {}, heads.gates, state.lengths_};
    for (int branch = 0; branch < kBranchCount; ++branch) {
      in.k[branch] = if_defined(cache.k[branch]);
      in.v[branch] = if_defined(cache.v[branch]);
    }
    const ops::Kernels kernels = state.fused_ ? ops::Kernels::kFused : ops::Kernels::kAten;
    return layer.output(ops::decode_attention(in, settings, kernels));
  }

  std::array<std::optional<Tensor>, 3> branch_o;
  Tensor indices;
  if (heads.k[0] && heads.k[1] && total > sizes.selected_blocks * sizes.selection_block)
    indices = at::full({normed.size(0), fresh, config.kv_groups, sizes.selected_blocks}, -1,
                       normed.options().dtype(at::kInt));
  if (heads.k[0]) {
    const int64_t count = reference::compressed_count(total, sizes);
    branch_o[0] = attend(ops::Branch::kCompressed, rows_of(cache.k[0], count),
                         rows_of(cache.v[0], count), Tensor(), sizes, indices);
  }
  if (heads.k[1])
    branch_o[1] = attend(ops::Branch::kSelected, rows_of(cache.k[1], total),
                         rows_of(cache.v[1], total), indices, sizes, Tensor());
  if (heads.k[2]) {
    const int64_t held = std::min(first, sizes.window - 1);
    branch_o[2] = attend(ops::Branch::kSliding, ring_and(cache.k[2], first, held, *heads.k[2]),
                         ring_and(cache.v[2], first, held, *heads.v[2]), Tensor(), sizes, Tensor());
    store_in_ring(cache.k[2], first, *heads.k[2]);
    store_in_ring(cache.v[2], first, *heads.v[2]);
  }
  return layer.output(ops::combine(heads.gates, branch_o));
}

void LanguageModel::Impl::add_compressed(const AttentionLayer& layer, LayerCache& cache,
                                         const Heads& heads, int64_t first) {
  const ops::Sizes sizes = layer.settings().sizes;
  const auto append = [](Tensor& tail, const Tensor& more) {
    tail = tail.defined() ? at::cat({tail, more}, 1) : more;
  };
  append(cache.tail_k, *heads.k[0]);
  append(cache.tail_v, *heads.v[0]);
  const int64_t before = reference::compressed_count(first, sizes);
  const int64_t whole = reference::compressed_count(first + heads.q.size(1), sizes) - before;
  if (whole == 0) return;
  SequenceContext blocks;
  if (config.nsa.compression == Compression::kMlp)
    std::tie(blocks.compressed_cos, blocks.compressed_sin) =
        tables(at::arange(before, before + whole, at::TensorOptions().dtype(at::kLong))
                   .mul_(sizes.compression_stride));
  store(cache.k[0], before, layer.compress(cache.tail_k, true, blocks));
  store(cache.v[0], before, layer.compress(cache.tail_v, false, blocks));
  const int64_t used = whole * sizes.compression_stride;
  cache.tail_k = cache.tail_k.narrow(1, used, cache.tail_k.size(1) - used);
  cache.tail_v = cache.tail_v.narrow(1, used, cache.tail_v.size(1) - used);
}

} // namespace nsa::model
