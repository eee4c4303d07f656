// Byte-pair encoding on bytes (Sennrich et al. 2016, as in GPT-2). The adjacent pair whose merge
// has the lowest rank merges first, the leftmost of equals, until no pair can. There are two kinds.
// In tiktoken's, each way to cut a token into two is a merge, with the token's id as rank. A piece
// that is a token becomes that token. Hugging Face's has a list of merges.
//
// Immutable after build. Any thread may call encode_piece().
#pragma once

#include "common/base/result.h"
#include "common/dataset/tokenizer.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::dataset {

// Parses lines "base64 rank", with ranks from 0 upwards, and returns the bytes of each token.
// Error: kCorrupt names the line.
Result<std::vector<std::string>> parse_ranks(std::string_view content);

class BpeVocabulary {
public:
  // tokens[rank] has the token's bytes. Error: kCorrupt unless all 256 single bytes are present,
  // none is empty or repeated, and there are at most 65,535.
  static Result<BpeVocabulary> build(std::vector<std::string> tokens);

  struct Merge {
    std::string left, right; // bytes
  };
  // tokens[id] has the token's bytes; it is empty for an unused id. Merges are in order of rank.
  // With `whole_tokens`, a piece that is a token becomes that token, whatever the merges.
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
  std::vector<uint32_t> of_rank_;  // the id that each merge makes, indexed by rank
  std::vector<uint8_t> whole_;     // indexed by id: a piece of these bytes becomes this token
  uint32_t of_byte_[256] = {};
  uint64_t number_ = 0; // unique number of this vocabulary in the process
};

} // namespace nsa::dataset
