// Needles in haystacks: documents of `synthetic:needle` (docs/data-fetch.md), in which one sentence
// tells a code that the end asks for, and the score of a model that reads them. Pure but for the
// pages of the data set; one thread.
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

// Where a document tells its code, and where it has to be said again; offsets of bytes.
struct Needle {
  size_t told = 0, answer = 0, digits = 0;
};
std::optional<Needle> find_needle(std::string_view document);

struct NeedleDocument {
  std::vector<int64_t> tokens; // the separator first
  std::vector<size_t> answers; // indices of the tokens of the code at the end
  int64_t length = 0;          // bytes of its text
  double depth = 0;            // of the sentence: 0 at the beginning, 1 at the question
};

// At most `most` of the held-out documents, evenly spread.
std::vector<NeedleDocument> needle_documents(const dataset::Dataset& data,
                                             const dataset::Tokenizer& tokenizer, int64_t most);

// Counts codes that were said in full, by length and fifth of the depth.
class NeedleScore {
public:
  // `said`: the most probable token at each of the document's answers, the true code before it.
  void add(const NeedleDocument& document, std::span<const int64_t> said);
  std::vector<wire::NeedleCell> cells() const; // those with documents, by length and depth

private:
  std::map<std::pair<int64_t, int>, wire::NeedleCell> cells_; // by length and fifth
};

} // namespace nsa::inference
