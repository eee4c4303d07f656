// Fetches sources, local or remote, into a data set. One thread reads, `threads` threads tokenise,
// and the caller's thread writes. A remote file is prefetched over several connections. The shards
// do not depend on the number of threads, or on how often the fetch was interrupted and continued.
//
// It works in "<output>.fetching", which holds plan.json, state.json and the shards, and renames
// that folder at the end. An interrupted fetch continues from the last recorded state, and cuts the
// shards back to it. A lock on the folder keeps a second process out.
#pragma once

#include "common/dataset/manifest.h"
#include "common/dataset/prepare.h"
#include "fetch/http.h"

#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

namespace nsa::fetch {

struct FetchOptions {
  std::vector<std::string> sources;
  // Tokenizer, cutting, split, shard size, threads, output and if_exists; `inputs` is not used.
  dataset::PrepareOptions prepare;
  // The fetch ends with the document that reaches this number of tokens, at least 1. Nullopt: it
  // reads everything.
  std::optional<int64_t> most_tokens;
  bool restart = false; // deletes the state of an earlier fetch of this output
  HttpOptions http;
};

struct FetchProgress {
  double part = 0;          // fraction of the bytes of all files, 0 to 1
  double part_at_start = 0; // fraction at which this call began
  int64_t documents = 0, tokens = 0;
  uint64_t text_bytes = 0;     // tokenised by this call
  uint64_t received_bytes = 0; // from servers, by this call
  uint64_t written_bytes = 0, free_bytes = 0;
  double elapsed_seconds = 0;
  bool finishing = false;
};

struct FetchResult {
  dataset::Manifest manifest;
  bool reused = false, resumed = false;
  uint64_t text_bytes = 0;                         // of the whole data set
  uint64_t own_text_bytes = 0, received_bytes = 0; // of this call
  int64_t empty_documents = 0;
  double seconds = 0;
};

// Blocks until done. A stop request records the state and ends with kUnavailable "interrupted".
Result<FetchResult> fetch(const FetchOptions& options,
                          const std::function<void(const FetchProgress&)>& progress,
                          std::stop_token stop);

} // namespace nsa::fetch
