// Short texts that a model writes during training (eval.samples). Each begins like a document. The
// seeds come from the run, so texts of two evaluations differ only by what the model has learned. A
// repeated step writes the same texts. Use it from one thread.
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
  // Loads the tokenizer from the data set's copy. write() puts `count` texts into
  // folder/step-<n>.txt.
  static Result<SampleWriter> open(const dataset::Dataset& data, int64_t count, uint64_t seed,
                                   std::filesystem::path folder);

  // Writes the file atomically, and each text to the log. Failures are logged. Calls `on_token`
  // after each token.
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
