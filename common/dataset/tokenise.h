// Raw documents -> tokens of the two splits: the work of one thread on one batch. Pure.
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
  size_t begin = 0, end = 0; // in RawBatch::text
  int64_t line = 0;          // where it begins in its file
  int64_t number = 0;        // over all sources; decides the split, unless `draw` is kByText
};

enum class Draw : uint8_t {
  kByNumber, // a document's number draws its split
  kByText,   // a hash of its text does: the split stays whatever is read before or after it
};

// Documents of one source, a megabyte or so.
struct RawBatch {
  size_t source = 0;
  std::string path; // for errors
  // The option that names the key of the text in JSON lines, for errors.
  std::string_view key_option = "--jsonl-key KEY";
  bool json_lines = false;
  Draw draw = Draw::kByNumber;
  std::string text;
  std::vector<RawDocument> documents;
  uint64_t source_bytes = 0; // of all sources, read when the batch was cut
};

struct DocumentTokens {
  Split split = Split::kTrain;
  int64_t line = 0;
  size_t tokens = 0; // the separator included
};

struct TokenBatch {
  size_t source = 0;
  uint64_t source_bytes = 0;
  uint64_t text_bytes = 0;
  std::vector<Token> tokens[2];      // by Split
  int64_t documents[2] = {};         // by Split
  std::vector<DocumentTokens> order; // of kByText: each document that is not empty, in order
  int64_t empty_documents = 0;
  int64_t replaced_characters = 0;
  double least_draw = 1;      // of its documents
  std::optional<Error> error; // of the first bad document; nothing after it was done
};

// A number that depends on the document's text alone.
int64_t number_of_text(std::string_view text);

// A number in [0, 1) that a document draws: a hash of seed and number, so that the choice depends
// on neither threads nor batches, and the held-out text comes from everywhere.
double draw_of(int64_t document_number, uint64_t seed);
// Whether it is set aside: those whose draw is below the fraction are.
Split split_of(int64_t document_number, uint64_t seed, double heldout_fraction);

TokenBatch tokenise(const RawBatch& batch, const Tokenizer& tokenizer,
                    const PrepareOptions& options);

} // namespace nsa::dataset
