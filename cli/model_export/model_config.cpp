#include "cli/model_export/model_config.h"

namespace nsa::model_export {

using nlohmann::ordered_json;

ordered_json model_config(const spec::RunSpec& spec, const std::string& type,
                          std::optional<int64_t> separator) {
  const spec::ModelSection& m = spec.model;
  const spec::NsaSection& n = spec.nsa;
  ordered_json config;
  config["architectures"] = {"NsaForCausalLM"};
  config["model_type"] = "nsa";
  config["auto_map"] = {{"AutoConfig", "modeling_nsa.NsaConfig"},
                        {"AutoModelForCausalLM", "modeling_nsa.NsaForCausalLM"}};
  config["dtype"] = type;
  config["vocab_size"] = m.vocabulary;
  config["hidden_size"] = m.dimension;
  config["num_hidden_layers"] = m.layers;
  config["num_attention_heads"] = m.heads;
  config["num_key_value_heads"] = m.kv_groups;
  config["head_dim"] = m.head_dimension;
  config["intermediate_size"] = m.mlp_ratio * m.dimension;
  config["hidden_act"] = "silu";
  config["rms_norm_eps"] = m.norm_epsilon;
  config["rope_base"] = m.rope_base;
  config["max_position_embeddings"] = spec.train.sequence_length;
  config["tie_word_embeddings"] = true;
  config["attention"] = spec::text_of(m.attention);
  config["compression_block"] = n.compression_block;
  config["compression_stride"] = n.compression_stride;
  config["selection_block"] = n.selection_block;
  config["selected_blocks"] = n.selected_blocks;
  config["window"] = n.window;
  config["compression"] = spec::text_of(n.compression);
  config["gate"] = spec::text_of(n.gate);
  config["gate_temperature"] = n.gate_temperature;
  config["branches"] = n.branches;
  config["use_cache"] = false;
  if (separator) {
    config["bos_token_id"] = *separator;
    config["eos_token_id"] = *separator;
  }
  return config;
}

ordered_json generation_config(std::optional<int64_t> separator) {
  ordered_json config;
  config["use_cache"] = false; // modeling_nsa.py has no cache
  if (separator) {
    config["bos_token_id"] = *separator;
    config["eos_token_id"] = *separator;
    config["pad_token_id"] = *separator;
  }
  return config;
}

} // namespace nsa::model_export
