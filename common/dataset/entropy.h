// Unigram and bigram entropy of a token sequence (definitions: manifest.h, Entropy). Pure apart
// from reading the mapped shards; any thread.
#pragma once

#include "common/dataset/manifest.h"

#include <cstdint>
#include <span>
#include <vector>

namespace nsa::dataset {

// Counts tokens and pairs, piece by piece. Vocabularies of up to 1,024 ids are counted whole, in a
// table; of larger ones the first 32 Mi tokens are kept and sorted by pair (128 MiB).
class EntropyMeter {
public:
  explicit EntropyMeter(int32_t vocabulary_size);
  // The next piece of the sequence; the pair across the border counts too.
  void add(std::span<const Token> tokens);
  Entropy measure() const;

private:
  bool dense() const { return !pair_counts_.empty(); }
  double sparse_pair_terms(const std::vector<int64_t>& firsts) const;

  int64_t vocabulary_size_;
  int64_t tokens_ = 0;
  int64_t previous_ = -1;
  std::vector<int64_t> counts_;
  std::vector<int64_t> pair_counts_; // dense: [vocabulary, vocabulary]
  std::vector<Token> sequence_;      // sparse: all that was added
};

} // namespace nsa::dataset
