// Continues a text token by token: the prompt in pieces into caches (prefill), then a token a step
// (decode). One thread.
#pragma once

#include "nsa_model/model/language_model.h"
#include "worker/inference/token_sampler.h"

#include <functional>
#include <vector>

namespace nsa::inference {

struct Generation {
  std::vector<int64_t> prompt; // not empty
  int64_t tokens = 100;        // at most
  int64_t vocabulary = 0;      // ids from here on are padding and never drawn
  int64_t end = -1;            // this token ends the text; it is not told
  SamplingRule rule;
};

struct Generated {
  int64_t tokens = 0; // without the one that ended it
  bool ended = false; // by Generation::end
  double prefill_seconds = 0, decode_seconds = 0;
};

Generated generate(model::LanguageModel& model, at::Device device, const Generation& what,
                   const std::function<void(int64_t token)>& on_token);

} // namespace nsa::inference
