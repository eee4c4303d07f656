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

// Returns a view of x: one chunk for each rank of the group, [n, B, S / n, N / n * ...].
Tensor chunks_of(const Tensor& x, Direction direction, int64_t n) {
  const int64_t along = direction == Direction::kToWholeSequence ? 2 : 1;
  TORCH_CHECK(x.dim() >= 4 && x.size(along) % n == 0, "dimension ", along, " of ", x.sizes(),
              " does not divide over ", n, " ranks");
  return x.flatten(3).unflatten(along, {n, x.size(along) / n}).movedim(along, 0).flatten(3);
}

// An empty tensor for what the ranks' chunks of x become.
Tensor joined_like(const Tensor& x, Direction direction, int64_t n) {
  std::vector<int64_t> sizes = x.sizes().vec();
  const bool whole = direction == Direction::kToWholeSequence;
  sizes[whole ? 1 : 2] *= n;
  sizes[whole ? 2 : 1] /= n;
  return at::empty(sizes, x.options());
}

// The chunks of one tensor, and where those of its result lie: [n, B, S / n, N / n * ...] each.
struct Chunks {
  Tensor sent, received;
  int64_t at = 0; // of a chunk among those for the same rank, in bytes
  Tensor in(const Tensor& row) const {
    return row.narrow(0, at, sent[0].nbytes()).view(sent.scalar_type()).view(sent[0].sizes());
  }
};

// Copies of 8-byte words are faster than of BF16, so chunks become words if their rows allow it.
void use_words(Chunks& chunks) {
  constexpr int64_t kWord = sizeof(int64_t);
  for (const Tensor& x : {chunks.sent, chunks.received})
    for (const int64_t elements : {x.size(3), x.storage_offset()})
      if (elements * x.element_size() % kWord != 0) return;
  chunks.sent = chunks.sent.view(at::kLong);
  chunks.received = chunks.received.view(at::kLong);
}

variable_list exchange(at::TensorList tensors, const ContextGroup& group, Direction direction) {
  const ops::PartScope part(ops::StepPart::kContext);
  std::vector<int64_t> others;
  for (int64_t rank = 0; rank < group.size; ++rank)
    if (rank != group.rank) others.push_back(rank);
  variable_list results;
  std::vector<Chunks> all;
  int64_t bytes = 0;
  for (const Tensor& tensor : tensors) {
    const Tensor x = tensor.contiguous();
    results.push_back(joined_like(x, direction, group.size));
    all.push_back({chunks_of(x, direction, group.size),
                   chunks_of(results.back(), opposite(direction), group.size), bytes});
    use_words(all.back());
    // Each chunk in a row begins where words are aligned, and so does each row.
    constexpr int64_t kAlignment = 16;
    bytes += (int64_t(all.back().sent[0].nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
  }
  // A chunk that is one piece of memory needs no buffer. It must be as long as a row of a buffer,
  // because the other rank may need one.
  const auto row_for = [&](const Tensor& chunks) {
    const bool alone =
        all.size() == 1 && others.size() == 1 && int64_t(chunks[0].nbytes()) == bytes;
    if (alone && chunks[others[0]].is_contiguous())
      return chunks[others[0]].view({1, -1}).view(at::kByte);
    return at::empty({int64_t(others.size()), bytes}, chunks.options().dtype(at::kByte));
  };
  const Tensor out = row_for(all[0].sent), in = row_for(all[0].received);
  const auto is_buffer = [](const Tensor& rows, const Tensor& chunks) {
    return !rows.is_alias_of(chunks);
  };
  for (size_t i = 0; i < others.size(); ++i)
    for (const Chunks& chunks : all)
      if (is_buffer(out, chunks.sent)) chunks.in(out[int64_t(i)]).copy_(chunks.sent[others[i]]);
  const std::function<void()> wait = group.all_to_all(out, in);
  try {
    for (const Chunks& chunks : all)
      chunks.received[group.rank].copy_(chunks.sent[group.rank]);
  } catch (...) {
    wait(); // the exchange uses `out` and `in`
    throw;
  }
  wait();
  for (size_t i = 0; i < others.size(); ++i)
    for (const Chunks& chunks : all)
      if (is_buffer(in, chunks.received))
        chunks.received[others[i]].copy_(chunks.in(in[int64_t(i)]));
  return results;
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
