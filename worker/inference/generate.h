// Continues a text token by token. It reads the prompt in pieces into caches (prefill), then
// computes one token a step (decode). Use it from one thread.
#pragma once

#include "nsa_model/model/language_model.h"
#include "worker/inference/token_sampler.h"

#include <functional>
#include <vector>

namespace nsa::inference {

struct Generation {
  std::vector<int64_t> prompt; // must not be empty
  int64_t tokens = 100;        // maximum number of tokens
  int64_t vocabulary = 0;      // ids from here on are padding and never sampled
  int64_t end = -1;            // this token ends the text and is not passed on
  SamplingRule rule;
};

struct Generated {
  int64_t tokens = 0; // tokens generated, Generation::end not counted
  bool ended = false; // Generation::end ended the text
  double prefill_seconds = 0, decode_seconds = 0;
};

Generated generate(model::LanguageModel& model, at::Device device, const Generation& what,
                   const std::function<void(int64_t token)>& on_token);

} // namespace nsa::inference
