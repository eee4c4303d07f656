// GPT-2's pre-tokenizer cuts text into pieces; byte pairs merge only inside a piece. This scanner
// is equivalent to the regular expression in OpenAI's gpt-2 encoder.py,
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// which needs look-ahead, so no linear-time regex engine accepts it. A byte outside well-formed
// UTF-8 counts as one character that is neither letter, number nor white space. No I/O.
#pragma once

#include <cstddef>
#include <string_view>

namespace nsa::dataset {

// Returns the length in bytes of the piece that begins at `at`; at < text.size(), result >= 1.
size_t piece_length(std::string_view text, size_t at);

} // namespace nsa::dataset
