#include "nsa_model/model/attention_layer.h"

#include "nsa_model/ops/fused.h"
#include "nsa_model/ops/kernel_counts.h"
#include "nsa_model/ops/layer.h"
#include "nsa_model/ops/segments.h"
#include "nsa_model/ops/step_part.h"

namespace nsa::model {

using at::Tensor;

namespace {

using choice::Backend;
using choice::Part;

constexpr std::array kBranches{Branch::kCompressed, Branch::kSelected, Branch::kSliding};

// Receives some of the heads of all tokens.
Heads of_whole_sequence(const Heads& part, const SharedGroup& group) {
  std::vector<Tensor> tensors{part.q};
  for (const auto* set : {&part.k, &part.v})
    for (const std::optional<Tensor>& x : *set)
      if (x) tensors.push_back(*x);
  if (part.gates.defined()) tensors.push_back(part.gates);
  tensors = to_whole_sequence(tensors, group);
  Heads whole;
  auto next = tensors.begin();
  whole.q = *next++;
  for (int b = 0; b < kBranchCount; ++b)
    if (part.k[b]) whole.k[b] = *next++;
  for (int b = 0; b < kBranchCount; ++b)
    if (part.v[b]) whole.v[b] = *next++;
  if (part.gates.defined()) whole.gates = *next++;
  return whole;
}

} // namespace

ProjectionRows projection_rows(const ModelConfig& config) {
  ProjectionRows rows;
  rows.names = {"w_q"};
  if (config.attention == Attention::kDense) {
    rows.rotated = rows.values = {0};
    rows.names.insert(rows.names.end(), {"w_k", "w_v"});
    return rows;
  }
  // A learned phi rotates its own keys.
  const bool phi_mlp = config.nsa.compression == Compression::kMlp;
  for (const Branch branch : kBranches) {
    if (!has_branch(config.nsa, branch)) continue;
    const bool raw = branch == Branch::kCompressed && phi_mlp;
    (raw ? rows.unrotated : rows.rotated).push_back(int(branch));
    rows.values.push_back(int(branch));
  }
  const auto add = [&](const char* prefix, const std::vector<int>& branches) {
    for (const int branch : branches)
      rows.names.push_back(prefix + std::string(name_of(Branch(branch))));
  };
  add("w_k_", rows.rotated);
  add("w_k_", rows.unrotated);
  add("w_v_", rows.values);
  return rows;
}

AttentionLayer::AttentionLayer(const ModelConfig& config,
                               const std::function<Tensor(const std::string&)>& parameter)
    : config_(config), rows_(projection_rows(config)), w_out_(parameter("w_out.weight")) {
  for (const std::string& name : rows_.names)
    projections_.push_back(parameter(name + ".weight"));
  if (config.attention == Attention::kDense) return;
  const NsaConfig& nsa = config.nsa;
  if (nsa.compressed && nsa.compression == Compression::kMlp) {
    const auto phi = [&](const std::string& name) {
      return ops::CompressionWeights{parameter(name + ".position"), parameter(name + ".fc1.weight"),
                                     parameter(name + ".fc2.weight")};
    };
    phi_k_ = phi("phi_k");
    phi_v_ = phi("phi_v");
  }
  if (nsa.gate == Gate::kHeadSigmoid || branch_count(nsa) > 1) {
    gate_fc1_ = parameter("gate.fc1.weight");
    gate_fc2_ = parameter("gate.fc2.weight");
  }
}

ops::Settings AttentionLayer::settings() const {
  const NsaConfig& nsa = config_.nsa;
  return {{nsa.compression_block, nsa.compression_stride, nsa.selection_block, nsa.selected_blocks,
           nsa.window},
          0};
}

Tensor AttentionLayer::forward(const Tensor& x, const SequenceContext& context, Heads* seen,
                               ops::KeptAttention* kept) const {
  Heads heads = project(x, context);
  if (seen) *seen = heads;
  return attend(std::move(heads), context, kept);
}

Tensor AttentionLayer::attend(Heads heads, const SequenceContext& context,
                              ops::KeptAttention* kept) const {
  if (context.group) heads = of_whole_sequence(heads, context.group);
  const Tensor o = config_.attention == Attention::kDense ? dense(heads, context)
                                                          : nsa(std::move(heads), context, kept);
  return output(context.group ? to_all_heads(o, context.group) : o);
}

Tensor AttentionLayer::nsa(Heads heads, const SequenceContext& context,
                           ops::KeptAttention* kept) const {
  // The fused operator averages keys and values itself.
  const bool pooled_inside =
      config_.fused_layers && config_.nsa.compression == Compression::kAverage;
  const bool in_place = config_.fused_layers && config_.compression_in_place &&
                        !context.document_start && config_.nsa.compression == Compression::kMlp;
  if (heads.k[0] && in_place) {
    const ops::PartScope part(ops::StepPart::kCompression);
    const ops::CompressedTokens compressed =
        ops::learned_compression(*heads.k[0], *heads.v[0], phi_k_, phi_v_, context.compressed_cos,
                                 context.compressed_sin, config_.nsa.compression_stride);
    heads.k[0] = compressed.k;
    heads.v[0] = compressed.v;
  } else if (heads.k[0] && !pooled_inside) {
    heads.k[0] = compress(*heads.k[0], true, context);
    heads.v[0] = compress(*heads.v[0], false, context);
  }
  const ops::AttentionInputs inputs{
      heads.q, heads.k, heads.v, heads.gates, context.document_start, std::nullopt};
  return kept != nullptr ? ops::attention(inputs, settings(), config_.kernels, *kept)
                         : ops::attention(inputs, settings(), config_.kernels);
}

Heads AttentionLayer::project(const Tensor& x, const SequenceContext& context) const {
  const ops::PartScope part(ops::StepPart::kProjections);
  const ops::HeadCut cut{config_.heads, config_.kv_groups, config_.head_dimension,
                         int64_t(rows_.rotated.size()), gate_sees_mean()};
  const ops::HeadSets parts =
      ops::split_heads(ops::joined_linear(x, projections_, config_.fused_layers), context.cos,
                       context.sin, cut, config_.fused_layers);
  Heads out;
  out.q = parts.q;
  size_t next = 0;
  for (const std::vector<int>& keys : {rows_.rotated, rows_.unrotated})
    for (const int b : keys)
      out.k[b] = parts.sets[next++];
  for (const int b : rows_.values)
    out.v[b] = parts.sets[next++];
  if (config_.attention == Attention::kNsa) out.gates = gates(x, parts.mean);
  return out;
}

bool AttentionLayer::gate_sees_mean() const {
  return config_.attention == Attention::kNsa && config_.nsa.gate == Gate::kGroupSoftmax &&
         branch_count(config_.nsa) > 1;
}

Tensor AttentionLayer::gates(const Tensor& x, const Tensor& mean) const {
  const ops::PartScope part(ops::StepPart::kGates);
  const NsaConfig& nsa = config_.nsa;
  const auto type = ops::compute_type(x.scalar_type());
  const int64_t branches = branch_count(nsa), groups = config_.kv_groups;
  Tensor weight; // [B, S, gates, branches]
  if (nsa.gate == Gate::kHeadSigmoid) {
    ops::count_kernel(Part::kGate, Backend::kAten);
    const Tensor hidden = at::silu(at::linear(x, gate_fc1_));
    weight =
        at::linear(hidden, gate_fc2_).to(type).sigmoid().unflatten(-1, {config_.heads, branches});
  } else if (branches == 1) {
    weight = at::ones({x.size(0), x.size(1), groups, 1}, x.options().dtype(type));
  } else if (config_.fused_layers) {
    weight = ops::group_gates(mean, gate_fc1_, gate_fc2_, nsa.gate_temperature, config_.heads,
                              /*fused=*/true);
  } else {
    ops::count_kernel(Part::kGate, Backend::kAten);
    const Tensor hidden = at::silu(at::linear(mean, gate_fc1_));
    weight = at::softmax(at::linear(hidden, gate_fc2_).to(type).div(nsa.gate_temperature), -1);
  }
  if (branches == kBranchCount) return weight;
  // An absent branch gets weight 0, so the operator always sees three columns.
  const std::vector<Tensor> columns = weight.split(1, 3);
  std::vector<Tensor> all;
  size_t next = 0;
  for (const Branch branch : kBranches)
    all.push_back(has_branch(nsa, branch) ? columns[next++] : at::zeros_like(columns[0]));
  return at::cat(all, 3);
}

Tensor AttentionLayer::compress(const Tensor& raw, bool keys,
                                const SequenceContext& context) const {
  const ops::PartScope part(ops::StepPart::kCompression);
  const ops::Sizes sizes = settings().sizes;
  if (config_.nsa.compression == Compression::kAverage)
    return ops::pool(raw, sizes, context.document_start);
  ops::count_kernel(Part::kCompression, Backend::kAten);
  const ops::CompressionWeights& phi = keys ? phi_k_ : phi_v_;
  const Tensor windows =
      ops::compression_windows(raw, sizes, context.document_start); // [B,Nc,l,G,D]
  const Tensor block =
      (windows + phi.position.unsqueeze(1)).transpose(2, 3).flatten(3); // [B,Nc,G,l*D]
  Tensor out = at::linear(at::silu(at::linear(block, phi.fc1)), phi.fc2);
  if (!keys || out.size(1) == 0) return out;
  return ops::rope(out, context.compressed_cos, context.compressed_sin);
}

Tensor AttentionLayer::dense(const Heads& heads, const SequenceContext& context) const {
  const ops::PartScope part(ops::StepPart::kDense);
  const auto attend = [&](const Tensor& q, const Tensor& k, const Tensor& v) {
    if (config_.dense_backend == DenseAttention::kFused)
      return ops::fused_causal_attention(q, k, v);
    ops::count_kernel(Part::kDense, Backend::kSdpa);
    return at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                            std::nullopt, 0.0, /*is_causal=*/true, std::nullopt,
                                            /*enable_gqa=*/true)
        .transpose(1, 2);
  };
  if (!context.document_start) return attend(heads.q, *heads.k[0], *heads.v[0]);
  if (context.document_offsets.defined()) {
    const auto all = [](const Tensor& x) { return x.flatten(0, 1); };
    const Tensor& offsets = context.document_offsets;
    const int64_t longest = context.longest_document;
    ops::count_kernel(Part::kDense, Backend::kFlash);
    const Tensor o = std::get<0>(at::_flash_attention_forward(
        all(heads.q), all(*heads.k[0]), all(*heads.v[0]), offsets, offsets, longest, longest,
        /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false));
    return o.view_as(heads.q);
  }
  // split_with_sizes cuts all tokens at once, so its gradient is one concatenation. Slices would
  // each produce a gradient as large as the whole tensor.
  std::vector<int64_t> lengths;
  for (const ops::Segment& s :
       ops::segments(heads.q.size(0), heads.q.size(1), {}, context.document_start))
    lengths.push_back(s.document.length());
  const auto cut = [&](const Tensor& x) { return x.flatten(0, 1).split_with_sizes(lengths); };
  const std::vector<Tensor> q = cut(heads.q), k = cut(*heads.k[0]), v = cut(*heads.v[0]);
  std::vector<Tensor> documents;
  for (size_t i = 0; i < lengths.size(); ++i)
    documents.push_back(attend(q[i].unsqueeze(0), k[i].unsqueeze(0), v[i].unsqueeze(0)).squeeze(0));
  return at::cat(documents).view_as(heads.q);
}

} // namespace nsa::model
