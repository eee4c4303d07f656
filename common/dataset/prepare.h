// Text -> data set. Files and folders of plain text, .gz and .jsonl become token shards, a held-out
// split and a manifest. One thread reads, `threads` tokenise, the caller's thread writes; the
// result does not depend on the number of threads.
//
// Everything is made in "<output>.preparing" and renamed at the end: an output folder is whole or
// absent. A crash leaves only that working folder, which the next prepare of the same output
// removes (a lock in it tells a dead one from a live one).
#pragma once

#include "common/base/choice.h"
#include "common/base/result.h"
#include "common/dataset/manifest.h"
#include "common/dataset/tokenizer.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

namespace nsa::dataset {

enum class DocumentUnit : uint8_t {
  kFile,      // a file is a document
  kParagraph, // a document ends at blank lines, once it has min_document_bytes
};
constexpr auto choice_names(DocumentUnit) {
  return names_of("file", "paragraph");
}
enum class InvalidUtf8 : uint8_t {
  kError,   // refuse, naming file and line
  kReplace, // each ill-formed sequence becomes U+FFFD, and is counted
  kKeep,    // the bytes as they are
};
constexpr auto choice_names(InvalidUtf8) {
  return names_of("error", "replace", "keep");
}
enum class IfExists {
  kFail,
  kReuse,   // fine when made from the same sources with the same options; otherwise an error
  kReplace, // the old one is removed once the new one is whole
};

struct PrepareOptions {
  // Files of any name, or folders, walked for .txt .text .md .rst .jsonl, each also with .gz (and
  // .dz, which is gzip). Names that begin with a dot are left out. What is compressed is told by
  // content, what is JSON lines by name.
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path output;
  TokenizerKind tokenizer = TokenizerKind::kGpt2;
  std::filesystem::path ranks_file;             // for kGpt2
  DocumentUnit documents = DocumentUnit::kFile; // of plain text; a row of .jsonl is a document
  int64_t min_document_bytes = 0;
  InvalidUtf8 invalid_utf8 = InvalidUtf8::kError;
  std::string jsonl_key = "text";
  // Of documents, drawn by a hash of seed and document number; at least one of two or more.
  double heldout_fraction = 0.01;
  uint64_t seed = 1;
  int64_t shard_tokens = 100'000'000; // as llm.c: 200 MB a shard
  int threads = 0;                    // 0: one a processor
  IfExists if_exists = IfExists::kFail;
};

struct PrepareProgress {
  enum class Stage { kTokenising, kMeasuring, kFinishing } stage = Stage::kTokenising;
  uint64_t bytes_done = 0, bytes_total = 0; // of the source files (compressed where they are)
  int64_t documents = 0, tokens = 0;
  double elapsed_seconds = 0;
};

struct PrepareResult {
  Manifest manifest;
  bool reused = false;                  // IfExists::kReuse, and nothing had to be done
  uint64_t text_bytes = 0;              // decompressed
  int64_t empty_documents = 0;          // left out
  std::vector<std::string> passed_over; // files in folders whose names say nothing of text
  double seconds = 0;
};

// Blocks until done; `progress` is called on the calling thread, at most ten times a second, and
// where a stage begins and ends. A stop request ends it with kUnavailable "interrupted" and
// leaves nothing behind. Errors name the file and, where there is one, the line.
Result<PrepareResult> prepare(const PrepareOptions& options,
                              const std::function<void(const PrepareProgress&)>& progress = {},
                              std::stop_token stop = {});

struct AdoptOptions {
  std::filesystem::path folder; // holds *.bin; dataset.json is written into it
  ShardFormat format = ShardFormat::kLlmC;
  // Which one made the tokens: cannot be told from the file.
  TokenizerKind tokenizer = TokenizerKind::kGpt2;
  std::filesystem::path ranks_file;
};

// Makes a data set of shards that exist (llm.c, modded-nanogpt, nanoGPT): files whose names contain
// "val" or "heldout" are the held-out split. Ids past the vocabulary are refused. The shards are
// not changed.
Result<Manifest> adopt(const AdoptOptions& options);

} // namespace nsa::dataset
