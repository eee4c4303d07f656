#include "common/dataset/entropy.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace nsa::dataset {
namespace {

constexpr int64_t kLargestTable = 1024;
constexpr int64_t kMostSparseTokens = int64_t{32} << 20;
constexpr int64_t kMany = 2048; // from this number on, successors are counted in a table instead of
                                // sorted

// Returns - c ln c, the contribution of one count to an entropy.
double term(int64_t count) {
  const auto c = static_cast<double>(count);
  return count > 0 ? -c * std::log(c) : 0.0;
}

} // namespace

EntropyMeter::EntropyMeter(int32_t vocabulary_size)
    : vocabulary_size_(vocabulary_size), counts_(static_cast<size_t>(vocabulary_size)) {
  if (vocabulary_size_ <= kLargestTable)
    pair_counts_.resize(static_cast<size_t>(vocabulary_size_ * vocabulary_size_));
}

void EntropyMeter::add(std::span<const Token> tokens) {
  if (!dense()) {
    const auto room = static_cast<size_t>(kMostSparseTokens - tokens_);
    tokens = tokens.first(std::min(tokens.size(), room));
    sequence_.insert(sequence_.end(), tokens.begin(), tokens.end());
  }
  for (const Token token : tokens) {
    ++counts_[token];
    if (dense() && previous_ >= 0)
      ++pair_counts_[static_cast<size_t>(previous_ * vocabulary_size_ + token)];
    previous_ = token;
  }
  tokens_ += static_cast<int64_t>(tokens.size());
}

// Returns the sum of term() over the counts of pairs. A counting sort by the first token brings the
// successors of each token together; these are then sorted or counted.
double EntropyMeter::sparse_pair_terms(const std::vector<int64_t>& firsts) const {
  std::vector<int64_t> end(firsts.size()); // end of each token's successors so far
  for (size_t token = 1; token < firsts.size(); ++token)
    end[token] = end[token - 1] + firsts[token - 1];
  std::vector<Token> successors(sequence_.size() - 1);
  for (size_t i = 0; i + 1 < sequence_.size(); ++i)
    successors[static_cast<size_t>(end[sequence_[i]]++)] = sequence_[i + 1];
  double sum = 0;
  std::vector<int64_t> counts(firsts.size());
  for (size_t token = 0; token < firsts.size(); ++token) {
    const auto last = successors.begin() + end[token];
    auto at = last - firsts[token];
    if (firsts[token] >= kMany) {
      std::for_each(at, last, [&](Token next) { ++counts[next]; });
      for (int64_t& count : counts)
        sum += term(std::exchange(count, 0));
      continue;
    }
    std::sort(at, last);
    while (at != last) {
      const auto next = std::upper_bound(at, last, *at);
      sum += term(next - at);
      at = next;
    }
  }
  return sum;
}

Entropy EntropyMeter::measure() const {
  Entropy entropy;
  entropy.tokens = tokens_;
  if (tokens_ < 2) return entropy;
  const auto n = static_cast<double>(tokens_);
  double unigram = 0, pair = 0, first = 0;
  for (const int64_t count : counts_)
    unigram += term(count);
  entropy.unigram_entropy_nats = unigram / n + std::log(n);
  // H(next | previous) = H(pair) - H(previous). Every token except the last is `previous` once, and
  // both entropies have the same number of samples, so its logarithms cancel.
  std::vector<int64_t> firsts = counts_;
  --firsts[static_cast<size_t>(previous_)];
  for (const int64_t count : firsts)
    first += term(count);
  if (dense()) {
    for (const int64_t count : pair_counts_)
      pair += term(count);
  } else {
    pair = sparse_pair_terms(firsts);
  }
  entropy.bigram_entropy_nats = (pair - first) / (n - 1);
  return entropy;
}

} // namespace nsa::dataset
