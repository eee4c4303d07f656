// Text files on disk and prepared data sets for the tests of prepare, dataset and loader.
#pragma once

#include "common/dataset/dataset.h"
#include "common/dataset/prepare.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>
#include <random>
#include <string>
#include <zlib.h>

namespace nsa::dataset {

// Returns paragraphs of lower-case words. The same seed gives the same text.
inline std::string some_text(size_t paragraphs, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::string text;
  for (size_t p = 0; p < paragraphs; ++p) {
    for (size_t words = 5 + random() % 30; words > 0; --words) {
      for (size_t letters = 1 + random() % 8; letters > 0; --letters)
        text.push_back(static_cast<char>('a' + random() % 26));
      text.push_back(words % 9 ? ' ' : '\n');
    }
    text += "\n\n";
  }
  return text;
}

inline std::string gzip(std::string_view text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline PrepareOptions byte_options(const test::TemporaryFolder& folder,
                                   std::vector<std::filesystem::path> inputs) {
  PrepareOptions options;
  options.inputs = std::move(inputs);
  options.output = folder.path() / "data";
  options.tokenizer = TokenizerKind::kBytes;
  options.documents = DocumentUnit::kParagraph;
  options.heldout_fraction = 0.1;
  options.threads = 2;
  return options;
}

// Returns all tokens of a split, decoded to text.
inline std::string text_of(const Dataset& dataset, Split split) {
  const TokenSequence& tokens = dataset.tokens(split);
  std::vector<Token> all(static_cast<size_t>(tokens.size()));
  tokens.copy(0, std::span(all));
  return dataset.load_tokenizer().value()->decode(all);
}

} // namespace nsa::dataset
