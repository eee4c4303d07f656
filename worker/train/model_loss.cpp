#include "worker/train/model_loss.h"

namespace nsa::train {

namespace {

at::Tensor tensor_over(std::span<const int64_t> values, int64_t rows, int64_t columns,
                       const std::shared_ptr<const data::Batch>& owner) {
  // The batch stays alive as long as a tensor looks at its memory.
  return at::from_blob(
      const_cast<int64_t*>(values.data()), {rows, columns}, [owner](void*) {},
      at::TensorOptions().dtype(at::kLong));
}

// [rows, sequence] index of the first token of each token's document.
at::Tensor document_start_tensor(const data::Batch& batch, int64_t separator) {
  at::Tensor starts = at::empty({batch.rows, batch.sequence_length}, at::kLong);
  int64_t* out = starts.data_ptr<int64_t>();
  const auto length = static_cast<size_t>(batch.sequence_length);
  for (int64_t row = 0; row < batch.rows; ++row) {
    const auto tokens = batch.inputs.subspan(static_cast<size_t>(row) * length, length);
    const std::vector<int32_t> begins = data::document_starts(tokens, separator);
    size_t next = 0;
    int64_t current = 0;
    for (size_t t = 0; t < length; ++t) {
      if (next < begins.size() && static_cast<size_t>(begins[next]) == t) current = begins[next++];
      *out++ = current;
    }
  }
  return starts;
}

} // namespace

BatchLoss make_loss(model::LanguageModel& model, at::Device device,
                    std::optional<int64_t> separator) {
  return [&model, device, separator](const std::shared_ptr<const data::Batch>& batch) {
    const bool wait = false; // loader buffers are pinned where that makes a copy asynchronous
    const at::Tensor tokens =
        tensor_over(batch->inputs, batch->rows, batch->sequence_length, batch).to(device, wait);
    const at::Tensor targets =
        tensor_over(batch->targets, batch->rows, batch->sequence_length, batch).to(device, wait);
    std::optional<at::Tensor> starts;
    if (separator) starts = document_start_tensor(*batch, *separator);
    return model.loss(tokens, targets, starts);
  };
}

std::vector<Parameter> parameters_of(const model::LanguageModel& model) {
  std::vector<Parameter> parameters;
  for (const model::NamedParameter& p : model.named_parameters())
    parameters.push_back({p.name, p.tensor, model.initial_value(p.name), p.weight_decay});
  return parameters;
}

std::map<std::string, double> gates_of(model::LanguageModel& model) {
  std::map<std::string, double> gates;
  const at::Tensor means = model.take_gate_means();
  if (!means.defined()) return gates;
  const at::Tensor host = means.to(at::kCPU).contiguous();
  for (int64_t layer = 0; layer < host.size(0); ++layer)
    for (int b = 0; b < model::kBranchCount; ++b) {
      const auto branch = static_cast<model::Branch>(b);
      if (model::has_branch(model.config().nsa, branch))
        gates[std::to_string(layer) + "/" + std::string(model::branch_name(branch))] =
            host[layer][b].item<double>();
    }
  return gates;
}

} // namespace nsa::train
