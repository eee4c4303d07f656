#include "cli/model_tokenizer.h"

#include "cli/data_common.h"
#include "common/dataset/generations.h"
#include "common/dataset/mixture.h"
#include "common/spec/mixture.h"

namespace nsa::cli {

namespace fs = std::filesystem;

namespace {

// Returns the first data set's folder, because all data sets of a mixture have one tokenizer.
std::string first_folder(const ChosenCheckpoint& chosen) {
  return dataset::folder_of(spec::sources_of(chosen.spec.data).front()).string();
}

} // namespace

Option tokenizer_option() {
  return {"tokenizer", 0, ValueType::kText, "NAME",
          "the model's: auto (default: the data set says it), gpt2, bytes, none, or the path of a "
          "tokenizer.json or tokenizer.model"};
}

Result<std::optional<dataset::TokenizerKind>>
find_tokenizer(const ChosenCheckpoint& chosen, const Arguments& arguments, const Context& context) {
  const std::string named = arguments.text("tokenizer", "auto");
  if (named == "none") return std::nullopt;
  if (named != "auto") {
    NSA_TRY_ASSIGN(const NamedTokenizer tokenizer, named_tokenizer(arguments, context));
    return tokenizer.kind;
  }
  const std::string next = "name the tokenizer: --tokenizer gpt2, bytes or the path of its "
                           "tokenizer.json or tokenizer.model; or leave it out: --tokenizer none";
  const auto text = dataset::read_text(chosen.spec.data);
  if (!text)
    return fail(text.error().code,
                "the data set, which says the tokenizer, cannot be read: " + text.error().what,
                next);
  if (text->digest != chosen.manifest.data.dataset_digest)
    return fail(ErrorCode::kConflict,
                "the data set " + first_folder(chosen) + " is another than the checkpoint's", next);
  const auto kind = dataset::parse_tokenizer(text->tokenizer().name);
  if (!kind) return fail(kind.error().code, "the data set: " + kind.error().what, next);
  return *kind;
}

fs::path find_ranks(const ChosenCheckpoint& chosen, std::optional<dataset::TokenizerKind> kind,
                    const Arguments& arguments, const Context& context) {
  if (!kind) return {};
  const fs::path copy = fs::path(first_folder(chosen)) / dataset::tokenizer_file_name(*kind);
  if (dataset::is_named_by_file(*kind)) {
    if (arguments.text("tokenizer", "auto") == "auto") return copy;
    const auto named = named_tokenizer(arguments, context);
    return named ? named->file : copy;
  }
  std::error_code error;
  return !arguments.has("ranks") && fs::exists(copy, error) ? copy : ranks_file(arguments, context);
}

} // namespace nsa::cli
