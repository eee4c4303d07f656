// A checkpoint's model on a device, ready to compute with: no optimizer, no ranks.
//
// open_saved_model() must be the first thing in a process that touches LibTorch
// (runtime::open_runtime says why). The runtime outlives the model.
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

// The kernels are those that "auto" means on this device, whatever the run had.
Result<SavedModel> open_saved_model(const wire::ModelRequest& request);

// Fills the parameters from model.safetensors of a checkpoint, which must be of this model: the
// error names the tensor that is missing, of another shape, or not one of the model's.
Status load_weights(const std::filesystem::path& checkpoint, model::LanguageModel& model);

} // namespace nsa::inference
