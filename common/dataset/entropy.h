// Unigram and bigram entropy of a token sequence (definitions: manifest.h, Entropy). It does no I/O
// except page faults of mapped shards; callable from any thread.
#pragma once

#include "common/dataset/manifest.h"

#include <cstdint>
#include <span>
#include <vector>

namespace nsa::dataset {

// Counts tokens and pairs, piece by piece. For vocabularies of up to 1,024 ids it counts all pairs
// in a table. For larger ones it keeps the first 32 Mi tokens and sorts them by pair (128 MiB).
class EntropyMeter {
public:
  explicit EntropyMeter(int32_t vocabulary_size);
  // Adds the next piece of the sequence; the pair across the boundary counts, too.
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
  std::vector<Token> sequence_;      // sparse: all tokens added
};

} // namespace nsa::dataset
