#include "cli/model_export/model_card.h"

#include "common/base/printable.h"
#include "common/base/text.h"
#include "common/spec/spec_json.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace nsa::model_export {

namespace {

// Returns a table cell. Text that people wrote must not end the cell or start markup.
std::string cell(const std::string& text) {
  std::string safe;
  for (const char c : printable(text)) {
    if (c == '|' || c == '`' || c == '<' || c == '\\' || c == '[' || c == '*' || c == '_')
      safe += '\\';
    safe += c == '\n' ? ' ' : c;
  }
  return safe;
}

std::string number(double value, const char* format = "%.4f") {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

class Table {
public:
  Table(std::string& text, const std::vector<std::string>& header) : text_(text) {
    row(header);
    for (size_t i = 0; i < header.size(); ++i)
      text_ += i == 0 ? "|---|" : "---|";
    text_ += "\n";
  }
  void row(const std::vector<std::string>& cells) {
    for (const std::string& c : cells)
      text_ += "| " + c + " ";
    text_ += "|\n";
  }

private:
  std::string& text_;
};

std::string front_matter(const Facts& facts) {
  return "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- nsa\n"
         "- sparse-attention\nmodel_name: " +
         facts.detail.summary.name + "\n---\n\n";
}

// Returns Python code that turns text into `ids`, and the model's answer into text.
std::string how_to_encode(dataset::TokenizerKind kind, const std::string& separator) {
  if (kind == dataset::TokenizerKind::kSentencePiece)
    return "tokenizer = SentencePieceProcessor(model_file=\"tokenizer.model\")\n"
           "ids = torch.tensor([[tokenizer.piece_to_id(\"" +
           separator +
           "\")] + tokenizer.encode(\"Once\")])\n"
           "print(tokenizer.decode(model.generate(ids, max_new_tokens=50)[0].tolist()))\n";
  return "tokenizer = AutoTokenizer.from_pretrained(\".\", trust_remote_code=True)\n"
         "ids = tokenizer(\"" +
         separator +
         "Once\", add_special_tokens=False, return_tensors=\"pt\").input_ids\n"
         "print(tokenizer.decode(model.generate(ids, max_new_tokens=50)[0]))\n";
}

std::string how_to_load(const Facts& facts, const std::string& separator) {
  const bool pieces = facts.tokenizer == dataset::TokenizerKind::kSentencePiece;
  std::string text = "```python\n";
  if (pieces) text += "import torch\nfrom sentencepiece import SentencePieceProcessor\n";
  text += "from transformers import AutoModelForCausalLM";
  text += facts.tokenizer && !pieces ? ", AutoTokenizer\n\n" : "\n\n";
  text += "model = AutoModelForCausalLM.from_pretrained(\".\", trust_remote_code=True)\n";
  if (facts.tokenizer) text += how_to_encode(*facts.tokenizer, separator);
  text += "```\n\n"
          "`trust_remote_code` runs `modeling_nsa.py` of this folder; read it first. It needs "
          "PyTorch 2.5 or newer.\n"
          "Without transformers: `import modeling_nsa; model = modeling_nsa.load(\".\")`.\n";
  if (facts.tokenizer)
    text += "In training every text began with `" + separator + "`, so begin a prompt with it.\n";
  return text + "The module keeps no cache: each new token computes the whole text again.\n\n";
}

void describe_model(std::string& text, const Facts& facts, int64_t parameters,
                    const std::string& type) {
  const spec::ModelSection& m = facts.spec.model;
  const spec::NsaSection& n = facts.spec.nsa;
  text += "## Model\n\n";
  Table table(text, {"property", "value"});
  table.row({"parameters", std::to_string(parameters)});
  table.row({"weights", type});
  table.row({"layers, width, heads, key/value heads",
             std::to_string(m.layers) + ", " + std::to_string(m.dimension) + ", " +
                 std::to_string(m.heads) + ", " + std::to_string(m.kv_groups)});
  table.row({"vocabulary, padded", std::to_string(m.vocabulary)});
  table.row({"tokenizer", facts.tokenizer ? tokenizer_text(facts) : "not exported"});
  table.row({"length of training texts", std::to_string(facts.spec.train.sequence_length)});
  if (m.attention == spec::Attention::kDense) {
    table.row({"attention", "dense, causal"});
  } else {
    table.row({"attention", "Native Sparse Attention (arXiv 2502.11089): " +
                                cell(join(texts_of(n.branches), ", "))});
    table.row({"compression block, stride",
               std::to_string(n.compression_block) + ", " + std::to_string(n.compression_stride)});
    table.row({"selection block, blocks, window", std::to_string(n.selection_block) + ", " +
                                                      std::to_string(n.selected_blocks) + ", " +
                                                      std::to_string(n.window)});
  }
  text += "\n";
}

void describe_training(std::string& text, const Facts& facts) {
  const manifest::Manifest& c = facts.checkpoint;
  text += "## Training\n\n";
  Table table(text, {"property", "value"});
  table.row({"run", cell(facts.detail.summary.id + " (" + facts.detail.summary.name + ")")});
  if (!facts.spec.origin.checkpoint.empty())
    table.row({"began with the weights of", cell(facts.spec.origin.checkpoint)});
  table.row({"checkpoint",
             "step " + std::to_string(c.step) + " of " + std::to_string(facts.spec.train.steps)});
  table.row({"tokens", std::to_string(c.tokens)});
  table.row({"loss of the last step, nats a token", number(c.loss)});
  if (facts.held_out)
    table.row({"held-out loss, nats a token",
               number(facts.held_out->loss) + " at step " + std::to_string(facts.held_out->step)});
  table.row({"data set, digest", "`" + c.data.dataset_digest + "`"});
  for (const manifest::DataSource& source : c.data.sources)
    table.row({"of them with weight " + std::to_string(source.weight), "`" + source.digest + "`"});
  const std::string sequences = std::to_string(c.data.index) + " sequences";
  table.row({"text read", c.data.sources.empty() ? "epoch " + std::to_string(c.data.epoch) + ", " +
                                                       sequences + " of it"
                                                 : sequences});
  table.row({"seed", std::to_string(facts.spec.train.seed)});
  table.row({"precision", cell(c.precision + ", computed in " + c.compute)});
  table.row({"ranks, device", std::to_string(c.world_size) + ", " + cell(c.device)});
  table.row({"spec, digest", "`" + c.spec_digest + "`"});
  table.row({"nsa-worker", cell(c.build)});
  for (const auto& [name, version] : c.versions)
    table.row({cell(name), cell(version)});
  table.row({"written at", cell(c.written_at)});
  table.row({"exported by nsactl", cell(facts.exported_by)});
  text += "\n";
}

// Describes the faults of the attempts that this checkpoint is based on.
void describe_faults(std::string& text, const Facts& facts) {
  text += "## Faults\n\n";
  const int newest = facts.checkpoint.attempt;
  if (!facts.detail.summary.inject.empty())
    text += "**A fault was injected on purpose: " + cell(facts.detail.summary.inject) + ".**\n\n";
  const auto failed = [&](const wire::AttemptView& attempt) {
    return attempt.attempt < newest && !attempt.failure_class.text().empty();
  };
  if (std::none_of(facts.detail.attempts.begin(), facts.detail.attempts.end(), failed)) {
    text += newest > 1 ? "None: the run was stopped and continued, and no attempt failed.\n\n"
                       : "None: the run came to this checkpoint in its first attempt.\n\n";
    return;
  }
  text += "Each attempt continued from the newest checkpoint that had verified.\n\n";
  Table table(text, {"attempt", "from step", "to step", "ended"});
  for (const wire::AttemptView& attempt : facts.detail.attempts) {
    if (!failed(attempt)) continue;
    table.row({std::to_string(attempt.attempt), std::to_string(attempt.first_step),
               std::to_string(attempt.last_step),
               cell(attempt.failure_class.text() + ": " + attempt.reason)});
  }
  text += "\n";
}

void describe_toggles(std::string& text, const Facts& facts) {
  std::vector<const wire::ToggleView*> shown;
  for (const wire::ToggleView& toggle : facts.detail.toggles)
    if (toggle.attempt == facts.checkpoint.attempt &&
        !(toggle.requested.empty() && toggle.effective.empty()))
      shown.push_back(&toggle);
  text += "## Toggles\n\n";
  if (shown.empty()) {
    text += "The ledger has none of attempt " + std::to_string(facts.checkpoint.attempt) + ".\n";
    return;
  }
  Table table(text, {"toggle", "requested", "effective"});
  for (const wire::ToggleView* toggle : shown)
    table.row({cell(toggle->name), cell(toggle->requested), cell(toggle->effective)});
}

} // namespace

std::string tokenizer_text(const Facts& facts) {
  return facts.tokenizer ? text_of(*facts.tokenizer) : std::string();
}

std::string model_card(const Facts& facts, int64_t parameters, const std::string& type,
                       const std::string& separator) {
  std::string text = front_matter(facts);
  text += "# " + cell(facts.detail.summary.name) + "\n\n";
  if (!facts.detail.summary.note.empty()) text += cell(facts.detail.summary.note) + "\n\n";
  text += how_to_load(facts, separator);
  describe_model(text, facts, parameters, type);
  describe_training(text, facts);
  describe_faults(text, facts);
  describe_toggles(text, facts);
  return text;
}

} // namespace nsa::model_export
