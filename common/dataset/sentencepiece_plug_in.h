// The interface between load_sentencepiece_tokenizer() and libnsa_sentencepiece.so, which must be
// of one build.
#pragma once

#include "common/dataset/tokenizer.h"

#include <string>

namespace nsa::dataset {

inline constexpr const char* kSentencePieceLibrary = "libnsa_sentencepiece.so";
inline constexpr const char* kSentencePieceEntryPoint = "nsa_make_sentencepiece_tokenizer";

// `model` has the bytes of a tokenizer.model. `digest` is the value of Tokenizer::digest().
using MakeSentencePieceTokenizer = Result<std::unique_ptr<Tokenizer>> (*)(std::string_view model,
                                                                          std::string digest);

} // namespace nsa::dataset
