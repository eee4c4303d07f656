#include "nsa_model/model/decode.h"

#include "nsa_model/model/language_model_impl.h"

#include <c10/core/GradMode.h>

namespace nsa::model {

using at::Tensor;

namespace {

// Appends along the tokens; an undefined cache is empty.
void append(Tensor& cache, const Tensor& more) {
  cache = cache.defined() ? at::cat({cache, more}, 1) : more;
}

} // namespace

DecodeState LanguageModel::start_decoding(int64_t batch, int64_t capacity) const {
  DecodeState state;
  state.batch_ = batch;
  state.capacity_ = capacity;
  state.layers_.resize(impl_->config.layers);
  return state;
}

Tensor LanguageModel::decode(DecodeState& state, const Tensor& tokens) {
  c10::NoGradGuard no_grad;
  TORCH_CHECK(tokens.dim() == 2 && tokens.size(0) == state.batch_ && tokens.size(1) > 0,
              "decode: tokens must be [", state.batch_, ", n], got ", tokens.sizes());
  TORCH_CHECK(state.length_ + tokens.size(1) <= state.capacity_, "decode: ", tokens.size(1),
              " more tokens do not fit a capacity of ", state.capacity_, ", ", state.length_,
              " used");
  const int64_t first = state.length_;
  SequenceContext context;
  std::tie(context.cos, context.sin) = impl_->tables(
      at::arange(first, first + tokens.size(1), at::TensorOptions().dtype(at::kLong)));
  Tensor x = at::embedding(impl_->embedding, tokens);
  for (int64_t layer = 0; layer < impl_->config.layers; ++layer) {
    const Impl::Block& block = impl_->blocks[layer];
    x = x + impl_->decode_attention(block.attention, state.layers_[layer],
                                    impl_->norm(x, block.attention_norm), first, context);
    x = x + impl_->mlp(block, impl_->norm(x, block.mlp_norm));
  }
  state.length_ += tokens.size(1);
  return at::linear(impl_->norm(x, impl_->final_norm), impl_->embedding)
      .to(ops::compute_type(impl_->dtype));
}

Tensor LanguageModel::Impl::decode_attention(const AttentionLayer& layer, LayerCache& cache,
                                             const Tensor& normed, int64_t first,
                                             const SequenceContext& context) {
  const Heads heads = layer.project(normed, context);
  check(heads);
  const ops::Settings settings = layer.settings();
  const ops::Sizes& sizes = settings.sizes;
  const int64_t total = first + normed.size(1);
  const double scale = 1.0 / std::sqrt(double(config.head_dimension));
  std::array<std::optional<Tensor>, 3> branch_o;
  const auto run = [&](int branch, const Tensor& indices, int64_t key_offset,
                       const Tensor& selection) {
    const Tensor o = at::empty(heads.q.sizes(), heads.q.options());
    ops::branch_forward({ops::Branch(branch),
                         heads.q,
                         cache.k[branch],
                         cache.v[branch],
                         indices,
                         sizes,
                         scale,
                         {first, key_offset}},
                        {o, Tensor(), Tensor(), selection});
    branch_o[branch] = o;
  };

  if (config.attention == Attention::kDense) {
    append(cache.k[0], *heads.k[0]);
    append(cache.v[0], *heads.v[0]);
    const Tensor o = at::empty(heads.q.sizes(), heads.q.options());
    ops::Sizes everything;
    everything.window = total; // a window over all keys is causal attention
    ops::branch_forward({ops::Branch::kSliding,
                         heads.q,
                         cache.k[0],
                         cache.v[0],
                         Tensor(),
                         everything,
                         scale,
                         {first, 0}},
                        {o, Tensor(), Tensor(), Tensor()});
    return layer.output(o);
  }
  Tensor indices;
  if (heads.k[0]) {
    const int64_t before = reference::compressed_count(first, sizes);
    const int64_t fresh = reference::compressed_count(total, sizes) - before;
    append(cache.tail_k, *heads.k[0]);
    append(cache.tail_v, *heads.v[0]);
    SequenceContext blocks;
    if (config.nsa.compression == Compression::kMlp && fresh > 0)
      std::tie(blocks.compressed_cos, blocks.compressed_sin) =
          tables(at::arange(before, before + fresh, at::TensorOptions().dtype(at::kLong))
                     .mul_(sizes.compression_stride));
    append(cache.k[0], layer.compress(cache.tail_k, true, blocks));
    append(cache.v[0], layer.compress(cache.tail_v, false, blocks));
    const int64_t used = fresh * sizes.compression_stride;
    cache.tail_k = cache.tail_k.narrow(1, used, cache.tail_k.size(1) - used);
    cache.tail_v = cache.tail_v.narrow(1, used, cache.tail_v.size(1) - used);
    if (heads.k[1] && total > sizes.selected_blocks * sizes.selection_block)
      indices = at::full({normed.size(0), normed.size(1), config.kv_groups, sizes.selected_blocks},
                         -1, normed.options().dtype(at::kInt));
    run(0, Tensor(), 0, indices);
  }
  if (heads.k[1]) {
    append(cache.k[1], *heads.k[1]);
    append(cache.v[1], *heads.v[1]);
    run(1, indices, 0, Tensor());
  }
  if (heads.k[2]) {
    append(cache.k[2], *heads.k[2]);
    append(cache.v[2], *heads.v[2]);
    const int64_t held = cache.k[2].size(1);
    run(2, Tensor(), total - held, Tensor());
    const int64_t kept = std::min(held, sizes.window - 1);
    cache.k[2] = cache.k[2].narrow(1, held - kept, kept);
    cache.v[2] = cache.v[2].narrow(1, held - kept, kept);
  }
  return layer.output(ops::combine(heads.gates, branch_o));
}

} // namespace nsa::model
