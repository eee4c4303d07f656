#include "cli/model_tokenizer.h"

#include "cli/data_common.h"
#include "common/dataset/manifest.h"

namespace nsa::cli {

namespace fs = std::filesystem;

namespace {

enum class TokenizerChoice : uint8_t { kAuto, kGpt2, kBytes, kNone };
constexpr auto choice_names(TokenizerChoice) {
  return names_of("auto", "gpt2", "bytes", "none");
}

} // namespace

Option tokenizer_option() {
  return {"tokenizer",
          0,
          ValueType::kText,
          "NAME",
          "the model's: auto (default: the data set says it), gpt2, bytes or none",
          false,
          choices_of<TokenizerChoice>()};
}

Result<std::optional<dataset::TokenizerKind>> find_tokenizer(const ChosenCheckpoint& chosen,
                                                             const Arguments& arguments) {
  switch (arguments.choice("tokenizer", TokenizerChoice::kAuto)) {
  case TokenizerChoice::kNone:
    return std::nullopt;
  case TokenizerChoice::kGpt2:
    return dataset::TokenizerKind::kGpt2;
  case TokenizerChoice::kBytes:
    return dataset::TokenizerKind::kBytes;
  case TokenizerChoice::kAuto:
    break;
  }
  const std::string next =
      "name the tokenizer: --tokenizer gpt2, --tokenizer bytes or, to leave it "
      "out, --tokenizer none";
  const auto data = dataset::read_manifest(chosen.spec.data.path);
  if (!data)
    return fail(data.error().code,
                "the data set, which says the tokenizer, cannot be read: " + data.error().what,
                next);
  if (data->digest != chosen.manifest.data.dataset_digest)
    return fail(ErrorCode::kConflict,
                "the data set " + chosen.spec.data.path + " is another than the checkpoint's",
                next);
  const auto kind = dataset::parse_tokenizer(data->tokenizer.name);
  if (!kind) return fail(kind.error().code, "the data set: " + kind.error().what, next);
  return *kind;
}

fs::path find_ranks(const ChosenCheckpoint& chosen, const Arguments& arguments,
                    const Context& context) {
  const fs::path copy = fs::path(chosen.spec.data.path) / dataset::kRanksFile;
  std::error_code error;
  return !arguments.has("ranks") && fs::exists(copy, error) ? copy : ranks_file(arguments, context);
}

} // namespace nsa::cli
