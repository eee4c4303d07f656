// Implements `nsactl data info`, which describes a data set and shows samples of its text.
#include "cli/data_common.h"
#include "cli/json_text.h"
#include "common/base/json.h"
#include "common/dataset/dataset.h"
#include "common/dataset/unicode.h"

namespace nsa::cli {
namespace {

struct Sample {
  dataset::Split split;
  int64_t position;
  std::string text; // valid UTF-8
};

// Takes `count` samples of `length` tokens, evenly spaced over a split.
void take_samples(const dataset::Dataset& data, dataset::Split split, int64_t count, int64_t length,
                  const dataset::Tokenizer& tokenizer, std::vector<Sample>& samples) {
  const dataset::TokenSequence& tokens = data.tokens(split);
  length = std::min(length, tokens.size());
  if (length < 1) return;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = count == 1 ? 0 : (tokens.size() - length) * i / (count - 1);
    std::vector<dataset::Token> piece(static_cast<size_t>(length));
    tokens.copy(position, std::span(piece));
    int64_t replaced = 0; // a sample may begin inside a character
    samples.push_back(
        {split, position, dataset::replace_invalid_utf8(tokenizer.decode(piece), replaced)});
  }
}

Result<Exit> run_data_info(const Arguments& arguments, Context& context) {
  const std::filesystem::path folder = arguments.text("FOLDER");
  NSA_TRY_ASSIGN(const auto data, dataset::Dataset::open(folder, dataset::Check::kSizes));
  const int64_t count = arguments.integer("samples", 2), length = arguments.integer("tokens", 64);
  if (count < 0 || length < 1)
    return fail(ErrorCode::kInvalidArgument, "--samples is at least 0, and --tokens at least 1");
  std::vector<Sample> samples;
  if (count > 0) {
    NSA_TRY_ASSIGN(const auto tokenizer, data->load_tokenizer(ranks_file(arguments, context)));
    for (const auto split : {dataset::Split::kTrain, dataset::Split::kHeldout})
      take_samples(*data, split, count, length, *tokenizer, samples);
  }
  if (context.output == Output::kJson) {
    auto json = dataset::to_tree(data->manifest());
    json["folder"] = folder.string();
    json["samples"] = nlohmann::json::array();
    for (const Sample& sample : samples)
      json["samples"].push_back(
          {{"split", sample.split}, {"position", sample.position}, {"text", sample.text}});
    context.io.out << json_text(json, 2) << '\n';
    return Exit::kDone;
  }
  print_summary(data->manifest(), folder, context.io);
  for (const Sample& sample : samples)
    context.io.out << '\n'
                   << name_of(sample.split) << " at token " << sample.position << ":\n  "
                   << (context.raw ? sample.text : printable(sample.text)) << '\n';
  return Exit::kDone;
}

} // namespace

Verb data_info_verb() {
  Verb verb;
  verb.name = "data info";
  verb.summary = "Describe a data set, with samples of its text";
  verb.positionals = {{"FOLDER", ValueType::kPath, "the data set"}};
  verb.options = {
      {"samples", 0, ValueType::kInteger, "N", "samples of each split (default: 2)"},
      {"tokens", 0, ValueType::kInteger, "N", "tokens of each sample (default: 64)"},
      ranks_option(),
  };
  verb.examples = {{"nsactl data info data/mine", "tokenizer, tokens, entropy, samples"}};
  verb.run = run_data_info;
  return verb;
}

} // namespace nsa::cli
