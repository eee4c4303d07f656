// A checkpoint -> a folder that AutoModelForCausalLM.from_pretrained() loads: weights, config.json,
// tokenizer, modeling_nsa.py, README.md. The folder is either complete or absent: everything is
// written to <out>.preparing and renamed. Blocking file I/O; one thread.
#pragma once

#include "cli/model_export/model_card.h"
#include "cli/model_export/weights.h"

#include <filesystem>

namespace nsa::model_export {

struct Request {
  std::filesystem::path checkpoint; // its folder; Facts::checkpoint is its manifest
  Facts facts;                      // without facts.tokenizer none is exported
  std::filesystem::path ranks_file; // of tokenizer gpt2
  std::filesystem::path out;
  bool replace = false; // of what is at `out`
  NumberType type = NumberType::kStored;
};

// Compares the checkpoint with its checksums before it writes anything: kCorrupt if they differ.
// kConflict: `out` exists. kExhausted: the disk is full. After an error nothing is left behind.
Result<WrittenWeights> export_model(const Request& request);

} // namespace nsa::model_export
