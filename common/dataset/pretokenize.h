// GPT-2's pre-tokenizer: cuts text into the pieces inside which byte pairs may merge. A scanner
// with the meaning of the regular expression in OpenAI's gpt-2 encoder.py,
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// which no linear-time regex engine takes (look-ahead). A byte that is not part of well-formed
// UTF-8 counts as one character that is neither letter, number nor white space. Pure.
#pragma once

#include <cstddef>
#include <string_view>

namespace nsa::dataset {

// Length in bytes of the piece that begins at `at`; at < text.size(), result >= 1.
size_t piece_length(std::string_view text, size_t at);

} // namespace nsa::dataset
