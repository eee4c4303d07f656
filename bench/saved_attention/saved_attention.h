// One layer's attention of a real forward pass as a file: what it attends with and the blocks that
// it selects, as a dictionary of named tensors that torch.load reads and torch.save may write.
//
//   q [B, S, H, D]; k_<branch>, v_<branch> [B, S or Nc, G, D] of each branch (compressed, selected,
//   sliding); gates [B, S, G or H, 3]; indices [B, S, G, n] int32
//
// Keys are rotated. Only q must be there. Blocking file I/O.
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
// What the file does not hold stays undefined. kInvalidArgument names the tensor that is missing or
// does not fit the others.
Result<ops::AttentionInputs> from_named(const NamedTensors& tensors);

// Tensors go to the file from the CPU, contiguous.
Status write_tensors(const std::filesystem::path& path, const NamedTensors& tensors);
// kNotFound without the file; kCorrupt when it holds something else.
Result<NamedTensors> read_tensors(const std::filesystem::path& path);

} // namespace nsa::bench
