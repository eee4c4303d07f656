// Short texts that a model in training writes (eval.samples). Each begins as a document does. The
// seeds are the run's, so texts of two evaluations differ by what the model has learned, and a
// repeated step writes the same. One thread.
#pragma once

#include "common/base/result.h"
#include "common/dataset/dataset.h"
#include "nsa_model/model/language_model.h"

#include <filesystem>
#include <functional>
#include <memory>

namespace nsa::inference {

inline constexpr int64_t kSampleTokens = 64;

class SampleWriter {
public:
  // The tokenizer's file is the data set's copy. `count` texts go to folder/step-<n>.txt.
  static Result<SampleWriter> open(const dataset::Dataset& data, int64_t count, uint64_t seed,
                                   std::filesystem::path folder);

  // Writes the file whole, and each text into the log. What fails is logged. Calls `on_token` after
  // each token.
  void write(model::LanguageModel& model, at::Device device, uint64_t step,
             const std::function<void()>& on_token) const;

private:
  std::string sample(model::LanguageModel& model, at::Device device, uint64_t seed,
                     const std::function<void()>& on_token) const;

  std::shared_ptr<const dataset::Tokenizer> tokenizer_;
  int64_t count_ = 0;
  uint64_t seed_ = 0;
  std::filesystem::path folder_;
};

} // namespace nsa::inference
