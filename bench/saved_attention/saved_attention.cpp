#include "bench/saved_attention/saved_attention.h"

#include "common/base/file.h"

#include <ATen/core/Dict.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <fstream>
#include <iterator>

namespace nsa::bench {

namespace {

constexpr const char* kBranches[3] = {"compressed", "selected", "sliding"};

std::string key_of(const char* side, int branch) {
  return std::string(side) + "_" + kBranches[branch];
}

} // namespace

NamedTensors to_named(const ops::AttentionInputs& inputs) {
  NamedTensors all{{"q", inputs.q}, {"gates", inputs.gates}};
  for (int branch = 0; branch < 3; ++branch) {
    if (!inputs.k[branch]) continue;
    all[key_of("k", branch)] = *inputs.k[branch];
    all[key_of("v", branch)] = *inputs.v[branch];
  }
  if (inputs.indices) all["indices"] = *inputs.indices;
  return all;
}

Result<ops::AttentionInputs> from_named(const NamedTensors& tensors) {
  ops::AttentionInputs in;
  const auto found = [&](const std::string& name) { return tensors.contains(name); };
  const auto wrong = [](const std::string& what) {
    return fail(ErrorCode::kInvalidArgument, "the saved attention " + what);
  };
  if (!found("q")) return wrong("holds no tensor \"q\"");
  in.q = tensors.at("q");
  if (in.q.dim() != 4) return wrong("has q of another shape than [B, S, H, D]");
  for (int branch = 0; branch < 3; ++branch) {
    const std::string k = key_of("k", branch), v = key_of("v", branch);
    if (!found(k) && !found(v)) continue;
    for (const std::string& name : {k, v}) {
      if (!found(name)) return wrong("holds no tensor \"" + name + "\"");
      const at::Tensor& x = tensors.at(name);
      if (x.dim() != 4 || x.size(0) != in.q.size(0) || x.size(3) != in.q.size(3) ||
          (branch != 0 && x.size(1) != in.q.size(1)) || x.scalar_type() != in.q.scalar_type())
        return wrong("has a tensor \"" + name + "\" that does not fit q");
    }
    in.k[branch] = tensors.at(k);
    in.v[branch] = tensors.at(v);
  }
  if (found("indices")) in.indices = tensors.at("indices");
  if (!found("gates")) return in;
  in.gates = tensors.at("gates");
  try {
    ops::check_gates(in.gates, in.q);
  } catch (const c10::Error& error) {
    return wrong("does not fit together: " + std::string(error.what_without_backtrace()));
  }
  return in;
}

Status write_tensors(const std::filesystem::path& path, const NamedTensors& tensors) {
  c10::Dict<std::string, at::Tensor> dictionary;
  for (const auto& [name, tensor] : tensors)
    dictionary.insert(name, tensor.detach().cpu().contiguous());
  const std::vector<char> bytes = torch::jit::pickle_save(dictionary);
  return write_file_atomic(path, {bytes.data(), bytes.size()});
}

Result<NamedTensors> read_tensors(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(ErrorCode::kNotFound, "cannot open " + path.string());
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  const auto other = [&](const std::string& why) {
    return fail(ErrorCode::kCorrupt, path.string() + " holds no dictionary of tensors" + why,
                "write one with nsa-bench model --save-attention, or with torch.save");
  };
  NamedTensors tensors;
  try {
    const c10::IValue value = torch::jit::pickle_load(bytes);
    if (!value.isGenericDict()) return other("");
    for (const auto& entry : value.toGenericDict()) {
      if (!entry.key().isString() || !entry.value().isTensor()) return other("");
      tensors[entry.key().toStringRef()] = entry.value().toTensor();
    }
  } catch (const std::exception& error) {
    const std::string what = error.what();
    return other(": " + what.substr(0, what.find('\n')));
  }
  return tensors;
}

} // namespace nsa::bench
