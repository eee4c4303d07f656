// Writes a checkpoint's parameters under the names of Hugging Face's libraries into one safetensors
// file. The output layer shares the embedding's weights, so it is not stored again. It does
// blocking file I/O; any thread may call it.
#pragma once

#include "common/base/choice.h"
#include "common/base/result.h"
#include "common/safetensors/safetensors.h"

#include <filesystem>
#include <string>

namespace nsa::model_export {

// kStored is FP32, or BF16 if the run keeps no master weights (precision.mode "sr" and "pure").
enum class NumberType : uint8_t { kStored, kFp32, kBf16 };
constexpr auto choice_names(NumberType) {
  return names_of("stored", "fp32", "bf16");
}

// Converts "blocks.3.attention.w_q.weight" to "model.layers.3.self_attn.q_proj.weight". Error:
// kUnsupported for a name that no model of this build has.
Result<std::string> exported_name(const std::string& name);

struct WrittenWeights {
  uint64_t bytes = 0;
  int64_t parameters = 0;
  std::string type; // "float32" or "bfloat16", PyTorch's names
};
// Reads all of `from` into memory. BF16 is FP32 rounded to nearest, ties to even, as in training.
Result<WrittenWeights> write_weights(const safetensors::Reader& from,
                                     const std::filesystem::path& path, NumberType type,
                                     safetensors::Metadata metadata);

} // namespace nsa::model_export
