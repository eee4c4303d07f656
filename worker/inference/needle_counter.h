// Counts the codes of needle documents that a model finds (needle.h). nsa-model uses it for `nsactl
// evaluate`, and rank 0 at each evaluation with eval.needles. Use it from one thread.
#pragma once

#include "common/base/result.h"
#include "nsa_model/model/language_model.h"
#include "worker/data/source.h"
#include "worker/inference/needle.h"

#include <functional>
#include <vector>

namespace nsa::inference {

// Returns the most probable token at each answer of the document, given all true tokens before it.
// Ids from `vocabulary` on are padding and never returned. Calls `on_piece` after each piece of the
// document.
std::vector<int64_t> said_at_answers(
    model::LanguageModel& model, at::Device device, const NeedleDocument& document,
    int64_t vocabulary, const std::function<void()>& on_piece = [] {});

class NeedleCounter {
public:
  // Takes at most `most` held-out documents of each data set of needles.
  static Result<NeedleCounter> open(const std::vector<data::Source>& sources, int64_t most);

  bool empty() const { return documents_.empty(); }
  std::vector<wire::NeedleCell> count(
      model::LanguageModel& model, at::Device device,
      const std::function<void()>& on_piece = [] {}) const;

private:
  std::vector<NeedleDocument> documents_;
  int64_t vocabulary_ = 0; // vocabulary size of the tokenizer that all data sets share
};

} // namespace nsa::inference
