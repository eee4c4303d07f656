// Saves one layer's attention of a real forward pass in a file: its inputs and the selected blocks.
// The file is a dictionary of named tensors that torch.load can read and torch.save can write.
//
//   q [B, S, H, D]; k_<branch>, v_<branch> [B, S or Nc, G, D] of each branch (compressed, selected,
//   sliding); gates [B, S, G or H, 3]; indices [B, S, G, n] int32
//
// Keys are rotated. Only q is mandatory. File I/O blocks.
#pragma once

#include "common/base/result.h"
#include "nsa_model/ops/attention.h"

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

namespace nsa::bench {

using NamedTensors = std::map<std::string, at::Tensor>;

NamedTensors to_named(const ops::AttentionInputs& inputs);
// Tensors that the file lacks stay undefined. The error kInvalidArgument names the tensor that is
// missing or does not match the others.
Result<ops::AttentionInputs> from_named(const NamedTensors& tensors);

// Writes the tensors from contiguous copies on the CPU.
Status write_tensors(const std::filesystem::path& path, const NamedTensors& tensors);
// Fails with kNotFound if there is no file, and with kCorrupt if it holds something else.
Result<NamedTensors> read_tensors(const std::filesystem::path& path);

} // namespace nsa::bench
