#include "nsa_model/model/context_group.h"

#include "nsa_model/ops/step_part.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

namespace nsa::model {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum class Direction : uint8_t { kToWholeSequence, kToAllHeads };
Direction opposite(Direction d) {
  return d == Direction::kToAllHeads ? Direction::kToWholeSequence : Direction::kToAllHeads;
}

// Returns one chunk for each rank of the group: [n, B, S / n, N / n, ...].
Tensor cut(const Tensor& x, Direction direction, int64_t n) {
  const int64_t along = direction == Direction::kToWholeSequence ? 2 : 1;
  TORCH_CHECK(x.dim() >= 3 && x.size(along) % n == 0, "dimension ", along, " of ", x.sizes(),
              " does not divide over ", n, " ranks");
  return x.unflatten(along, {n, x.size(along) / n}).movedim(along, 0).contiguous();
}

// Concatenates the chunks of all ranks along the sequence or along the heads.
Tensor join(const Tensor& chunks, Direction direction) {
  const int64_t along = direction == Direction::kToWholeSequence ? 1 : 2;
  return chunks.movedim(0, along).flatten(along, along + 1).contiguous();
}

variable_list exchange(at::TensorList tensors, const ContextGroup& group, Direction direction) {
  const ops::PartScope part(ops::StepPart::kContext);
  std::vector<Tensor> sent, rows;
  for (const Tensor& x : tensors) {
    sent.push_back(cut(x, direction, group.size));
    rows.push_back(sent.back().flatten(1).view(at::kByte));
  }
  const Tensor received = group.all_to_all(at::cat(rows, 1));
  variable_list joined;
  int64_t begin = 0;
  for (size_t i = 0; i < sent.size(); ++i) {
    const int64_t bytes = rows[i].size(1);
    // Head dimensions are even, so each chunk begins at an address that is aligned for its type.
    const Tensor chunk = received.narrow(1, begin, bytes).view(sent[i].scalar_type());
    joined.push_back(join(chunk.unflatten(1, sent[i].sizes().slice(1)), direction));
    begin += bytes;
  }
  return joined;
}

struct Exchange : torch::autograd::Function<Exchange> {
  struct Held : torch::CustomClassHolder {
    Held(SharedGroup g, Direction d) : group(std::move(g)), direction(d) {}
    SharedGroup group;
    Direction direction;
  };

  static variable_list forward(AutogradContext* context, at::TensorList tensors,
                               const SharedGroup& group, Direction direction) {
    context->saved_data["held"] =
        c10::IValue::make_capsule(c10::make_intrusive<Held>(group, direction));
    return exchange(tensors, *group, direction);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto held =
        c10::static_intrusive_pointer_cast<Held>(context->saved_data["held"].toCapsule());
    variable_list result = exchange(gradients, *held->group, opposite(held->direction));
    result.resize(result.size() + 2); // no gradient for the group and the direction
    return result;
  }
};

} // namespace

Tensor ContextGroup::part_of(const Tensor& x) const {
  TORCH_CHECK(x.size(-1) % size == 0, x.size(-1), " tokens do not divide over ", size, " ranks");
  const int64_t length = x.size(-1) / size;
  return x.narrow(-1, rank * length, length);
}

std::vector<Tensor> to_whole_sequence(const std::vector<Tensor>& parts, const SharedGroup& group) {
  return Exchange::apply(at::TensorList(parts), group, Direction::kToWholeSequence);
}

Tensor to_all_heads(const Tensor& whole, const SharedGroup& group) {
  const std::vector<Tensor> one{whole};
  return Exchange::apply(at::TensorList(one), group, Direction::kToAllHeads).front();
}

} // namespace nsa::model
