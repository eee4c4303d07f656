// Generated documents, for smoke tests and for abilities that long-context attention should have.
// They are used only if a source names them; nothing falls back to them. Pure functions.
//
//   copy       random letters, '|', and the same letters again
//   induction  pairs of letters, key and value; within a document a key has one value
//   needle     prose in which one sentence tells a code; the document ends by asking for it
//
// "synthetic:needle,length=4096,documents=1000,seed=7": documents of `length` bytes. A document
// depends only on kind, length, seed and its number.
#pragma once

#include "common/base/choice.h"
#include "common/base/result.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace nsa::fetch {

inline constexpr std::string_view kSyntheticPrefix = "synthetic:";

struct Synthetic {
  enum class Kind : uint8_t { kCopy, kInduction, kNeedle } kind = Kind::kCopy;
  int64_t length = 1024; // bytes of a document
  int64_t documents = 10'000;
  uint64_t seed = 1;

  std::string name() const; // includes every value, as the manifest records it
};
constexpr auto choice_names(Synthetic::Kind) {
  return names_of("copy", "induction", "needle");
}

Result<Synthetic> parse_synthetic(std::string_view source);
std::string make_document(const Synthetic& set, int64_t number);

} // namespace nsa::fetch
