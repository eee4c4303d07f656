// Converts a checkpoint to a folder that AutoModelForCausalLM.from_pretrained() loads: weights,
// config.json, tokenizer, modeling_nsa.py, README.md. The folder is either complete or absent.
// Everything is written to <out>.preparing, which is then renamed. It does blocking file I/O; use
// one thread.
#pragma once

#include "cli/model_export/model_card.h"
#include "cli/model_export/weights.h"

#include <filesystem>

namespace nsa::model_export {

struct Request {
  std::filesystem::path checkpoint; // the checkpoint's folder; Facts::checkpoint is its manifest
  Facts facts;                      // without facts.tokenizer no tokenizer is exported
  std::filesystem::path ranks_file; // merge ranks of tokenizer gpt2
  std::filesystem::path out;
  bool replace = false; // whether to replace what is at `out`
  NumberType type = NumberType::kStored;
};

// Compares the checkpoint with its checksums before it writes anything. Errors: kCorrupt if they
// differ, kConflict if `out` exists, kExhausted if the disk is full. An error leaves nothing
// behind.
Result<WrittenWeights> export_model(const Request& request);

} // namespace nsa::model_export
