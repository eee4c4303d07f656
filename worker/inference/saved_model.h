// A checkpoint's model on a device, ready for inference, without optimizer and ranks.
//
// open_saved_model() must be the first use of LibTorch in a process (runtime::open_runtime says
// why). The runtime must outlive the model.
#pragma once

#include "common/spec/run_spec.h"
#include "common/wire/model_request.h"
#include "nsa_model/model/language_model.h"
#include "worker/rules/precision.h"
#include "worker/runtime/runtime.h"

#include <memory>

namespace nsa::inference {

struct SavedModel {
  spec::RunSpec spec;
  std::unique_ptr<runtime::Runtime> runtime;
  train::Precision precision;
  std::unique_ptr<model::LanguageModel> model;
  std::string description() const { return runtime->device_name() + ", " + precision.name(); }
};

// Uses the kernels that "auto" chooses on this device, whatever the run used.
Result<SavedModel> open_saved_model(const wire::ModelRequest& request);

// Fills the parameters from model.safetensors of a checkpoint of this model. The error names the
// tensor that is missing, has another shape, or is not one of the model's.
Status load_weights(const std::filesystem::path& checkpoint, model::LanguageModel& model);

} // namespace nsa::inference
