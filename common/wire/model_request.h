// Requests of nsactl to nsa-model, one JSON object on its standard input. nsa-model answers with
// JSON lines on its standard output. The last line is a ModelEnd, or an ErrorView under "error".
// Both programs are of one installation.
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
  std::string checkpoint;     // folder, which the caller has verified
  nlohmann::json spec;        // resolved spec of the run
  std::string device = "cpu"; // auto, cpu or cuda
  int64_t threads = 1;

  // For kSample:
  std::string prompt, tokenizer, ranks_file;
  int64_t tokens = 100;   // maximum number of new tokens
  double temperature = 1; // 0: the most probable token
  double top_p = 1;       // sample from the most probable tokens that together have this
                          // probability
  uint64_t seed = 0;

  // For kEvaluate:
  std::vector<DataFolder> data; // one data set, or all of a mixture
  int64_t sequences = 0;        // sequences of the held-out split to evaluate; 0: all
  int64_t sequence_length = 0;
  int64_t needles = 0; // number of needle documents to test

  // For kLogits: rows of equal length; the result is the F32 tensor "logits" in the safetensors
  // file `out`
  std::vector<std::vector<int64_t>> ids;
  std::string out;
};

// Sent while a sample grows: {"text": "..."}.
struct ModelText {
  std::string text;
};

struct PositionLoss { // mean over the positions [from, to) of a sequence, nats a token
  int64_t from = 0, to = 0;
  double loss = 0;
};

struct ModelEnd {
  bool done = true;
  std::string device; // device and compute type
  double seconds = 0; // loading not included
  // For kSample:
  int64_t prompt_tokens = 0, tokens = 0;
  double prefill_seconds = 0;
  bool end_of_document = false;
  // For kEvaluate:
  double loss = 0;
  int64_t sequences = 0, sequence_length = 0;
  std::string data_digest;
  std::vector<PositionLoss> positions;
  std::vector<double> sources; // loss of each data set of a mixture
  std::vector<NeedleCell> needles;
};

NSA_DECLARE_JSON(DataFolder);
NSA_DECLARE_JSON(ModelRequest);
NSA_DECLARE_JSON(ModelText);
NSA_DECLARE_JSON(PositionLoss);
NSA_DECLARE_JSON(ModelEnd);

} // namespace nsa::wire
