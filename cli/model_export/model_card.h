// README.md of an exported model: what it is, how to load it, and what the ledger knows of how it
// was trained. Pure.
#pragma once

#include "common/dataset/tokenizer.h"
#include "common/manifest/manifest.h"
#include "common/spec/run_spec.h"
#include "common/wire/api_types.h"

#include <optional>
#include <string>

namespace nsa::model_export {

struct HeldOut { // the newest evaluation at the checkpoint's step or before
  uint64_t step = 0;
  double loss = 0;
};

struct Facts {
  spec::RunSpec spec;
  wire::RunDetail detail;
  manifest::Manifest checkpoint;
  std::optional<dataset::TokenizerKind> tokenizer; // none: it is not exported
  std::optional<HeldOut> held_out;
  std::string exported_by; // version and commit of nsactl
};

// Name of its kind, or empty.
std::string tokenizer_text(const Facts& facts);

// `type`: of the weights, "float32" or "bfloat16". `separator`: the tokenizer's text of it.
std::string model_card(const Facts& facts, int64_t parameters, const std::string& type,
                       const std::string& separator);

} // namespace nsa::model_export
