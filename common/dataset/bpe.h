// Byte-pair encoding on bytes (Sennrich et al. 2016, as in GPT-2): the adjacent pair whose merge
// has the lowest rank merges first, the leftmost of equals, until none can. Of two kinds:
// tiktoken's, where each way to cut a token into two is a merge with the token's id as its rank,
// and a piece that is a token is that token; and Hugging Face's, with a list of merges.
//
// Immutable after build; encode_piece() may be called from any thread.
#pragma once

#include "common/base/result.h"
#include "common/dataset/tokenizer.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::dataset {

// Lines "base64 rank", ranks from 0 upwards: the bytes of each token. kCorrupt names the line.
Result<std::vector<std::string>> parse_ranks(std::string_view content);

class BpeVocabulary {
public:
  // tokens[rank] = bytes. All 256 single bytes must be among them, none twice, none empty, and at
  // most 65,535 in all; kCorrupt otherwise.
  static Result<BpeVocabulary> build(std::vector<std::string> tokens);

  struct Merge {
    std::string left, right; // bytes
  };
  // tokens[id] = bytes; of an id that is none, empty. Merges in order of their rank. With
  // `whole_tokens` a piece that is a token is that token, whatever merges would make of it.
  static Result<BpeVocabulary> build(std::vector<std::string> tokens,
                                     const std::vector<Merge>& merges, bool whole_tokens);

  // Appends the ids of one non-empty piece.
  void encode_piece(std::string_view piece, std::vector<Token>& out) const;

  std::string_view bytes(Token token) const { return tokens_[token]; }
  size_t size() const { return tokens_.size(); }

private:
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  struct Pair {
    uint32_t key = kNone; // left << 16 | right
    uint32_t rank = 0;
  };

  uint32_t find(std::string_view bytes) const;          // id or kNone
  uint32_t merged(uint32_t left, uint32_t right) const; // rank of the merge, or kNone
  Status take_tokens(std::vector<std::string> tokens);
  void index_tokens();
  std::vector<Pair> pairs_of_tokens();
  void index_pairs(const std::vector<Pair>& pairs);
  void note_reachable();
  void encode_anew(std::string_view piece, std::vector<Token>& out) const;
  void merge_short(std::string_view piece, std::vector<Token>& out) const;
  void merge_long(std::string_view piece, std::vector<Token>& out) const;

  std::vector<std::string> tokens_;
  std::vector<uint32_t> by_bytes_; // open addressing, power of two; an id or kNone
  std::vector<Pair> by_pair_;      // open addressing, power of two
  std::vector<uint32_t> of_rank_;  // id that the merge of a rank gives
  std::vector<uint8_t> whole_;     // by id: whether a piece of these bytes is this token
  uint32_t of_byte_[256] = {};
  uint64_t number_ = 0; // of this vocabulary, among all that were built
};

} // namespace nsa::dataset
