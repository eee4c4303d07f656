// Draws the next token from a model's logits. Pure: the same logits and the same seed give the same
// tokens, on every device and build. One thread.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace nsa::inference {

struct SamplingRule {
  double temperature = 1; // 0: the most probable token, the lowest id among equals
  double top_p = 1;       // the most probable tokens that together have this probability
  uint64_t seed = 0;
};

class TokenSampler {
public:
  explicit TokenSampler(const SamplingRule& rule) : rule_(rule), random_(rule.seed) {}

  // `logits` of the ids 0 ... ; what is not to be drawn is left out at the end.
  int64_t next(std::span<const float> logits);

private:
  SamplingRule rule_;
  std::mt19937_64 random_;
};

// Bytes of a text that comes in pieces: gives back what is whole UTF-8, and keeps a character that
// is not there in full yet.
class Utf8Pieces {
public:
  std::string add(std::string_view bytes);
  std::string rest() { return std::move(held_); } // at the end: as it is

private:
  std::string held_;
};

} // namespace nsa::inference
