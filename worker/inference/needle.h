// Needles in haystacks: documents of `synthetic:needle` (docs/data-fetch.md), in which one sentence
// states a code and the end asks for it. This file finds the codes and scores a model's answers. It
// reads only the pages of the data set; use it from one thread.
#pragma once

#include "common/dataset/dataset.h"
#include "common/wire/rank_messages.h"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace nsa::inference {

// Where a document states its code, and where the code must be repeated; byte offsets.
struct Needle {
  size_t told = 0, answer = 0, digits = 0;
};
std::optional<Needle> find_needle(std::string_view document);

struct NeedleDocument {
  std::vector<int64_t> tokens; // begins with the separator
  std::vector<size_t> answers; // indices of the tokens of the code at the end
  int64_t length = 0;          // bytes of the text
  double depth = 0;            // position of the sentence: 0 at the beginning, 1 at the question
};

// Returns at most `most` of the held-out documents, evenly spread.
std::vector<NeedleDocument> needle_documents(const dataset::Dataset& data,
                                             const dataset::Tokenizer& tokenizer, int64_t most);

// Counts codes that were repeated completely, by length and fifth of the depth.
class NeedleScore {
public:
  // `said` has the most probable token at each of the document's answers, given the true tokens
  // before it.
  void add(const NeedleDocument& document, std::span<const int64_t> said);
  std::vector<wire::NeedleCell> cells() const; // cells with documents, sorted by length and depth

private:
  std::map<std::pair<int64_t, int>, wire::NeedleCell> cells_; // key: length, fifth of the depth
};

} // namespace nsa::inference
