// Opens what rank 0 decodes at evaluations: samples (eval.samples) and needles (eval.needles).
#pragma once

#include "common/spec/run_spec.h"
#include "nsa_model/model/language_model.h"
#include "worker/data/source.h"
#include "worker/trainer/decoding_hook.h"

#include <filesystem>
#include <vector>

namespace nsa::train {

// The result keeps a reference to `model`. Error: kInvalidArgument if eval.needles is set and no
// data set contains needles.
Result<Decoding> open_decoding(const spec::RunSpec& spec, const std::vector<data::Source>& sources,
                               model::LanguageModel& model, at::Device device,
                               const std::filesystem::path& run_folder);

} // namespace nsa::train
