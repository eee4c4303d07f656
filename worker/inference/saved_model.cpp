#include "worker/inference/saved_model.h"

#include "common/safetensors/safetensors.h"
#include "common/spec/spec_json.h"
#include "common/spec/toggles.h"
#include "worker/model/kernel_setup.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

namespace nsa::inference {

namespace {

constexpr const char* kModelFile = "model.safetensors";

Status load(const safetensors::Reader& file, const model::NamedParameter& parameter) {
  const auto entry = file.entries().find(parameter.name);
  const bool narrow =
      entry != file.entries().end() && entry->second.type == safetensors::DataType::kBF16;
  const at::Tensor host = at::empty(parameter.tensor.sizes(), narrow ? at::kBFloat16 : at::kFloat);
  NSA_TRY(file.read(parameter.name,
                    narrow ? safetensors::DataType::kBF16 : safetensors::DataType::kF32,
                    host.sizes().vec(), {static_cast<std::byte*>(host.data_ptr()), host.nbytes()}));
  at::Tensor target = parameter.tensor;
  target.copy_(host);
  return {};
}

} // namespace

Status load_weights(const std::filesystem::path& checkpoint, model::LanguageModel& model) {
  const at::NoGradGuard no_grad;
  NSA_TRY_ASSIGN(const auto file, safetensors::Reader::open(checkpoint / kModelFile));
  const auto& parameters = model.named_parameters();
  if (file.entries().size() != parameters.size())
    return fail(ErrorCode::kInvalidArgument,
                checkpoint.string() + " holds " + std::to_string(file.entries().size()) +
                    " parameters, the model has " + std::to_string(parameters.size()));
  for (const model::NamedParameter& parameter : parameters)
    NSA_TRY(load(file, parameter));
  return {};
}

Result<SavedModel> open_saved_model(const wire::ModelRequest& request) {
  SavedModel saved;
  NSA_TRY_ASSIGN(saved.spec, spec::from_json(request.spec));
  const auto device = choice_from<spec::Device>(request.device);
  if (!device)
    return fail(ErrorCode::kInvalidArgument, "'" + request.device + "' is not a device",
                "use auto, cpu or cuda");
  runtime::Request open;
  open.device = *device;
  open.threads = static_cast<int>(request.threads);
  auto runtime = runtime::open_runtime(open);
  if (!runtime) {
    if (*device != spec::Device::kCpu) runtime.error().next = "use --device cpu";
    return fail(std::move(runtime).error());
  }
  saved.runtime = std::move(*runtime);
  NSA_TRY_ASSIGN(saved.precision,
                 train::choose_precision(saved.spec.precision, saved.runtime->why_bf16_is_slow()));
  NSA_TRY_ASSIGN(const auto toggles, spec::resolve_toggles({}));
  NSA_TRY_ASSIGN(
      const train::PlannedModel planned,
      train::plan_model(saved.spec, toggles, saved.runtime->device(), saved.precision.bf16));
  saved.model = std::make_unique<model::LanguageModel>(
      planned.config, saved.runtime->device(), saved.precision.bf16 ? at::kBFloat16 : at::kFloat,
      /*seed=*/0, model::Weights::kUnset);
  NSA_TRY(load_weights(request.checkpoint, *saved.model));
  return saved;
}

} // namespace nsa::inference
