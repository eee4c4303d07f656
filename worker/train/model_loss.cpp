#include "worker/train/model_loss.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <deque>

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

// Copies batches to the device without waiting for it, and keeps their memory from being filled
// again before the device has read it.
class BatchCopies {
public:
  explicit BatchCopies(at::Device device) : device_(device) {}

  std::pair<at::Tensor, at::Tensor> copy(const std::shared_ptr<const data::Batch>& batch) {
    const auto on_device = [&](std::span<const int64_t> values) {
      return tensor_over(values, batch->rows, batch->sequence_length, batch)
          .to(device_, /*non_blocking=*/true);
    };
    std::pair<at::Tensor, at::Tensor> copies{on_device(batch->inputs), on_device(batch->targets)};
    if (device_.is_cpu()) return copies; // these look at the batch itself, and hold it
    while (!under_way_.empty() && under_way_.front().done.query())
      under_way_.pop_front();
    c10::Event done(device_.type());
    done.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    under_way_.push_back({std::move(done), batch});
    return copies;
  }

private:
  struct UnderWay {
    c10::Event done;
    std::shared_ptr<const data::Batch> batch;
  };
  at::Device device_;
  std::deque<UnderWay> under_way_;
};

} // namespace

BatchLoss make_loss(model::LanguageModel& model, at::Device device,
                    std::optional<int64_t> separator) {
  const auto copies = std::make_shared<BatchCopies>(device);
  return [&model, copies, separator](const std::shared_ptr<const data::Batch>& batch) {
    const auto [tokens, targets] = copies->copy(batch);
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

GateMeans gates_of(model::LanguageModel& model) {
  GateMeans gates;
  if (!model.config().gate_statistics) return gates;
  for (int64_t layer = 0; layer < model.config().layers; ++layer)
    for (int b = 0; b < model::kBranchCount; ++b) {
      const auto branch = static_cast<model::Branch>(b);
      const bool computed = model::has_branch(model.config().nsa, branch);
      gates.names.push_back(
          computed ? std::to_string(layer) + "/" + std::string(model::branch_name(branch)) : "");
    }
  gates.take = [&model] { return model.take_gate_means().flatten(); };
  return gates;
}

} // namespace nsa::train
