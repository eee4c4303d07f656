// Samples the next token from a model's logits. The same logits and seed give the same tokens, on
// every device and build. Use it from one thread.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace nsa::inference {

struct SamplingRule {
  double temperature = 1; // 0: the most probable token; among equal ones the lowest id
  double top_p = 1;       // sample from the most probable tokens that together have this
                          // probability
  uint64_t seed = 0;
};

class TokenSampler {
public:
  explicit TokenSampler(const SamplingRule& rule) : rule_(rule), random_(rule.seed) {}

  // `logits` are those of ids 0, 1, ...; ids that must not be sampled are left out at the end.
  int64_t next(std::span<const float> logits);

private:
  SamplingRule rule_;
  std::mt19937_64 random_;
};

// Splits a byte stream at UTF-8 character boundaries. It returns complete characters and holds back
// an incomplete one.
class Utf8Pieces {
public:
  std::string add(std::string_view bytes);
  std::string rest() { return std::move(held_); } // at the end; may be invalid UTF-8

private:
  std::string held_;
};

} // namespace nsa::inference
