#include "nsa_model/model/language_model.h"

#include "nsa_model/model/cross_entropy.h"
#include "nsa_model/model/dense_backend.h"
#include "nsa_model/model/language_model_impl.h"
#include "nsa_model/ops/kernel_counts.h"
#include "nsa_model/ops/segments.h"
#include "nsa_model/ops/step_part.h"

#include <numeric>
#include <utility>

namespace nsa::model {

using at::Tensor;
using ops::PartScope;
using ops::StepPart;

LanguageModel::Impl::Impl(const ModelConfig& c, at::Device on, at::ScalarType type, uint64_t s,
                          Weights weights)
    : config(c), device(on), dtype(type), seed(s) {
  const Status valid = validate(config);
  TORCH_CHECK(valid, valid ? "" : valid.error().what);
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kDouble,
              "the model computes in FP32 or BF16 (FP64 for tests), not ", dtype);
  if (config.attention == Attention::kNsa)
    ops::require_kernels(config.kernels, device);
  else if (config.dense_backend == DenseAttention::kFused)
    ops::require_kernels(Kernels::kFused, device);
  else
    request_dense_backend(config.dense_backend);
  specs = parameter_specs(config);
  for (const ParameterSpec& spec : specs) {
    Tensor leaf = weights == Weights::kInitial
                      ? initial_values(spec, seed).to(dtype).to(device)
                      : at::empty(spec.shape, at::TensorOptions().dtype(dtype).device(device));
    leaf.set_requires_grad(true);
    by_name[spec.name] = leaf;
    parameters.push_back({spec.name, leaf, spec.weight_decay});
  }
  if (config.gate_statistics) {
    const auto fp32 = at::TensorOptions().dtype(at::kFloat).device(device);
    gate_sum = at::zeros({config.layers, kGateParts, kBranchCount}, fp32);
    gate_passes = at::zeros({}, fp32);
  }
  if (config.selection_statistics)
    selection_probe = std::make_unique<ops::SelectionProbe>(config.layers, device);
  embedding = by_name.at("embedding.weight");
  final_norm = by_name.at("final_norm.weight");
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string name = "blocks." + std::to_string(layer) + ".";
    const auto leaf = [&](const std::string& suffix) { return by_name.at(name + suffix); };
    blocks.push_back({leaf("attention_norm.weight"), leaf("mlp_norm.weight"),
                      leaf("mlp.fc1.weight"), leaf("mlp.fc2.weight"),
                      AttentionLayer(config, [&](const std::string& suffix) {
                        return leaf("attention." + suffix);
                      })});
  }
}

void LanguageModel::Impl::check(const Tensor& x, const char* where, bool wide) const {
  if (!config.check_dtypes) return;
  const at::ScalarType right = wide ? ops::compute_type(dtype) : dtype;
  TORCH_CHECK(x.scalar_type() == right && x.device().type() == device.type(),
              "dtype discipline: ", where, " is ", x.scalar_type(), " on ", x.device(),
              ", but should be ", right, " on ", device, ", since the model computes in ", dtype);
}

void LanguageModel::Impl::check(const Heads& heads) const {
  check(heads.q, "queries");
  for (int branch = 0; branch < kBranchCount; ++branch) {
    if (heads.k[branch]) check(*heads.k[branch], "keys");
    if (heads.v[branch]) check(*heads.v[branch], "values");
  }
  if (heads.gates.defined()) check(heads.gates, "gates", true);
}

Tensor LanguageModel::Impl::norm(const Tensor& x, const Tensor& gain) const {
  return add_norm({x, std::nullopt}, gain).normed;
}

ops::NormedSum LanguageModel::Impl::add_norm(const Stream& stream, const Tensor& gain) const {
  const PartScope part(StepPart::kNorm);
  check(stream.x, "input of a norm");
  if (stream.addend) check(*stream.addend, "addend of a norm");
  check(gain, "a norm gain"); // mixed dtypes would bypass the fused kernel without an error
  const ops::NormedSum out = stream.is_summed
                                 ? ops::rms_norm_of_sum(stream.x, gain, config.norm_epsilon)
                                 : ops::add_rms_norm(stream.x, stream.addend, gain,
                                                     config.norm_epsilon, config.fused_layers);
  check(out.normed, "output of a norm");
  return out;
}

Tensor LanguageModel::Impl::mlp(const Block& block, const Tensor& x) const {
  const PartScope part(StepPart::kMlp);
  const Tensor out = ops::mlp(x, block.fc1, block.fc2, config.fused_layers);
  check(out, "output of an MLP");
  return out;
}

// The copy is from pinned memory, so the host does not wait for work on the device.
Tensor LanguageModel::Impl::on_device(const Tensor& x) const {
  return device.is_cpu() ? x : x.pin_memory().to(device, x.scalar_type(), /*non_blocking=*/true);
}

std::pair<Tensor, Tensor> LanguageModel::Impl::tables(const Tensor& positions) {
  // Angles are computed in FP64, so that positions beyond 2^11 keep their precision, and are
  // rounded once.
  const int64_t half = config.head_dimension / 2;
  // The tables cover the whole sequence even if documents are short. Later documents may be longer,
  // and growing the tables waits for the device.
  const int64_t longest = positions.numel() == 0
                              ? 0
                              : std::max(positions.max().item<int64_t>() + 1, positions.size(-1));
  if (!cos.defined() || cos.size(0) < longest) {
    const auto options = at::TensorOptions().dtype(at::kDouble);
    const Tensor frequency =
        at::pow(config.rope_base, at::arange(half, options).mul_(-2.0 / double(2 * half)));
    const Tensor angle = at::outer(at::arange(std::max<int64_t>(longest, 1), options), frequency);
    cos = angle.cos().to(ops::compute_type(dtype)).to(device);
    sin = angle.sin().to(ops::compute_type(dtype)).to(device);
  }
  const Tensor row = on_device(positions.flatten());
  return {cos.index_select(0, row), sin.index_select(0, row)};
}

SequenceContext LanguageModel::Impl::context(int64_t sequence,
                                             const std::optional<Tensor>& document_start,
                                             int64_t position_offset, const SharedGroup& sharing) {
  const PartScope part(StepPart::kEmbedding);
  // Without documents every batch of this length uses the same tables, so the last ones are kept.
  const bool cached = !document_start && plain_length == sequence &&
                      plain_offset == position_offset && plain.group == sharing;
  if (cached) return plain;
  SequenceContext out;
  out.group = sharing;
  if (document_start && document_start->defined()) out.document_start = document_start;
  Tensor positions = at::arange(sequence, at::TensorOptions().dtype(at::kLong));
  if (out.document_start) positions = positions.unsqueeze(0) - *out.document_start;
  const Tensor own = sharing ? sharing->part_of(positions) : positions;
  std::tie(out.cos, out.sin) = tables(own + position_offset);
  if (config.attention == Attention::kNsa && config.nsa.compression == Compression::kMlp) {
    const ops::Sizes sizes{config.nsa.compression_block, config.nsa.compression_stride};
    std::tie(out.compressed_cos, out.compressed_sin) =
        tables(ops::compression_positions(sequence, sizes, out.document_start) + position_offset);
  }
  if (config.attention == Attention::kDense && out.document_start &&
      flash_takes_documents(config, device, dtype)) {
    const int64_t batch = out.document_start->size(0);
    std::vector<int32_t> offsets;
    for (const ops::Segment& s : ops::segments(batch, sequence, {}, out.document_start)) {
      offsets.push_back(int32_t(s.row * sequence + s.document.begin));
      out.longest_document = std::max(out.longest_document, s.document.length());
    }
    offsets.push_back(int32_t(batch * sequence));
    out.document_offsets = on_device(at::tensor(offsets, at::TensorOptions().dtype(at::kInt)));
  }
  if (!out.document_start) {
    plain = out;
    plain_length = sequence;
    plain_offset = position_offset;
  }
  return out;
}

void LanguageModel::Impl::add_gate_statistics(const std::vector<Tensor>& gates) {
  const PartScope part(StepPart::kGates);
  c10::NoGradGuard no_grad;
  // A sum of so few columns would have few blocks, each of which adds up thousands of rows.
  const int64_t parts = std::gcd(gates[0].numel() / kBranchCount, kGateParts);
  const Tensor rows = at::stack(gates).reshape({config.layers, -1, parts, kBranchCount});
  gate_sum.narrow(1, 0, parts).add_(rows.mean(1), 1.0 / double(parts));
  gate_passes.add_(1);
}

LanguageModel::Impl::Stream LanguageModel::Impl::run_block(int64_t layer, const Stream& in,
                                                           const SequenceContext& context,
                                                           bool counts, KeptOfBlock* kept) {
  const Block& block = blocks[layer];
  const auto [x, normed] = add_norm(in, block.attention_norm);
  Heads seen;
  const bool keeps_attention = kept != nullptr && !config.recompute_attention;
  const Tensor attended = [&] {
    const ops::SelectionProbe::Scope scope(
        counts && watches_selection ? selection_probe.get() : nullptr, layer);
    return block.attention.forward(normed, context, &seen,
                                   keeps_attention ? &kept->attention : nullptr);
  }();
  if (kept != nullptr) {
    kept->sum = x.detach();
    if (selection_probe) selection_probe->gather(); // the block's tensors are freed
  }
  check(seen);
  check(attended, "output of an attention layer");
  if (counts && gate_sum.defined() && seen.gates.defined())
    gates_of_pass.push_back(seen.gates.detach());
  const auto [middle, normed_middle] = add_norm({x, attended}, block.mlp_norm);
  return {middle, mlp(block, normed_middle)};
}

RecomputedBlock LanguageModel::Impl::recomputed_block(int64_t layer, const SequenceContext& context,
                                                      bool counts) {
  const auto outputs = [this](const Stream& out) {
    return config.fused_layers ? std::vector{out.x, *out.addend} : std::vector{out.x + *out.addend};
  };
  return {[=, this](const std::vector<Tensor>& in, KeptOfBlock& kept) {
            const Stream stream{in[0], in.size() > 1 ? std::optional(in[1]) : std::nullopt,
                                config.fused_layers && in.size() == 1};
            return outputs(run_block(layer, stream, context, counts, &kept));
          },
          [=, this](const Tensor& sum, KeptOfBlock kept) {
            return outputs(
                run_block(layer, {sum, std::nullopt, config.fused_layers}, context, false, &kept));
          }};
}

Tensor LanguageModel::Impl::hidden(const Tensor& tokens,
                                   const std::optional<Tensor>& document_start,
                                   int64_t position_offset, const SharedGroup& sharing,
                                   const c10::intrusive_ptr<ops::TiedGradient>& tied) {
  TORCH_CHECK(tokens.dim() == 2 && tokens.scalar_type() == at::kLong && tokens.numel() > 0,
              "tokens must be int64 [B, S] and not empty, got ", tokens.scalar_type(), " ",
              tokens.sizes());
  const SequenceContext shared = context(tokens.size(1), document_start, position_offset, sharing);
  const Tensor own = sharing ? sharing->part_of(tokens).contiguous() : tokens;
  check(shared.cos, "a RoPE table", true);
  // The gradient mode is read here, because within recompute() the first run of a training pass has
  // no gradients.
  const bool counts = c10::GradMode::is_enabled();
  // This lookup has its own gradient, which autograd adds to the one from the output layer.
  if (!tied && c10::GradMode::is_enabled())
    ops::count_kernel(choice::Part::kEmbeddingGradient, choice::Backend::kAten);
  const auto look_up = [&] {
    const PartScope part(StepPart::kEmbedding);
    return tied ? ops::embedding(embedding, own, tied) : at::embedding(embedding, own);
  };
  gates_of_pass.clear(); // those of a pass that failed
  if (selection_probe) selection_probe->forget();
  // The first norm's backward adds the two gradients of the rows, as that of a sum does.
  Stream stream{look_up(), std::nullopt, /*is_summed=*/config.fused_layers};
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (config.activation_recompute && c10::GradMode::is_enabled()) {
      // x and its addend are summed in the same pass as without recompute, so the bits are the
      // same.
      std::vector<Tensor> inputs{stream.x};
      if (stream.addend) inputs.push_back(*stream.addend);
      stream = {};
      const auto out = recompute(recomputed_block(layer, shared, counts), inputs);
      stream = {out[0], out.size() > 1 ? std::optional(out[1]) : std::nullopt};
    } else {
      stream = run_block(layer, stream, shared, counts);
    }
  }
  if (selection_probe) selection_probe->gather();
  if (!gates_of_pass.empty()) add_gate_statistics(std::exchange(gates_of_pass, {}));
  return add_norm(stream, final_norm).normed;
}

LanguageModel::LanguageModel(const ModelConfig& config, at::Device device,
                             at::ScalarType compute_dtype, uint64_t seed, Weights weights)
    : impl_(std::make_unique<Impl>(config, device, compute_dtype, seed, weights)) {}
LanguageModel::~LanguageModel() = default;
LanguageModel::LanguageModel(LanguageModel&&) noexcept = default;
LanguageModel& LanguageModel::operator=(LanguageModel&&) noexcept = default;

const ModelConfig& LanguageModel::config() const {
  return impl_->config;
}
at::ScalarType LanguageModel::compute_dtype() const {
  return impl_->dtype;
}
const std::vector<NamedParameter>& LanguageModel::named_parameters() const {
  return impl_->parameters;
}

Tensor LanguageModel::initial_value(const std::string& name) const {
  for (const ParameterSpec& spec : impl_->specs)
    if (spec.name == name) return initial_values(spec, impl_->seed);
  TORCH_CHECK(false, "no parameter is named ", name);
}

void LanguageModel::share_context(SharedGroup group) {
  TORCH_CHECK(!group || impl_->config.kv_groups % group->size == 0, impl_->config.kv_groups,
              " groups of keys do not divide over ", group->size, " ranks");
  impl_->group = std::move(group);
}

Tensor LanguageModel::loss(const Tensor& tokens, const Tensor& targets,
                           const std::optional<Tensor>& document_start) {
  TORCH_CHECK(targets.sizes() == tokens.sizes(), "targets ", targets.sizes(),
              " must be like tokens ", tokens.sizes());
  const ModelConfig& config = impl_->config;
  c10::intrusive_ptr<ops::TiedGradient> tied;
  if (config.fused_layers && config.joined_embedding_gradient && c10::GradMode::is_enabled())
    tied = c10::make_intrusive<ops::TiedGradient>();
  const Tensor hidden = impl_->hidden(tokens, document_start, 0, impl_->group, tied);
  const PartScope part(StepPart::kLoss);
  const Tensor loss =
      linear_cross_entropy(hidden.flatten(0, 1), impl_->embedding,
                           impl_->part_of(targets).flatten(), config.fused_layers, tied);
  impl_->check(loss, "the loss", true);
  return loss;
}

Tensor LanguageModel::token_losses(const Tensor& tokens, const Tensor& targets,
                                   const std::optional<Tensor>& document_start) {
  TORCH_CHECK(targets.sizes() == tokens.sizes(), "targets ", targets.sizes(),
              " must be like tokens ", tokens.sizes());
  const c10::NoGradGuard no_grad;
  const Tensor hidden = impl_->hidden(tokens, document_start, 0, impl_->group);
  const Tensor own = impl_->part_of(targets);
  return linear_token_losses(hidden.flatten(0, 1), impl_->embedding, own.flatten(),
                             impl_->config.fused_layers)
      .view(own.sizes());
}

Tensor LanguageModel::logits(const Tensor& tokens, const std::optional<Tensor>& document_start,
                             int64_t position_offset) {
  const Tensor hidden = impl_->hidden(tokens, document_start, position_offset, nullptr);
  return at::linear(hidden, impl_->embedding).to(ops::compute_type(impl_->dtype));
}

ops::AttentionInputs LanguageModel::attention_inputs(const Tensor& tokens,
                                                     const std::optional<Tensor>& document_start,
                                                     int64_t layer) {
  TORCH_CHECK(
      impl_->config.attention == Attention::kNsa && layer >= 0 && layer < impl_->config.layers,
      "attention_inputs: layer ", layer, " of ", impl_->config.layers, " of a model with NSA");
  c10::NoGradGuard no_grad;
  const SequenceContext shared = impl_->context(tokens.size(1), document_start, 0, nullptr);
  Impl::Stream stream{at::embedding(impl_->embedding, tokens), std::nullopt};
  for (int64_t before = 0; before < layer; ++before)
    stream = impl_->run_block(before, stream, shared, /*counts=*/false);
  const Impl::Block& block = impl_->blocks[layer];
  const Tensor normed = impl_->add_norm(stream, block.attention_norm).normed;
  Heads heads = block.attention.project(normed, shared);
  ops::OptionalTensor indices;
  if (heads.k[0]) {
    heads.k[0] = block.attention.compress(*heads.k[0], true, shared);
    heads.v[0] = block.attention.compress(*heads.v[0], false, shared);
    if (heads.k[1])
      indices = std::get<1>(
          ops::select(heads.q, *heads.k[0], block.attention.settings(), shared.document_start));
  }
  return {heads.q, heads.k, heads.v, heads.gates, shared.document_start, indices};
}

Tensor LanguageModel::take_gate_means() {
  if (!impl_->gate_sum.defined()) return {};
  Tensor means = impl_->gate_sum.sum(1) / impl_->gate_passes;
  impl_->gate_sum.zero_();
  impl_->gate_passes.zero_();
  return means;
}

void LanguageModel::watch_selection(bool on) {
  impl_->watches_selection = on;
}

Tensor LanguageModel::take_selection_figures() {
  return impl_->selection_probe ? impl_->selection_probe->take() : Tensor();
}

Tensor document_starts(const Tensor& tokens, int64_t end_of_document) {
  TORCH_CHECK(tokens.is_cpu() && tokens.dim() == 2 && tokens.scalar_type() == at::kLong,
              "document_starts takes int64 [B, S] on the CPU");
  const Tensor in = tokens.contiguous();
  Tensor starts = at::empty_like(in);
  const int64_t* token = in.const_data_ptr<int64_t>();
  int64_t* out = starts.mutable_data_ptr<int64_t>();
  for (int64_t row = 0; row < in.size(0); ++row) {
    int64_t start = 0;
    for (int64_t t = 0; t < in.size(1); ++t, ++token, ++out) {
      *out = start;
      if (*token == end_of_document) start = t + 1;
    }
  }
  return starts;
}

} // namespace nsa::model
