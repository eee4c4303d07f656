// Tokenises raw documents into the two splits: the work of one thread on one batch. No I/O.
#pragma once

#include "common/base/result.h"
#include "common/dataset/prepare.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::dataset {

struct RawDocument {
  size_t begin = 0, end = 0; // offsets in RawBatch::text
  int64_t line = 0;          // line in its file at which it begins
  int64_t number = 0;        // over all sources; selects the split, unless `draw` is kByText
};

enum class Draw : uint8_t {
  kByNumber, // the document's number selects its split
  kByText,   // a hash of its text does, so the split does not depend on other documents
};

// Documents of one source, about a megabyte.
struct RawBatch {
  size_t source = 0;
  std::string path; // for errors
  // Option that names the text's key in JSON lines, for errors.
  std::string_view key_option = "--jsonl-key KEY";
  bool json_lines = false;
  Draw draw = Draw::kByNumber;
  std::string text;
  std::vector<RawDocument> documents;
  uint64_t source_bytes = 0; // read from all sources when the batch was cut
};

struct DocumentTokens {
  Split split = Split::kTrain;
  int64_t line = 0;
  size_t tokens = 0; // including the separator
};

struct TokenBatch {
  size_t source = 0;
  uint64_t source_bytes = 0;
  uint64_t text_bytes = 0;
  std::vector<Token> tokens[2];      // indexed by Split
  int64_t documents[2] = {};         // indexed by Split
  std::vector<DocumentTokens> order; // each non-empty document, in order; only with kByText
  int64_t empty_documents = 0;
  int64_t replaced_characters = 0;
  double least_draw = 1;      // the least draw of its documents
  std::optional<Error> error; // error of the first bad document; later documents were not processed
};

// Returns a number that depends only on the document's text.
int64_t number_of_text(std::string_view text);

// Returns a pseudo-random number in [0, 1) for a document: a hash of seed and number. So the choice
// depends on neither threads nor batches, and held-out text comes from everywhere.
double draw_of(int64_t document_number, uint64_t seed);
// A document is held out if its draw is below the fraction.
Split split_of(int64_t document_number, uint64_t seed, double heldout_fraction);

TokenBatch tokenise(const RawBatch& batch, const Tokenizer& tokenizer,
                    const PrepareOptions& options);

} // namespace nsa::dataset
