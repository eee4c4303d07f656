#include "common/dataset/bpe.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <numeric>
#include <queue>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace nsa::dataset {
namespace {

// Up to this length the quadratic scan of a piece is faster than a heap; words are far shorter.
constexpr size_t kShortPiece = 96;

uint64_t mix(uint32_t key) {
  uint64_t x = key * 0x9E3779B97F4A7C15ull;
  return x ^ x >> 32;
}

template <class Word> uint64_t load(const char* bytes) {
  Word word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// Words repeat often, so each thread caches the tokens of short pieces. An entry is half a cache
// line. All entries fit in a core's own cache, unlike a vocabulary.
class KnownPieces {
public:
  static constexpr size_t kLongest = 16;

  struct Entry {
    uint64_t first = 0, last = 0; // first and last eight bytes of the piece; they may overlap
    uint8_t length = 0;           // length of the piece; 0: no entry
    uint8_t count = 0;            // number of its tokens
    std::array<Token, 7> tokens{};

    bool is(const Entry& other) const {
      return first == other.first && last == other.last && length == other.length;
    }
  };

  // Returns the cache of this thread. It holds pieces of the vocabulary that the thread used last.
  static KnownPieces& of(uint64_t vocabulary) {
    thread_local KnownPieces pieces;
    if (pieces.vocabulary_ != vocabulary) {
      pieces.entries_.assign(kEntries, {});
      pieces.vocabulary_ = vocabulary;
    }
    return pieces;
  }

  static Entry key_of(std::string_view piece) {
    Entry key;
    key.length = static_cast<uint8_t>(piece.size());
    const char* begin = piece.data();
    const char* end = begin + piece.size();
    if (piece.size() >= 8) {
      key.first = load<uint64_t>(begin);
      key.last = load<uint64_t>(end - 8);
    } else if (piece.size() >= 4) {
      key.first = load<uint32_t>(begin);
      key.last = load<uint32_t>(end - 4);
    } else {
      key.first = load<uint8_t>(begin) | load<uint8_t>(begin + piece.size() / 2) << 8;
      key.last = load<uint8_t>(end - 1);
    }
    return key;
  }
  // Returns the place for an entry with this key; another entry may be there.
  Entry& place_of(const Entry& key) {
    uint64_t x = (key.first + key.length) * 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 32 ^ key.last) * 0xD1342543DE82EF95ull;
    return entries_[x >> (64 - kBits)];
  }

private:
  static constexpr int kBits = 14; // 512 KiB
  static constexpr size_t kEntries = size_t{1} << kBits;
  std::vector<Entry> entries_;
  uint64_t vocabulary_ = 0;
};

uint64_t next_number() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

} // namespace

Status BpeVocabulary::take_tokens(std::vector<std::string> tokens) {
  if (tokens.size() > 0xFFFF)
    return fail(ErrorCode::kCorrupt, "vocabulary has " + std::to_string(tokens.size()) +
                                         " tokens, 16-bit ids allow 65535");
  number_ = next_number();
  tokens_ = std::move(tokens);
  std::fill(std::begin(of_byte_), std::end(of_byte_), kNone);
  for (size_t id = 0; id < tokens_.size(); ++id)
    if (const std::string& bytes = tokens_[id]; bytes.size() == 1)
      of_byte_[static_cast<unsigned char>(bytes[0])] = static_cast<uint32_t>(id);
  for (int byte = 0; byte < 256; ++byte) {
    if (of_byte_[byte] == kNone)
      return fail(ErrorCode::kCorrupt,
                  "the vocabulary has no token for byte " + std::to_string(byte));
  }
  index_tokens();
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (!tokens_[id].empty() && find(tokens_[id]) != id)
      return fail(ErrorCode::kCorrupt, "token " + std::to_string(id) + " stands there twice");
  }
  return {};
}

Result<BpeVocabulary> BpeVocabulary::build(std::vector<std::string> tokens) {
  for (size_t id = 0; id < tokens.size(); ++id)
    if (tokens[id].empty())
      return fail(ErrorCode::kCorrupt, "token " + std::to_string(id) + " is empty");
  BpeVocabulary vocabulary;
  NSA_TRY(vocabulary.take_tokens(std::move(tokens)));
  vocabulary.index_pairs(vocabulary.pairs_of_tokens());
  vocabulary.of_rank_.resize(vocabulary.tokens_.size());
  std::iota(vocabulary.of_rank_.begin(), vocabulary.of_rank_.end(), 0u);
  vocabulary.whole_.assign(vocabulary.tokens_.size(), 1);
  return vocabulary;
}

Result<BpeVocabulary> BpeVocabulary::build(std::vector<std::string> tokens,
                                           const std::vector<Merge>& merges, bool whole_tokens) {
  BpeVocabulary vocabulary;
  NSA_TRY(vocabulary.take_tokens(std::move(tokens)));
  std::vector<Pair> pairs;
  for (const Merge& merge : merges) {
    const uint32_t left = vocabulary.find(merge.left), right = vocabulary.find(merge.right);
    const uint32_t both = vocabulary.find(merge.left + merge.right);
    if (left == kNone || right == kNone || both == kNone)
      return fail(ErrorCode::kCorrupt, "merge " + std::to_string(pairs.size()) +
                                           " is of tokens that the vocabulary does not have");
    pairs.push_back({left << 16 | right, static_cast<uint32_t>(pairs.size())});
    vocabulary.of_rank_.push_back(both);
  }
  vocabulary.index_pairs(pairs);
  vocabulary.whole_.assign(vocabulary.tokens_.size(), whole_tokens);
  if (!whole_tokens) vocabulary.note_reachable();
  return vocabulary;
}

// Marks the tokens that merging makes of their own bytes. A piece of these bytes then needs no
// merging.
void BpeVocabulary::note_reachable() {
  std::vector<uint8_t> reached(tokens_.size());
  std::vector<Token> ids;
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (tokens_[id].empty()) continue;
    ids.clear();
    encode_anew(tokens_[id], ids);
    reached[id] = ids.size() == 1;
  }
  whole_ = std::move(reached);
}

void BpeVocabulary::index_tokens() {
  by_bytes_.assign(std::bit_ceil(tokens_.size() * 2), kNone);
  const size_t mask = by_bytes_.size() - 1;
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (tokens_[id].empty()) continue;
    size_t slot = XXH3_64bits(tokens_[id].data(), tokens_[id].size()) & mask;
    while (by_bytes_[slot] != kNone)
      slot = (slot + 1) & mask;
    by_bytes_[slot] = static_cast<uint32_t>(id);
  }
}

// Merging asks whether left + right is a token. All such pairs are the ways to cut a token into two
// tokens.
std::vector<BpeVocabulary::Pair> BpeVocabulary::pairs_of_tokens() {
  std::vector<Pair> pairs;
  for (size_t id = 0; id < tokens_.size(); ++id) {
    const std::string_view bytes = tokens_[id];
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const uint32_t left = find(bytes.substr(0, cut)), right = find(bytes.substr(cut));
      if (left != kNone && right != kNone)
        pairs.push_back({left << 16 | right, static_cast<uint32_t>(id)});
    }
  }
  return pairs;
}

// The last of equal pairs applies, as in Hugging Face's tokenizers.
void BpeVocabulary::index_pairs(const std::vector<Pair>& pairs) {
  by_pair_.assign(std::bit_ceil(pairs.size() * 2 + 1), Pair{});
  const size_t mask = by_pair_.size() - 1;
  for (const Pair& pair : pairs) {
    size_t slot = mix(pair.key) & mask;
    while (by_pair_[slot].key != kNone && by_pair_[slot].key != pair.key)
      slot = (slot + 1) & mask;
    by_pair_[slot] = pair;
  }
}

uint32_t BpeVocabulary::find(std::string_view bytes) const {
  const size_t mask = by_bytes_.size() - 1;
  for (size_t slot = XXH3_64bits(bytes.data(), bytes.size()) & mask; by_bytes_[slot] != kNone;
       slot = (slot + 1) & mask) {
    if (tokens_[by_bytes_[slot]] == bytes) return by_bytes_[slot];
  }
  return kNone;
}

uint32_t BpeVocabulary::merged(uint32_t left, uint32_t right) const {
  const uint32_t key = left << 16 | right;
  const size_t mask = by_pair_.size() - 1;
  for (size_t slot = mix(key) & mask; by_pair_[slot].key != kNone; slot = (slot + 1) & mask) {
    if (by_pair_[slot].key == key) return by_pair_[slot].rank;
  }
  return kNone;
}

void BpeVocabulary::encode_piece(std::string_view piece, std::vector<Token>& out) const {
  if (piece.size() > KnownPieces::kLongest) return encode_anew(piece, out);
  KnownPieces::Entry key = KnownPieces::key_of(piece);
  KnownPieces::Entry& known = KnownPieces::of(number_).place_of(key);
  if (known.is(key)) {
    out.insert(out.end(), known.tokens.begin(), known.tokens.begin() + known.count);
    return;
  }
  const size_t before = out.size();
  encode_anew(piece, out);
  const size_t count = out.size() - before;
  if (count > key.tokens.size()) return;
  key.count = static_cast<uint8_t>(count);
  std::copy(out.begin() + static_cast<long>(before), out.end(), key.tokens.begin());
  known = key;
}

void BpeVocabulary::encode_anew(std::string_view piece, std::vector<Token>& out) const {
  if (const uint32_t whole = find(piece); whole != kNone && whole_[whole]) {
    out.push_back(static_cast<Token>(whole));
  } else if (piece.size() <= kShortPiece) {
    merge_short(piece, out);
  } else {
    merge_long(piece, out);
  }
}

void BpeVocabulary::merge_short(std::string_view piece, std::vector<Token>& out) const {
  std::array<uint32_t, kShortPiece> part;
  std::array<uint32_t, kShortPiece> with_next; // rank of part[i] + part[i + 1]; kNone at the end
  size_t parts = piece.size();
  for (size_t i = 0; i < parts; ++i)
    part[i] = of_byte_[static_cast<unsigned char>(piece[i])];
  for (size_t i = 0; i + 1 < parts; ++i)
    with_next[i] = merged(part[i], part[i + 1]);
  with_next[parts - 1] = kNone;
  while (parts > 1) {
    const auto best = static_cast<size_t>(
        std::min_element(with_next.begin(), with_next.begin() + static_cast<long>(parts)) -
        with_next.begin());
    if (with_next[best] == kNone) break;
    part[best] = of_rank_[with_next[best]];
    --parts;
    std::copy(part.begin() + static_cast<long>(best) + 2,
              part.begin() + static_cast<long>(parts) + 1,
              part.begin() + static_cast<long>(best) + 1);
    std::copy(with_next.begin() + static_cast<long>(best) + 2,
              with_next.begin() + static_cast<long>(parts) + 1,
              with_next.begin() + static_cast<long>(best) + 1);
    with_next[best] = best + 1 < parts ? merged(part[best], part[best + 1]) : kNone;
    if (best > 0) with_next[best - 1] = merged(part[best - 1], part[best]);
  }
  for (size_t i = 0; i < parts; ++i)
    out.push_back(static_cast<Token>(part[i]));
}

// A megabyte of one letter is a single piece, so this must be O(n log n). It uses a heap of
// candidate merges over a linked list of parts. A candidate is stale if its two parts have changed.
void BpeVocabulary::merge_long(std::string_view piece, std::vector<Token>& out) const {
  struct Part {
    uint32_t id, previous, next; // kNone at either end; id is kNone after the merge into the left
                                 // part
  };
  struct Candidate {
    uint32_t rank, at, left, right;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  std::vector<Part> part(piece.size());
  for (uint32_t i = 0; i < piece.size(); ++i)
    part[i] = {of_byte_[static_cast<unsigned char>(piece[i])], i == 0 ? kNone : i - 1,
               i + 1 == piece.size() ? kNone : i + 1};
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  auto consider = [&](uint32_t at) {
    if (at == kNone || part[at].next == kNone) return;
    const uint32_t left = part[at].id, right = part[part[at].next].id;
    if (const uint32_t rank = merged(left, right); rank != kNone)
      candidates.push({rank, at, left, right});
  };
  for (uint32_t i = 0; i < piece.size(); ++i)
    consider(i);
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    Part& left = part[best.at];
    if (left.id != best.left || left.next == kNone || part[left.next].id != best.right) continue;
    Part& right = part[left.next];
    left.id = of_rank_[best.rank];
    right.id = kNone;
    left.next = right.next;
    if (left.next != kNone) part[left.next].previous = best.at;
    consider(left.previous);
    consider(best.at);
  }
  for (uint32_t i = 0; i != kNone; i = part[i].next)
    out.push_back(static_cast<Token>(part[i].id));
}

} // namespace nsa::dataset
