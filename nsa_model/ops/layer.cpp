#include "nsa_model/ops/layer.h"

#include "nsa_model/ops/attention.h"
#include "nsa_model/ops/branch_pass.h"
#include "nsa_model/ops/kernel_counts.h"
#include "nsa_model/ops/registered.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

namespace nsa::ops {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::tuple<Tensor, Tensor, Tensor> norm_forward(const Tensor& x, const OptionalTensor& addend,
                                                const Tensor& gain, double epsilon) {
  static const auto op = registered<std::tuple<Tensor, Tensor, Tensor>(
      const Tensor&, const OptionalTensor&, const Tensor&, double)>("nsa::add_rms_norm");
  return op.call(x, addend, gain, epsilon);
}

std::tuple<Tensor, Tensor> norm_backward(const Tensor& d_normed, const OptionalTensor& d_sum,
                                         const Tensor& sum, const Tensor& inverse,
                                         const Tensor& gain) {
  static const auto op = registered<std::tuple<Tensor, Tensor>(
      const Tensor&, const OptionalTensor&, const Tensor&, const Tensor&, const Tensor&)>(
      "nsa::add_rms_norm_backward");
  return op.call(d_normed, d_sum, sum, inverse, gain);
}

// Outputs: the normalised rows, and the sum if there is an addend.
struct AddRmsNorm : torch::autograd::Function<AddRmsNorm> {
  // `is_sum`: x is already the sum, and the outputs are as with an addend.
  static variable_list forward(AutogradContext* context, const Tensor& x,
                               const OptionalTensor& addend, const Tensor& gain, double epsilon,
                               bool is_sum) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto [sum, normed, inverse] = norm_forward(x, addend, gain, epsilon);
    context->save_for_backward({addend ? sum : x, inverse, gain});
    context->set_materialize_grads(false);
    context->saved_data["has_addend"] = addend.has_value();
    if (is_sum) return {normed, x.detach()};
    if (!addend) return {normed};
    return {normed, sum};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    OptionalTensor d_sum;
    if (grads.size() == 2 && grads[1].defined()) d_sum = grads[1].contiguous();
    // If nobody uses the normalised rows, gradient flows only through the sum.
    const Tensor d_normed = grads[0].defined() ? grads[0].contiguous() : at::zeros_like(saved[0]);
    const auto [d_x, d_gain] = norm_backward(d_normed, d_sum, saved[0], saved[1], saved[2]);
    const bool has_addend = context->saved_data["has_addend"].toBool();
    return {d_x, has_addend ? d_x : Tensor(), d_gain, Tensor(), Tensor()};
  }
};

struct SplitHeads : torch::autograd::Function<SplitHeads> {
  static variable_list forward(AutogradContext* context, const Tensor& joined, const Tensor& cos,
                               const Tensor& sin, const HeadCut& cut) {
    at::AutoDispatchBelowADInplaceOrView guard;
    static const auto op =
        registered<std::vector<Tensor>(const Tensor&, const Tensor&, const Tensor&, int64_t,
                                       int64_t, int64_t, int64_t, bool)>("nsa::split_heads");
    context->save_for_backward({cos, sin});
    context->saved_data["rotated"] = cut.rotated;
    context->saved_data["mean"] = cut.mean;
    return op.call(joined, cos, sin, cut.heads, cut.groups, cut.head_dimension, cut.rotated,
                   cut.mean);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    static const auto op =
        registered<Tensor(at::TensorList, const Tensor&, const Tensor&, int64_t, bool)>(
            "nsa::split_heads_backward");
    const variable_list saved = context->get_saved_variables();
    variable_list whole;
    for (const Tensor& grad : grads)
      whole.push_back(grad.contiguous());
    return {op.call(whole, saved[0], saved[1], context->saved_data["rotated"].toInt(),
                    context->saved_data["mean"].toBool()),
            Tensor(), Tensor(), Tensor()};
  }
};

struct GroupGates : torch::autograd::Function<GroupGates> {
  static Tensor forward(AutogradContext* context, const Tensor& mean, const Tensor& fc1,
                        const Tensor& fc2, double temperature, int64_t heads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    static const auto op =
        registered<Tensor(const Tensor&, const Tensor&, const Tensor&, double, int64_t)>(
            "nsa::group_gates");
    const Tensor gates = op.call(mean, fc1, fc2, temperature, heads);
    context->save_for_backward({gates, mean, fc1, fc2});
    context->saved_data["temperature"] = temperature;
    return gates;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    static const auto op = registered<std::tuple<Tensor, Tensor, Tensor>(
        const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, double)>(
        "nsa::group_gates_backward");
    const variable_list saved = context->get_saved_variables();
    const auto [d_mean, d_fc1, d_fc2] =
        op.call(grads[0].contiguous(), saved[0], saved[1], saved[2], saved[3],
                context->saved_data["temperature"].toDouble());
    return {d_mean, d_fc1, d_fc2, Tensor(), Tensor()};
  }
};

} // namespace

NormedSum add_rms_norm(const Tensor& x, const OptionalTensor& addend, const Tensor& gain,
                       double epsilon, bool fused) {
  if (!fused) {
    checked::add_rms_norm(x, addend, gain);
    count_kernel(choice::Part::kNorm, choice::Backend::kAten);
    const Tensor sum = addend ? x + *addend : x;
    return {sum, at::rms_norm(sum, gain.sizes(), gain, epsilon)};
  }
  const variable_list out = AddRmsNorm::apply(x, addend, gain, epsilon, /*is_sum=*/false);
  return {addend ? out[1] : x, out[0]};
}

NormedSum rms_norm_of_sum(const Tensor& sum, const Tensor& gain, double epsilon) {
  const variable_list out =
      AddRmsNorm::apply(sum, OptionalTensor(), gain, epsilon, /*is_sum=*/true);
  return {out[1], out[0]};
}

HeadSets split_heads(const Tensor& joined, const Tensor& cos, const Tensor& sin, const HeadCut& cut,
                     bool fused) {
  const int64_t d = cut.head_dimension;
  HeadSets out;
  variable_list parts = fused ? SplitHeads::apply(joined, cos, sin, cut)
                              : composed::split_heads(joined, cos, sin, cut.heads, cut.groups, d,
                                                      cut.rotated, cut.mean);
  out.q = parts.front();
  if (cut.mean) {
    out.mean = parts.back();
    parts.pop_back();
  }
  out.sets.assign(parts.begin() + 1, parts.end());
  return out;
}

Tensor group_gates(const Tensor& mean, const Tensor& fc1, const Tensor& fc2, double temperature,
                   int64_t heads, bool fused) {
  return fused ? GroupGates::apply(mean, fc1, fc2, temperature, heads)
               : composed::group_gates(mean, fc1, fc2, temperature, heads);
}

Tensor cross_entropy_(const Tensor& logits, const Tensor& labels, const Tensor& weight,
                      bool gradient, bool fused) {
  static const auto op =
      registered<Tensor(Tensor, const Tensor&, const Tensor&, bool)>("nsa::cross_entropy_");
  return fused ? op.call(logits, labels, weight, gradient)
               : composed::cross_entropy_(logits, labels, weight, gradient);
}

namespace checked {

namespace {

void expect_like(const char* what, const Tensor& tensor, const Tensor& like) {
  TORCH_CHECK(tensor.sizes() == like.sizes() && tensor.scalar_type() == like.scalar_type() &&
                  tensor.device() == like.device(),
              "nsa: ", what, " is ", tensor.sizes(), " of dtype ", tensor.scalar_type(), " on ",
              tensor.device(), ", expected ", like.sizes(), " of dtype ", like.scalar_type(),
              " on ", like.device());
}
void expect_tensor(const char* what, const Tensor& tensor, at::IntArrayRef sizes,
                   at::ScalarType type, at::Device device) {
  TORCH_CHECK(tensor.sizes() == sizes && tensor.scalar_type() == type && tensor.device() == device,
              "nsa: ", what, " is ", tensor.sizes(), " of dtype ", tensor.scalar_type(), " on ",
              tensor.device(), ", expected ", sizes, " of dtype ", type, " on ", device);
}

// Tables have a row for each token of the sequence or of the batch.
void expect_tables(const Tensor& cos, const Tensor& sin, const Tensor& q) {
  for (const Tensor* table : {&cos, &sin})
    TORCH_CHECK(table->dim() == 2 && cos.size(0) == table->size(0) &&
                    (cos.size(0) == q.size(1) || cos.size(0) == q.size(0) * q.size(1)) &&
                    2 * table->size(1) == q.size(3) &&
                    table->scalar_type() == compute_type(q.scalar_type()) &&
                    table->device() == q.device(),
                "nsa: split_heads: a table of ", table->sizes(), " ", table->scalar_type(), " on ",
                table->device(), " does not fit heads of ", q.sizes(), " ", q.scalar_type(), " on ",
                q.device());
}

} // namespace

void add_rms_norm(const Tensor& x, const OptionalTensor& addend, const Tensor& gain) {
  TORCH_CHECK(x.dim() > 0 && x.is_floating_point(), "nsa: add_rms_norm takes x [..., C], got ",
              x.sizes(), " ", x.scalar_type());
  expect_tensor("add_rms_norm: the gain", gain, {x.size(-1)}, x.scalar_type(), x.device());
  if (addend) expect_like("add_rms_norm: the addend", *addend, x);
}

void add_rms_norm_backward(const Tensor& d_normed, const OptionalTensor& d_sum, const Tensor& sum,
                           const Tensor& inverse, const Tensor& gain) {
  add_rms_norm(sum, std::nullopt, gain);
  expect_like("add_rms_norm_backward: d_normed", d_normed, sum);
  if (d_sum) expect_like("add_rms_norm_backward: d_sum", *d_sum, sum);
  const int64_t rows = sum.numel() / std::max<int64_t>(1, sum.size(-1));
  expect_tensor("add_rms_norm_backward: inverse", inverse, {rows}, compute_type(sum.scalar_type()),
                sum.device());
}

void split_heads(const Tensor& joined, const Tensor& cos, const Tensor& sin, int64_t heads,
                 int64_t groups, int64_t head_dimension, int64_t rotated, bool mean) {
  const int64_t d = head_dimension;
  TORCH_CHECK(joined.dim() == 3 && joined.is_floating_point() && d > 0 && groups > 0 && heads > 0 &&
                  rotated >= 0 && joined.size(2) % d == 0 &&
                  (joined.size(2) / d - heads) % groups == 0 &&
                  joined.size(2) / d >= heads + rotated * groups && (!mean || heads % groups == 0),
              "nsa: split_heads: ", joined.sizes(), " ", joined.scalar_type(), " is not ", heads,
              " heads and sets of ", groups, " of ", d);
  expect_tables(cos, sin, joined.unflatten(2, {-1, d}));
}

void split_heads_backward(at::TensorList grads, const Tensor& cos, const Tensor& sin,
                          int64_t rotated, bool mean) {
  const int64_t sets = int64_t(grads.size()) - 1 - (mean ? 1 : 0);
  TORCH_CHECK(sets >= 0 && rotated >= 0 && rotated <= sets && grads[0].dim() == 4 &&
                  grads[0].is_floating_point(),
              "nsa: split_heads_backward: ", grads.size(), " gradients with ", rotated,
              " rotated sets", mean ? " and a mean" : "");
  const Tensor& q = grads[0];
  for (size_t i = 1; i < grads.size(); ++i)
    expect_tensor("split_heads_backward: a set's gradient", grads[i],
                  {q.size(0), q.size(1), grads[1].dim() == 4 ? grads[1].size(2) : -1, q.size(3)},
                  q.scalar_type(), q.device());
  TORCH_CHECK(!mean || (grads[1].size(2) > 0 && q.size(2) % grads[1].size(2) == 0),
              "nsa: split_heads_backward: ", q.size(2), " heads of ", grads[1].size(2), " groups");
  expect_tables(cos, sin, q);
}

void group_gates(const Tensor& mean, const Tensor& fc1, const Tensor& fc2, int64_t heads) {
  TORCH_CHECK(mean.dim() == 4 && mean.is_floating_point() && fc1.dim() == 2 && fc2.dim() == 2 &&
                  mean.size(2) > 0 && heads % mean.size(2) == 0,
              "nsa: group_gates: mean ", mean.sizes(), ", fc1 ", fc1.sizes(), " and fc2 ",
              fc2.sizes(), " do not fit each other or ", heads, " heads");
  const auto type = mean.scalar_type();
  expect_tensor("group_gates: fc1", fc1, {fc1.size(0), mean.size(3)}, type, mean.device());
  expect_tensor("group_gates: fc2", fc2, {fc2.size(0), fc1.size(0)}, type, mean.device());
}

void group_gates_backward(const Tensor& d_gates, const Tensor& gates, const Tensor& mean,
                          const Tensor& fc1, const Tensor& fc2) {
  const int64_t heads = gates.dim() == 4 ? gates.size(2) : 0;
  group_gates(mean, fc1, fc2, heads);
  expect_tensor("group_gates_backward: gates", gates,
                {mean.size(0), mean.size(1), heads, fc2.size(0)}, compute_type(mean.scalar_type()),
                mean.device());
  expect_like("group_gates_backward: d_gates", d_gates, gates);
}

void cross_entropy_(const Tensor& logits, const Tensor& labels, const Tensor& weight) {
  TORCH_CHECK(logits.dim() == 2 && logits.is_floating_point(),
              "nsa: cross_entropy_ takes logits [N, V], got ", logits.sizes(), " ",
              logits.scalar_type());
  const int64_t rows = logits.size(0);
  expect_tensor("cross_entropy_: labels", labels, {rows}, at::kLong, logits.device());
  expect_tensor("cross_entropy_: weight", weight, {rows}, compute_type(logits.scalar_type()),
                logits.device());
}

} // namespace checked

namespace composed {

std::tuple<Tensor, Tensor, Tensor> add_rms_norm(const Tensor& x, const OptionalTensor& addend,
                                                const Tensor& gain, double epsilon) {
  checked::add_rms_norm(x, addend, gain);
  count_kernel(choice::Part::kNorm, choice::Backend::kAten);
  const auto type = compute_type(x.scalar_type());
  const Tensor sum = addend ? x + *addend : x;
  const Tensor wide = sum.to(type);
  const Tensor inverse = wide.square().mean(-1, /*keepdim=*/true).add_(epsilon).rsqrt_();
  const Tensor normed = (wide * inverse).mul_(gain.to(type)).to(x.scalar_type());
  return {addend ? sum : at::empty({0}, x.options()), normed, inverse.flatten()};
}

std::tuple<Tensor, Tensor> add_rms_norm_backward(const Tensor& d_normed,
                                                 const OptionalTensor& d_sum, const Tensor& sum,
                                                 const Tensor& inverse, const Tensor& gain) {
  checked::add_rms_norm_backward(d_normed, d_sum, sum, inverse, gain);
  count_kernel(choice::Part::kNorm, choice::Backend::kAten);
  const auto type = compute_type(sum.scalar_type());
  const Tensor scale = inverse.view(sum.sizes().slice(0, sum.dim() - 1)).unsqueeze(-1);
  const Tensor unit = sum.to(type) * scale, up = d_normed.to(type);
  const Tensor d_gain = (up * unit).flatten(0, -2).sum(0).to(gain.scalar_type());
  const Tensor gained = up * gain.to(type);
  const Tensor along = (gained * unit).mean(-1, /*keepdim=*/true);
  Tensor d_x = (gained - unit * along).mul_(scale);
  if (d_sum) d_x.add_(d_sum->to(type));
  return {d_x.to(sum.scalar_type()), d_gain};
}

std::vector<Tensor> split_heads(const Tensor& joined, const Tensor& cos, const Tensor& sin,
                                int64_t heads, int64_t groups, int64_t head_dimension,
                                int64_t rotated, bool mean) {
  checked::split_heads(joined, cos, sin, heads, groups, head_dimension, rotated, mean);
  count_kernel(choice::Part::kRotation, choice::Backend::kAten);
  const Tensor all = joined.unflatten(-1, {-1, head_dimension});
  const int64_t turned = heads + rotated * groups, left = all.size(2) - turned;
  const std::vector<Tensor> halves = all.split_with_sizes({turned, left}, 2);
  std::vector<int64_t> widths(size_t(rotated + 1), groups);
  widths[0] = heads;
  std::vector<Tensor> parts = rope(halves[0], cos, sin).split_with_sizes(widths, 2);
  for (const Tensor& set :
       halves[1].split_with_sizes(std::vector<int64_t>(size_t(left / groups), groups), 2))
    parts.push_back(set);
  if (mean)
    parts.push_back(all.narrow(2, 0, heads)
                        .unflatten(2, {groups, heads / groups})
                        .mean({3}, false, compute_type(joined.scalar_type()))
                        .to(joined.scalar_type()));
  return parts;
}

Tensor split_heads_backward(at::TensorList grads, const Tensor& cos, const Tensor& sin,
                            int64_t rotated, bool mean) {
  checked::split_heads_backward(grads, cos, sin, rotated, mean);
  count_kernel(choice::Part::kRotation, choice::Backend::kAten);
  const size_t sets = grads.size() - 1 - (mean ? 1 : 0);
  const at::TensorList turned = grads.slice(0, size_t(rotated) + 1);
  std::vector<Tensor> parts{rope(at::cat(turned, 2), cos, sin.neg())};
  for (size_t i = size_t(rotated) + 1; i <= sets; ++i)
    parts.push_back(grads[i]);
  Tensor joined = at::cat(parts, 2);
  if (mean) {
    const int64_t heads = grads[0].size(2), groups = grads.back().size(2);
    joined.narrow(2, 0, heads)
        .unflatten(2, {groups, heads / groups})
        .add_(grads.back().unsqueeze(3), double(groups) / double(heads));
  }
  return joined.flatten(2);
}

Tensor group_gates(const Tensor& mean, const Tensor& fc1, const Tensor& fc2, double temperature,
                   int64_t heads) {
  checked::group_gates(mean, fc1, fc2, heads);
  count_kernel(choice::Part::kGate, choice::Backend::kAten);
  const Tensor hidden = at::silu(at::linear(mean, fc1));
  const Tensor score = at::linear(hidden, fc2).to(compute_type(mean.scalar_type()));
  return at::softmax(score.div(temperature), -1).repeat_interleave(heads / mean.size(2), 2);
}

std::tuple<Tensor, Tensor, Tensor> group_gates_backward(const Tensor& d_gates, const Tensor& gates,
                                                        const Tensor& mean, const Tensor& fc1,
                                                        const Tensor& fc2, double temperature) {
  checked::group_gates_backward(d_gates, gates, mean, fc1, fc2);
  count_kernel(choice::Part::kGate, choice::Backend::kAten);
  const auto type = mean.scalar_type();
  const int64_t groups = mean.size(2), heads = gates.size(2) / groups;
  const Tensor gate = gates.unflatten(2, {groups, heads}).select(3, 0);
  const Tensor up = d_gates.unflatten(2, {groups, heads}).sum(3);
  const Tensor d_score =
      (gate * (up - (gate * up).sum(-1, /*keepdim=*/true))).div_(temperature).to(type);
  const Tensor before = at::linear(mean, fc1);
  const Tensor d_before = at::silu_backward(at::matmul(d_score, fc2), before);
  const auto of_weight = [](const Tensor& d_out, const Tensor& in) {
    return at::mm(d_out.flatten(0, 2).t(), in.flatten(0, 2));
  };
  return {at::matmul(d_before, fc1), of_weight(d_before, mean),
          of_weight(d_score, at::silu(before))};
}

Tensor cross_entropy_(Tensor logits, const Tensor& labels, const Tensor& weight, bool gradient) {
  checked::cross_entropy_(logits, labels, weight);
  count_kernel(choice::Part::kLoss, choice::Backend::kAten);
  const Tensor label = labels.unsqueeze(1), part = weight.unsqueeze(1);
  Tensor log_p = at::log_softmax(logits, 1, weight.scalar_type());
  const Tensor loss = log_p.gather(1, label).mul_(part).neg_().squeeze(1);
  if (!gradient) return loss;
  const Tensor& p = log_p.exp_();
  p.scatter_add_(1, label, at::full_like(part, -1));
  at::mul_out(logits, p, part); // mul_out rounds as it writes.
  return loss;
}

} // namespace composed

TORCH_LIBRARY_FRAGMENT(nsa, library) {
  const auto key = c10::DispatchKey::CompositeExplicitAutograd;
  library.def("add_rms_norm(Tensor x, Tensor? addend, Tensor gain, float epsilon) "
              "-> (Tensor sum, Tensor normed, Tensor inverse)",
              torch::dispatch(key, &composed::add_rms_norm));
  library.def("add_rms_norm_backward(Tensor d_normed, Tensor? d_sum, Tensor sum, Tensor inverse, "
              "Tensor gain) -> (Tensor d_x, Tensor d_gain)",
              torch::dispatch(key, &composed::add_rms_norm_backward));
  library.def("split_heads(Tensor joined, Tensor cos, Tensor sin, int heads, int groups, "
              "int head_dimension, int rotated, bool mean) -> Tensor[]",
              torch::dispatch(key, &composed::split_heads));
  library.def("split_heads_backward(Tensor[] grads, Tensor cos, Tensor sin, int rotated, "
              "bool mean) -> Tensor",
              torch::dispatch(key, &composed::split_heads_backward));
  library.def("group_gates(Tensor mean, Tensor fc1, Tensor fc2, float temperature, int heads) "
              "-> Tensor",
              torch::dispatch(key, &composed::group_gates));
  library.def("group_gates_backward(Tensor d_gates, Tensor gates, Tensor mean, Tensor fc1, "
              "Tensor fc2, float temperature) -> (Tensor d_mean, Tensor d_fc1, Tensor d_fc2)",
              torch::dispatch(key, &composed::group_gates_backward));
  library.def("cross_entropy_(Tensor(a!) logits, Tensor labels, Tensor weight, bool gradient) "
              "-> Tensor",
              torch::dispatch(key, &composed::cross_entropy_));
}

} // namespace nsa::ops
