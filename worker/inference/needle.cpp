#include "worker/inference/needle.h"

#include <algorithm>
#include <string>

namespace nsa::inference {

namespace {

constexpr std::string_view kAsks = "What is the code of ", kAnswers = "? It is ";
constexpr int kDepths = 5;

// Returns the positions of the separators of the held-out split, and its end.
std::vector<int64_t> borders_of(const dataset::TokenSequence& tokens, dataset::Token separator) {
  std::vector<int64_t> borders;
  for (int64_t at = 0; at < tokens.size();) {
    const auto piece = tokens.piece(at);
    for (size_t i = 0; i < piece.size(); ++i)
      if (piece[i] == separator) borders.push_back(at + static_cast<int64_t>(i));
    at += static_cast<int64_t>(piece.size());
  }
  borders.push_back(tokens.size());
  return borders;
}

std::optional<NeedleDocument> read_document(std::vector<dataset::Token> ids,
                                            const dataset::Tokenizer& tokenizer) {
  NeedleDocument document;
  document.tokens.assign(ids.begin(), ids.end());
  std::string text;
  std::vector<size_t> ends = {0}; // end of each token's bytes; the separator has none
  for (size_t i = 1; i < ids.size(); ++i) {
    text += tokenizer.decode({&ids[i], 1});
    ends.push_back(text.size());
  }
  const auto needle = find_needle(text);
  if (!needle) return std::nullopt;
  for (size_t i = 1; i < ids.size(); ++i)
    if (ends[i] > needle->answer && ends[i - 1] < needle->answer + needle->digits)
      document.answers.push_back(i);
  document.length = static_cast<int64_t>(text.size());
  const size_t question = text.rfind(kAsks);
  document.depth = static_cast<double>(needle->told) / static_cast<double>(question);
  return document;
}

} // namespace

std::optional<Needle> find_needle(std::string_view document) {
  const size_t asks = document.rfind(kAsks);
  if (asks == document.npos || !document.ends_with('.')) return std::nullopt;
  const size_t name = asks + kAsks.size(), answers = document.find(kAnswers, name);
  if (answers == document.npos) return std::nullopt;
  Needle needle;
  needle.answer = answers + kAnswers.size();
  needle.digits = document.size() - 1 - needle.answer;
  const std::string sentence = "The code of " + std::string(document.substr(name, answers - name)) +
                               " is " + std::string(document.substr(needle.answer, needle.digits)) +
                               ".";
  needle.told = document.substr(0, asks).find(sentence);
  if (needle.told == document.npos || needle.digits == 0) return std::nullopt;
  return needle;
}

std::vector<NeedleDocument> needle_documents(const dataset::Dataset& data,
                                             const dataset::Tokenizer& tokenizer, int64_t most) {
  const dataset::TokenSequence& tokens = data.tokens(dataset::Split::kHeldout);
  const std::vector<int64_t> borders = borders_of(tokens, tokenizer.separator());
  const auto all = static_cast<int64_t>(borders.size()) - 1, count = std::min(most, all);
  std::vector<NeedleDocument> documents;
  for (int64_t i = 0; i < count; ++i) {
    const auto which = static_cast<size_t>(i * all / count);
    std::vector<dataset::Token> ids(static_cast<size_t>(borders[which + 1] - borders[which]));
    tokens.copy(borders[which], std::span(ids));
    if (auto document = read_document(std::move(ids), tokenizer))
      documents.push_back(std::move(*document));
  }
  return documents;
}

void NeedleScore::add(const NeedleDocument& document, std::span<const int64_t> said) {
  const int fifth = std::clamp(static_cast<int>(document.depth * kDepths), 0, kDepths - 1);
  wire::NeedleCell& cell = cells_[{document.length, fifth}];
  cell.length = document.length;
  cell.depth_from = static_cast<double>(fifth) / kDepths;
  cell.depth_to = static_cast<double>(fifth + 1) / kDepths;
  ++cell.asked;
  bool right = said.size() == document.answers.size();
  for (size_t i = 0; right && i < said.size(); ++i)
    right = said[i] == document.tokens[document.answers[i]];
  cell.found += right;
}

std::vector<wire::NeedleCell> NeedleScore::cells() const {
  std::vector<wire::NeedleCell> all;
  for (const auto& [place, cell] : cells_)
    all.push_back(cell);
  return all;
}

} // namespace nsa::inference
