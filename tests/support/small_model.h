// A model that is small enough for a CPU in every dimension. From 33 tokens on its selection really
// chooses.
#pragma once

#include "nsa_model/model_config/config.h"

namespace nsa::test {

inline model::ModelConfig small_model(int64_t vocabulary = 61) {
  model::ModelConfig c;
  c.vocabulary = vocabulary;
  c.dimension = 24;
  c.layers = 2;
  c.heads = 4;
  c.kv_groups = 2;
  c.head_dimension = 8;
  c.mlp_ratio = 2;
  c.nsa.compression_block = 8;
  c.nsa.compression_stride = 4;
  c.nsa.selection_block = 8;
  c.nsa.selected_blocks = 4;
  c.nsa.window = 12;
  return c;
}

} // namespace nsa::test
