// Byte-pair encoding over a ranked vocabulary (Sennrich et al. 2016, on bytes as in GPT-2), with
// tiktoken's results: a piece that is a token is that token; otherwise the adjacent pair whose
// concatenation has the lowest rank merges first, the leftmost of equals, until none can.
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

  // Appends the ids of one non-empty piece.
  void encode_piece(std::string_view piece, std::vector<Token>& out) const;

  std::string_view bytes(Token token) const { return tokens_[token]; }
  size_t size() const { return tokens_.size(); }

private:
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  uint32_t find(std::string_view bytes) const;          // id or kNone
  uint32_t merged(uint32_t left, uint32_t right) const; // id of the concatenation, or kNone
  void index_tokens();
  void index_pairs();
  void merge_short(std::string_view piece, std::vector<Token>& out) const;
  void merge_long(std::string_view piece, std::vector<Token>& out) const;

  struct Pair {
    uint32_t key = kNone; // left << 16 | right
    uint32_t id = 0;
  };

  std::vector<std::string> tokens_;
  std::vector<uint32_t> by_bytes_; // open addressing, power of two; an id or kNone
  std::vector<Pair> by_pair_;      // open addressing, power of two
  uint32_t of_byte_[256] = {};
};

} // namespace nsa::dataset
