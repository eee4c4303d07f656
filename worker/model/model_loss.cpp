#include "worker/model/model_loss.h"

#include "nsa_model/ops/step_part.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <deque>

namespace nsa::train {

namespace {

at::Tensor tensor_over(std::span<const int64_t> values, int64_t rows, int64_t columns,
                       const std::shared_ptr<const data::Batch>& owner) {
  // The tensor's deleter keeps the batch alive while a tensor uses its memory.
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

// A batch's tokens and targets, int64 [rows, sequence_length].
struct Texts {
  at::Tensor tokens, targets;
};
Texts texts_of(const std::shared_ptr<const data::Batch>& batch) {
  return {tensor_over(batch->inputs, batch->rows, batch->sequence_length, batch),
          tensor_over(batch->targets, batch->rows, batch->sequence_length, batch)};
}

// Keeps the memory of batches alive until the device has read it.
class BatchesUnderWay {
public:
  explicit BatchesUnderWay(at::Device device) : device_(device) {}

  // Call it after the copies of `batch` are enqueued.
  void keep(const std::shared_ptr<const data::Batch>& batch) {
    if (device_.is_cpu()) return; // tensors use the batch's memory, or have copied it
    while (!under_way_.empty() && under_way_.front().done.query())
      under_way_.pop_front();
    c10::Event done(device_.type());
    done.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    under_way_.push_back({std::move(done), batch});
  }

private:
  struct UnderWay {
    c10::Event done;
    std::shared_ptr<const data::Batch> batch;
  };
  at::Device device_;
  std::deque<UnderWay> under_way_;
};

// A method of the model that takes a batch on the model's device.
using Method = at::Tensor (model::LanguageModel::*)(const at::Tensor&, const at::Tensor&,
                                                    const std::optional<at::Tensor>&);
std::function<at::Tensor(const std::shared_ptr<const data::Batch>&)>
of_batches(model::LanguageModel& model, Method method, at::Device device,
           std::optional<int64_t> separator) {
  const auto under_way = std::make_shared<BatchesUnderWay>(device);
  return [&model, method, device, under_way,
          separator](const std::shared_ptr<const data::Batch>& batch) {
    at::Tensor tokens, targets;
    std::optional<at::Tensor> starts;
    {
      const ops::PartScope part(ops::StepPart::kData);
      const Texts host = texts_of(batch);
      tokens = host.tokens.to(device, /*non_blocking=*/true);
      targets = host.targets.to(device, /*non_blocking=*/true);
      under_way->keep(batch);
      if (separator) starts = document_start_tensor(*batch, *separator);
    }
    return (model.*method)(tokens, targets, starts);
  };
}

} // namespace

BatchLoss make_loss(model::LanguageModel& model, at::Device device,
                    std::optional<int64_t> separator) {
  return of_batches(model, &model::LanguageModel::loss, device, separator);
}

TokenLosses make_token_losses(model::LanguageModel& model, at::Device device,
                              std::optional<int64_t> separator) {
  return of_batches(model, &model::LanguageModel::token_losses, device, separator);
}

StagedLoss make_staged_loss(model::LanguageModel& model, at::Device device) {
  const auto under_way = std::make_shared<BatchesUnderWay>(device);
  const auto staged = std::make_shared<Texts>();
  const auto bring = [device, under_way, staged](const std::shared_ptr<const data::Batch>& batch) {
    const ops::PartScope part(ops::StepPart::kData);
    const Texts host = texts_of(batch);
    if (!staged->tokens.defined() || staged->tokens.sizes() != host.tokens.sizes())
      *staged = {at::empty_like(host.tokens, device), at::empty_like(host.targets, device)};
    staged->tokens.copy_(host.tokens, /*non_blocking=*/true);
    staged->targets.copy_(host.targets, /*non_blocking=*/true);
    under_way->keep(batch);
  };
  return {bring,
          [&model, staged] { return model.loss(staged->tokens, staged->targets, std::nullopt); }};
}

namespace {

// Returns "3" for "blocks.3.attention.w_q.weight" and "final_norm" for "final_norm.weight". Gates
// are also reported by layer, and gradients vanish or explode between depths.
std::string group_of(const std::string& parameter) {
  constexpr std::string_view kBlocks = "blocks.";
  const size_t begin = parameter.starts_with(kBlocks) ? kBlocks.size() : 0;
  return parameter.substr(begin, parameter.find('.', begin) - begin);
}

} // namespace

std::vector<Parameter> parameters_of(const model::LanguageModel& model, bool initial_values) {
  std::vector<Parameter> parameters;
  for (const model::NamedParameter& p : model.named_parameters())
    parameters.push_back({p.name, p.tensor,
                          initial_values ? model.initial_value(p.name) : at::Tensor(),
                          p.weight_decay, group_of(p.name)});
  return parameters;
}

LayerFigures gates_of(model::LanguageModel& model) {
  LayerFigures gates;
  if (!model.config().gate_statistics) return gates;
  for (int64_t layer = 0; layer < model.config().layers; ++layer)
    for (int b = 0; b < model::kBranchCount; ++b) {
      const auto branch = static_cast<model::Branch>(b);
      const bool computed = model::has_branch(model.config().nsa, branch);
      gates.names.push_back(
          computed ? "gates/" + std::to_string(layer) + "/" + std::string(name_of(branch)) : "");
    }
  gates.take = [&model] { return model.take_gate_means().flatten(); };
  return gates;
}

LayerFigures selection_of(model::LanguageModel& model) {
  LayerFigures selection;
  if (!model.config().selection_statistics) return selection;
  for (int64_t layer = 0; layer < model.config().layers; ++layer)
    for (const char* figure : {"selected_distance/", "selected_overlap/"})
      selection.names.push_back(figure + std::to_string(layer));
  selection.take = [&model] { return model.take_selection_figures().flatten(); };
  selection.watch = [&model](bool on) { model.watch_selection(on); };
  return selection;
}

} // namespace nsa::train
