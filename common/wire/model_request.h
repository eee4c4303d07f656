// What nsactl asks of nsa-model, as one JSON object on its standard input, and what nsa-model
// answers: JSON lines on its standard output, of which the last is a ModelEnd or an ErrorView under
// "error". Both are of one installation.
#pragma once

#include "common/base/choice_or_text.h"
#include "common/wire/json_members.h"
#include "common/wire/rank_messages.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nsa::wire {

enum class ModelTask : uint8_t { kSample, kEvaluate, kLogits };
constexpr auto choice_names(ModelTask) {
  return names_of("sample", "evaluate", "logits");
}

struct DataFolder {
  std::string path, name;
  int64_t weight = 1;
};

struct ModelRequest {
  ChoiceOrText<ModelTask> task;
  std::string checkpoint;     // its folder, verified by whoever asks
  nlohmann::json spec;        // of the run, resolved
  std::string device = "cpu"; // auto, cpu or cuda
  int64_t threads = 1;

  // sample
  std::string prompt, tokenizer, ranks_file;
  int64_t tokens = 100;   // at most
  double temperature = 1; // 0: the most probable token
  double top_p = 1;       // draw among the most probable tokens that have this probability
  uint64_t seed = 0;

  // evaluate
  std::vector<DataFolder> data; // one, or those of a mixture
  int64_t sequences = 0;        // of the held-out split; 0: all
  int64_t sequence_length = 0;
  int64_t needles = 0; // documents of a needle set that are asked

  // logits: of rows of equal length, as F32 tensor "logits" in the safetensors file `out`
  std::vector<std::vector<int64_t>> ids;
  std::string out;
};

// Of a sample while it grows: {"text": "..."}.
struct ModelText {
  std::string text;
};

struct PositionLoss { // mean over the positions [from, to) of a sequence, nats a token
  int64_t from = 0, to = 0;
  double loss = 0;
};

struct ModelEnd {
  bool done = true;
  std::string device; // and the type that it computed in
  double seconds = 0; // loading not counted
  // sample
  int64_t prompt_tokens = 0, tokens = 0;
  double prefill_seconds = 0;
  bool end_of_document = false;
  // evaluate
  double loss = 0;
  int64_t sequences = 0, sequence_length = 0;
  std::string data_digest;
  std::vector<PositionLoss> positions;
  std::vector<double> sources; // of a mixture: loss of each data set
  std::vector<NeedleCell> needles;
};

NSA_DECLARE_JSON(DataFolder);
NSA_DECLARE_JSON(ModelRequest);
NSA_DECLARE_JSON(ModelText);
NSA_DECLARE_JSON(PositionLoss);
NSA_DECLARE_JSON(ModelEnd);

} // namespace nsa::wire
