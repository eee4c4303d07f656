#include "nsa_model/kernels/fused/documents.h"

#include <algorithm>

#include "nsa_model/kernels/document_copy/document_copy.h"
#include "nsa_model/kernels/fused/workspace.h"

namespace nsa::kernels {
namespace {

template <typename T> T* advance(T* pointer, int64_t rows, int width) {
  return pointer == nullptr ? nullptr : pointer + rows * width;
}

// Row length in elements of a token (or compressed token), in tensors of each kind.
struct Widths {
  int query, key, heads, gates, slots;

  explicit Widths(const AttentionShape& shape)
      : query(shape.groups * shape.heads * shape.head_dim), key(shape.groups * shape.head_dim),
        heads(shape.groups * shape.heads), gates(heads * kBranches), slots(shape.groups * kSlots) {}
};

// The same inputs without the addresses of branches that are off.
FusedInputs without_absent(const FusedInputs& inputs) {
  FusedInputs only = inputs;
  for (int branch = 0; branch < kBranches; ++branch)
    if (!is_on(inputs, branch)) only.v[branch] = nullptr;
  if (!is_on(inputs, 0)) only.pool_k = only.pool_v = nullptr;
  return only;
}

// First row of a batch in the caller's tensors, if it is contiguous there.
struct PackedRows {
  int64_t token, compressed;

  PackedRows(const AttentionShape& shape, const DocumentBatch& batch) {
    const Document& first = batch.documents.front();
    token = int64_t{first.row} * shape.sequence + first.begin;
    compressed = int64_t{first.row} * compressed_count(shape.sequence) + first.compressed_begin;
  }
};

__nv_bfloat16* out_in_place(const AttentionShape& shape, __nv_bfloat16* out,
                            const DocumentBatch& batch) {
  return advance(out, PackedRows(shape, batch).token, Widths(shape).query);
}

// Pooled keys and values are saved, so the kernels read them there, wherever the tokens are.
void take_pooled(FusedInputs& one, const FusedInputs& all, const DocumentBatch& batch) {
  if (all.pool_k == nullptr) return;
  const Widths width(all.shape);
  one.k[0] = advance(all.k[0], batch.compressed_begin, width.key);
  one.v[0] = advance(all.v[0], batch.compressed_begin, width.key);
}

// Copies of a batch's documents in a workspace, and the tables of the copies before and after the
// kernels.
class Filled {
public:
  Filled(const FusedInputs& all, const DocumentBatch& batch, Carver& carver)
      : batch_(&batch), carver_(&carver), whole_(all.shape), width_(all.shape) {
    inputs = all;
    inputs.shape = batch.shape(all.shape);
    for (int branch = 0; branch < kBranches; ++branch)
      on_[branch] = is_on(all, branch);
    tokens_ = static_cast<std::size_t>(inputs.shape.batch) * inputs.shape.sequence;
    compressed_ = static_cast<std::size_t>(inputs.shape.batch) * compressed_count(batch.length);
    inputs.q = before(all.q, width_.query);
    inputs.gates = before(all.gates, width_.gates);
    for (int branch = 1; branch < kBranches; ++branch) {
      inputs.k[branch] = before(all.k[branch], width_.key);
      inputs.v[branch] = before(all.v[branch], width_.key);
    }
    if (all.pool_k == nullptr) {
      inputs.k[0] = before(all.k[0], width_.key, true);
      inputs.v[0] = before(all.v[0], width_.key, true);
    }
  }

  FusedInputs inputs;

  void forward(const FusedInputs& all, __nv_bfloat16* packed_out) {
    inputs.pool_k = before(all.pool_k, width_.key);
    inputs.pool_v = before(all.pool_v, width_.key);
    inputs.given_indices = before(all.given_indices, width_.slots, false, -1);
    out = behind(packed_out, width_.query);
  }
  __nv_bfloat16* out = nullptr;

  // The backward does not read un-pooled keys and given indices; it only tests whether there are
  // any.
  void backward(const FusedGradients& all) {
    gradients.d_out = before(all.d_out, width_.query);
    gradients.d_q = behind(all.d_q, width_.query);
    gradients.d_gates = behind(all.d_gates, width_.gates);
    for (int branch = 0; branch < kBranches; ++branch) {
      const bool compressed = branch == 0 && inputs.pool_k == nullptr;
      gradients.d_k[branch] =
          on_[branch] ? behind(all.d_k[branch], width_.key, compressed) : nullptr;
      gradients.d_v[branch] =
          on_[branch] ? behind(all.d_v[branch], width_.key, compressed) : nullptr;
    }
  }
  FusedGradients gradients = {};

  cudaError_t copy(CopyDirection direction, cudaStream_t stream) const {
    const Table& table = direction == CopyDirection::kToFilled ? before_ : behind_;
    return launch_document_copy({.shape = whole_,
                                 .batch = batch_,
                                 .direction = direction,
                                 .tensors = {table.tensors, table.count}},
                                stream);
  }

private:
  struct Table {
    DocumentTensor tensors[kDocumentTensors];
    std::size_t count = 0;
  };

  // Registers a tensor to copy before or after the kernels; nullptr if there is none.
  template <typename T>
  const T* before(const T* packed, int width, bool compressed = false, int32_t filling = 0) {
    return add(before_, const_cast<T*>(packed), width, compressed, filling);
  }
  template <typename T> T* behind(T* packed, int width, bool compressed = false) {
    return add(behind_, packed, width, compressed, 0);
  }
  template <typename T>
  T* add(Table& table, T* packed, int width, bool compressed, int32_t filling) {
    if (packed == nullptr) return nullptr;
    // At least one row, because a non-null pointer means that the branch is on.
    const std::size_t rows = std::max<std::size_t>(1, compressed ? compressed_ : tokens_);
    T* filled = carver_->take<T>(rows * static_cast<std::size_t>(width));
    table.tensors[table.count++] = {packed, filled, width * static_cast<int>(sizeof(T)), compressed,
                                    filling};
    return filled;
  }

  const DocumentBatch* batch_;
  Carver* carver_;
  AttentionShape whole_;
  Widths width_;
  std::size_t tokens_, compressed_;
  bool on_[kBranches];
  Table before_, behind_;
};

// For sizes: gradients with any non-null pointer, if there are any.
FusedGradients some_gradients(const FusedInputs& inputs) {
  FusedGradients some;
  some.d_out = inputs.q;
  some.d_q = const_cast<__nv_bfloat16*>(inputs.q);
  some.d_gates = const_cast<float*>(inputs.gates);
  for (int branch = 0; branch < kBranches; ++branch) {
    some.d_k[branch] = const_cast<__nv_bfloat16*>(inputs.k[branch]);
    some.d_v[branch] = const_cast<__nv_bfloat16*>(inputs.v[branch]);
  }
  return some;
}

// For sizes: the same call with the shape of a batch.
FusedInputs batch_of(const FusedInputs& all, const DocumentBatch& batch) {
  FusedInputs one = all;
  one.shape = batch.shape(all.shape);
  return one;
}
std::size_t forward_bytes(const FusedInputs& inputs) {
  return fused_forward_workspace_bytes(inputs);
}
std::size_t backward_bytes(const FusedInputs& inputs) {
  return fused_backward_workspace_bytes(inputs);
}

// Bytes of the batch that needs the most. The kernels' own part comes first.
template <typename KernelBytes, typename Copies>
std::size_t most_bytes(const FusedInputs& inputs, const DocumentPlan& plan,
                       KernelBytes kernel_bytes, Copies copies) {
  std::size_t most = 0;
  for (const DocumentBatch& batch : plan.batches) {
    Carver carver(nullptr);
    carver.take<char>(kernel_bytes(batch_of(inputs, batch)));
    if (!batch.in_place) {
      Filled filled(inputs, batch, carver);
      copies(filled);
    }
    most = std::max(most, carver.used());
  }
  return most;
}

// Runs one batch after another by `launch(inputs, saved, results, workspace)`. A batch in place
// gets the results of `in_place(batch)`. Others run between copies with the results of
// `fill(filled)`.
template <typename KernelBytes, typename InPlace, typename Fill, typename Launch>
cudaError_t launch_batches(const FusedInputs& all, const DocumentPlan& plan,
                           const FusedSaved& saved, void* workspace, cudaStream_t stream,
                           KernelBytes kernel_bytes, InPlace in_place, Fill fill, Launch launch) {
  Sequence run;
  Carver lists(saved.lists);
  for (const DocumentBatch& batch : plan.batches) {
    const AttentionShape shape = batch.shape(all.shape);
    const FusedSaved kept =
        saved_of(all.shape, saved, batch, lists.take<char>(fused_list_bytes(shape)));
    if (batch.in_place) {
      FusedInputs one = inputs_in_place(all, batch);
      take_pooled(one, all, batch);
      run.then([&] { return launch(one, kept, in_place(batch), workspace); });
      continue;
    }
    Carver carver(workspace);
    void* own = carver.take<char>(kernel_bytes(batch_of(all, batch)));
    Filled filled(all, batch, carver);
    const auto results = fill(filled);
    take_pooled(filled.inputs, all, batch);
    run.then([&] { return filled.copy(CopyDirection::kToFilled, stream); })
        .then([&] { return launch(filled.inputs, kept, results, own); })
        .then([&] { return filled.copy(CopyDirection::kToPacked, stream); });
  }
  return run.error();
}

} // namespace

FusedInputs inputs_in_place(const FusedInputs& all, const DocumentBatch& batch) {
  const Widths width(all.shape);
  const auto [token, compressed] = PackedRows(all.shape, batch);
  FusedInputs one = all;
  one.shape = batch.shape(all.shape);
  one.q = advance(all.q, token, width.query);
  for (int branch = 0; branch < kBranches; ++branch) {
    const int64_t row = branch == 0 ? compressed : token;
    one.k[branch] = advance(all.k[branch], row, width.key);
    one.v[branch] = advance(all.v[branch], row, width.key);
  }
  one.pool_k = advance(all.pool_k, token, width.key);
  one.pool_v = advance(all.pool_v, token, width.key);
  one.given_indices = advance(all.given_indices, token, width.slots);
  one.gates = advance(all.gates, token, width.gates);
  return one;
}

FusedGradients gradients_in_place(const FusedInputs& inputs, const FusedGradients& all,
                                  const DocumentBatch& batch) {
  const Widths width(inputs.shape);
  const auto [token, compressed] = PackedRows(inputs.shape, batch);
  FusedGradients one = all;
  one.d_out = advance(all.d_out, token, width.query);
  one.d_q = advance(all.d_q, token, width.query);
  for (int branch = 0; branch < kBranches; ++branch) {
    const int64_t row = branch == 0 && inputs.pool_k == nullptr ? compressed : token;
    one.d_k[branch] = advance(all.d_k[branch], row, width.key);
    one.d_v[branch] = advance(all.d_v[branch], row, width.key);
  }
  one.d_gates = advance(all.d_gates, token, width.gates);
  return one;
}

FusedSaved saved_of(const AttentionShape& shape, const FusedSaved& all, const DocumentBatch& batch,
                    void* lists) {
  const Widths width(shape);
  FusedSaved one = all;
  for (int branch = 0; branch < kBranches; ++branch) {
    one.branch_out[branch] = advance(all.branch_out[branch], batch.token_begin, width.query);
    one.branch_lse[branch] = advance(all.branch_lse[branch], batch.token_begin, width.heads);
  }
  one.indices = advance(all.indices, batch.token_begin, width.slots);
  one.lists = lists;
  return one;
}

std::size_t documents_list_bytes(const AttentionShape& shape, const DocumentPlan& plan) {
  std::size_t bytes = 0;
  for (const DocumentBatch& batch : plan.batches)
    bytes += fused_list_bytes(batch.shape(shape));
  return bytes;
}

std::size_t documents_forward_workspace_bytes(const FusedInputs& inputs, const DocumentPlan& plan) {
  const FusedInputs all = without_absent(inputs);
  return most_bytes(all, plan, forward_bytes, [&](Filled& filled) {
    filled.forward(all, const_cast<__nv_bfloat16*>(all.q));
  });
}

std::size_t documents_backward_workspace_bytes(const FusedInputs& inputs,
                                               const DocumentPlan& plan) {
  const FusedInputs all = without_absent(inputs);
  return most_bytes(all, plan, backward_bytes,
                    [&](Filled& filled) { filled.backward(some_gradients(all)); });
}

cudaError_t launch_documents_forward(const FusedInputs& inputs, const DocumentPlan& plan,
                                     const FusedSaved& saved, __nv_bfloat16* out, void* workspace,
                                     cudaStream_t stream) {
  const FusedInputs all = without_absent(inputs);
  return launch_batches(
      all, plan, saved, workspace, stream, forward_bytes,
      [&](const DocumentBatch& batch) { return out_in_place(all.shape, out, batch); },
      [&](Filled& filled) {
        filled.forward(all, out);
        return filled.out;
      },
      [&](const FusedInputs& one, const FusedSaved& kept, __nv_bfloat16* its_out, void* own) {
        return launch_fused_forward(one, kept, its_out, own, stream);
      });
}

cudaError_t launch_documents_backward(const FusedInputs& inputs, const DocumentPlan& plan,
                                      const FusedSaved& saved, const FusedGradients& gradients,
                                      void* workspace, cudaStream_t stream) {
  const FusedInputs all = without_absent(inputs);
  return launch_batches(
      all, plan, saved, workspace, stream, backward_bytes,
      [&](const DocumentBatch& batch) { return gradients_in_place(all, gradients, batch); },
      [&](Filled& filled) {
        filled.backward(gradients);
        return filled.gradients;
      },
      [&](const FusedInputs& one, const FusedSaved& kept, const FusedGradients& its_gradients,
          void* own) { return launch_fused_backward(one, kept, its_gradients, own, stream); });
}

bool is_one_in_place(const DocumentPlan& plan) {
  return plan.batches.size() == 1 && plan.batches.front().in_place;
}

cudaError_t launch_documents_backward(const FusedInputs& inputs, const DocumentPlan& plan,
                                      const FusedSaved& saved, const FusedGradients& gradients,
                                      const ScratchOf& scratch, cudaStream_t stream) {
  if (!is_one_in_place(plan)) return cudaErrorInvalidValue;
  const FusedInputs all = without_absent(inputs);
  const DocumentBatch& batch = plan.batches.front();
  FusedInputs one = inputs_in_place(all, batch);
  take_pooled(one, all, batch);
  return launch_fused_backward(one, saved_of(all.shape, saved, batch, saved.lists),
                               gradients_in_place(all, gradients, batch), scratch, stream);
}

} // namespace nsa::kernels
