// Makes a data set of text. Files and folders of plain text, .gz and .jsonl become token shards, a
// held-out split and a manifest. One thread reads, `threads` threads tokenise, and the caller's
// thread writes. The result does not depend on the number of threads.
//
// Everything is written to "<output>.preparing" and renamed at the end, so an output folder is
// complete or absent. A crash leaves only that working folder, which the next prepare of the same
// output removes. A lock on the folder shows whether its process is alive.
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
  kError,   // fail, and name file and line
  kReplace, // each ill-formed sequence becomes U+FFFD, and is counted
  kKeep,    // keep the bytes unchanged
};
constexpr auto choice_names(InvalidUtf8) {
  return names_of("error", "replace", "keep");
}
enum class IfExists {
  kFail,
  kReuse,   // reuse it if sources and options are the same; otherwise an error
  kReplace, // remove the old one once the new one is complete
};

struct PrepareOptions {
  // Files with any name, or folders. In folders, files .txt .text .md .rst .jsonl are read, each
  // also with .gz or .dz (which is gzip). Names that begin with a dot are skipped. Compression is
  // detected by content, JSON lines by name.
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path output;
  TokenizerKind tokenizer = TokenizerKind::kGpt2;
  std::filesystem::path ranks_file;             // for kGpt2
  DocumentUnit documents = DocumentUnit::kFile; // for plain text; a row of .jsonl is a document
  int64_t min_document_bytes = 0;
  InvalidUtf8 invalid_utf8 = InvalidUtf8::kError;
  std::string jsonl_key = "text";
  // Fraction of documents, chosen by a hash of seed and document number. At least one of two or
  // more documents is held out.
  double heldout_fraction = 0.01;
  uint64_t seed = 1;
  int64_t shard_tokens = 100'000'000; // as in llm.c: 200 MB a shard
  int threads = 0;                    // 0: one for each processor
  IfExists if_exists = IfExists::kFail;
};

struct PrepareProgress {
  enum class Stage { kTokenising, kMeasuring, kFinishing } stage = Stage::kTokenising;
  uint64_t bytes_done = 0, bytes_total = 0; // bytes of the source files, as stored
  int64_t documents = 0, tokens = 0;
  double elapsed_seconds = 0;
};

struct PrepareResult {
  Manifest manifest;
  bool reused = false;                  // IfExists::kReuse, and the data set existed
  uint64_t text_bytes = 0;              // uncompressed
  int64_t empty_documents = 0;          // skipped
  std::vector<std::string> passed_over; // files in folders whose names are not those of text
  double seconds = 0;
};

// Blocks until done. Calls `progress` on the calling thread, at most ten times a second, and at the
// begin and end of each stage. A stop request ends it with kUnavailable "interrupted" and leaves
// nothing behind. Errors name the file and, if there is one, the line.
Result<PrepareResult> prepare(const PrepareOptions& options,
                              const std::function<void(const PrepareProgress&)>& progress = {},
                              std::stop_token stop = {});

struct AdoptOptions {
  std::filesystem::path folder; // contains *.bin; dataset.json is written into it
  ShardFormat format = ShardFormat::kLlmC;
  // The tokenizer that made the tokens; the file does not say.
  TokenizerKind tokenizer = TokenizerKind::kGpt2;
  std::filesystem::path ranks_file;
};

// Makes a data set of existing shards (llm.c, modded-nanogpt, nanoGPT). Files whose names contain
// "val" or "heldout" become the held-out split. Fails if an id exceeds the vocabulary. The shards
// are not changed.
Result<Manifest> adopt(const AdoptOptions& options);

} // namespace nsa::dataset
