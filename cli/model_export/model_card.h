// README.md of an exported model: what it is, how to load it, and how it was trained according to
// the ledger. Pure.
#pragma once

#include "common/dataset/tokenizer.h"
#include "common/manifest/manifest.h"
#include "common/spec/run_spec.h"
#include "common/wire/api_types.h"

#include <optional>
#include <string>

namespace nsa::model_export {

struct HeldOut { // newest evaluation at or before the checkpoint's step
  uint64_t step = 0;
  double loss = 0;
};

struct Facts {
  spec::RunSpec spec;
  wire::RunDetail detail;
  manifest::Manifest checkpoint;
  std::optional<dataset::TokenizerKind> tokenizer; // empty if no tokenizer is exported
  std::optional<HeldOut> held_out;
  std::string exported_by; // version and commit of nsactl
};

// Returns the tokenizer's name, or an empty text if there is none.
std::string tokenizer_text(const Facts& facts);

// `type` of the weights is "float32" or "bfloat16". `separator` is the tokenizer's separator text.
std::string model_card(const Facts& facts, int64_t parameters, const std::string& type,
                       const std::string& separator);

} // namespace nsa::model_export
