#include "cli/model_export/weights.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

namespace nsa::model_export {

namespace {

using safetensors::DataType;

constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kOfBlocks = {{
    {"attention_norm.weight", "input_layernorm.weight"},
    {"mlp_norm.weight", "post_attention_layernorm.weight"},
    {"mlp.fc1.weight", "mlp.up_proj.weight"},
    {"mlp.fc2.weight", "mlp.down_proj.weight"},
    {"attention.w_q.weight", "self_attn.q_proj.weight"},
    {"attention.w_out.weight", "self_attn.o_proj.weight"},
}};

// Converts "w_k_selected.weight" to "k_proj_selected.weight". The names of gate and phi stay.
std::optional<std::string> name_in_attention(std::string_view rest) {
  for (const auto& [ours, theirs] : {std::pair{"w_k", "k_proj"}, std::pair{"w_v", "v_proj"}})
    if (rest.starts_with(ours)) return theirs + std::string(rest.substr(3));
  if (rest.starts_with("gate.") || rest.starts_with("phi_k.") || rest.starts_with("phi_v."))
    return std::string(rest);
  return std::nullopt;
}

float widened(uint16_t bf16) {
  return std::bit_cast<float>(uint32_t{bf16} << 16);
}

uint16_t rounded(float value) {
  if (std::isnan(value)) return 0x7fc0;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <class From, class To, class Convert>
std::vector<std::byte> converted(const std::vector<std::byte>& from, Convert convert) {
  std::vector<std::byte> to(from.size() / sizeof(From) * sizeof(To));
  for (size_t i = 0; i < from.size() / sizeof(From); ++i) {
    From value;
    std::memcpy(&value, from.data() + i * sizeof(From), sizeof(From));
    const To other = convert(value);
    std::memcpy(to.data() + i * sizeof(To), &other, sizeof(To));
  }
  return to;
}

Result<std::vector<std::byte>> read_as(const safetensors::Reader& from, const std::string& name,
                                       const safetensors::Reader::Entry& entry, DataType type) {
  std::vector<std::byte> bytes(entry.end - entry.begin);
  NSA_TRY(from.read(name, entry.type, entry.shape, bytes));
  if (entry.type == type) return bytes;
  return type == DataType::kF32 ? converted<uint16_t, float>(bytes, widened)
                                : converted<float, uint16_t>(bytes, rounded);
}

} // namespace

Result<std::string> exported_name(const std::string& name) {
  if (name == "embedding.weight") return "model.embed_tokens.weight";
  if (name == "final_norm.weight") return "model.norm.weight";
  constexpr std::string_view kBlocks = "blocks.", kAttention = "attention.";
  const size_t dot = name.find('.', kBlocks.size());
  if (name.starts_with(kBlocks) && dot != std::string::npos) {
    const std::string layer =
        "model.layers." + name.substr(kBlocks.size(), dot + 1 - kBlocks.size());
    const std::string_view rest = std::string_view(name).substr(dot + 1);
    for (const auto& [ours, theirs] : kOfBlocks)
      if (rest == ours) return layer + std::string(theirs);
    if (rest.starts_with(kAttention))
      if (const auto inner = name_in_attention(rest.substr(kAttention.size())))
        return layer + "self_attn." + *inner;
  }
  return fail(ErrorCode::kUnsupported,
              "the checkpoint holds a tensor " + name + ", which nsactl has no exported name for",
              "use the nsactl of the build that wrote the checkpoint");
}

Result<WrittenWeights> write_weights(const safetensors::Reader& from,
                                     const std::filesystem::path& path, NumberType type,
                                     safetensors::Metadata metadata) {
  WrittenWeights written;
  std::vector<std::vector<std::byte>> memory;
  std::vector<safetensors::TensorView> tensors;
  for (const auto& [name, entry] : from.entries()) {
    if (entry.type != DataType::kF32 && entry.type != DataType::kBF16)
      return fail(ErrorCode::kUnsupported, "tensor " + name + " is neither FP32 nor BF16",
                  "another program wrote this checkpoint; export one of nsa-worker's");
    const DataType as = type == NumberType::kFp32   ? DataType::kF32
                        : type == NumberType::kBf16 ? DataType::kBF16
                                                    : entry.type;
    NSA_TRY_ASSIGN(std::string new_name, exported_name(name));
    NSA_TRY_ASSIGN(auto bytes, read_as(from, name, entry, as));
    written.parameters += static_cast<int64_t>(bytes.size() / safetensors::data_type_bytes(as));
    written.type = as == DataType::kF32 ? "float32" : "bfloat16";
    memory.push_back(std::move(bytes));
    tensors.push_back({std::move(new_name), as, entry.shape, memory.back()});
  }
  metadata["format"] = "pt"; // Hugging Face's loaders require it
  NSA_TRY_ASSIGN(const auto file, safetensors::write(path, tensors, metadata));
  written.bytes = file.bytes;
  return written;
}

} // namespace nsa::model_export
