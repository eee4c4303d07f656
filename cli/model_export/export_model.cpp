#include "cli/model_export/export_model.h"

#include "cli/model_export/model_config.h"
#include "cli/model_export/tokenizer_files.h"
#include "common/base/embedded_file.h"
#include "common/base/file.h"
#include "common/base/text.h"
#include "common/dataset/work_folder.h"

namespace nsa::model_export {

const std::vector<EmbeddedFile>& python_files(); // defined by cmake/EmbedFiles.cmake

namespace {

namespace fs = std::filesystem;

constexpr const char* kModelFile = "model.safetensors";

Status write_json(const fs::path& path, const nlohmann::ordered_json& json) {
  return write_file_atomic(path, json.dump(2) + "\n");
}

// Writes the tokenizer and returns it, if there is one.
Result<std::optional<TokenizerFile>> write_tokenizer(const Request& request,
                                                     const fs::path& folder) {
  if (!request.facts.tokenizer) return std::nullopt;
  NSA_TRY_ASSIGN(const auto tokenizer,
                 make_tokenizer_file(*request.facts.tokenizer, request.ranks_file));
  using dataset::TokenizerKind;
  const TokenizerKind kind = *request.facts.tokenizer;
  const bool pieces = kind == TokenizerKind::kSentencePiece;
  const auto name = dataset::tokenizer_file_name(pieces ? kind : TokenizerKind::kHuggingFace);
  NSA_TRY(write_file_atomic(folder / name, tokenizer.content));
  if (pieces) return tokenizer; // its own library reads it; AutoTokenizer would need more
  NSA_TRY(write_json(
      folder / "tokenizer_config.json",
      tokenizer_config(request.facts.spec.train.sequence_length, tokenizer.separator_text)));
  return tokenizer;
}

// Checks that the weights belong to the model that config.json describes.
Status check_embedding(const safetensors::Reader& weights, const spec::ModelSection& model) {
  const auto found = weights.entries().find("embedding.weight");
  if (found == weights.entries().end() ||
      found->second.shape != std::vector<int64_t>{model.vocabulary, model.dimension})
    return fail(ErrorCode::kCorrupt, "the checkpoint's embedding is not that of the run's model",
                "read all checkpoints, and export another one: nsactl ckpt verify RUN");
  return {};
}

Result<WrittenWeights> write_files(const Request& request, const fs::path& folder) {
  const Facts& facts = request.facts;
  NSA_TRY_ASSIGN(const auto weights, safetensors::Reader::open(request.checkpoint / kModelFile));
  NSA_TRY(check_embedding(weights, facts.spec.model));
  NSA_TRY_ASSIGN(WrittenWeights written,
                 write_weights(weights, folder / kModelFile, request.type,
                               {{"run", facts.detail.summary.id},
                                {"step", std::to_string(facts.checkpoint.step)}}));
  NSA_TRY_ASSIGN(const auto tokenizer, write_tokenizer(request, folder));
  std::optional<int64_t> separator;
  if (tokenizer) separator = tokenizer->separator;
  NSA_TRY(write_json(folder / "config.json", model_config(facts.spec, written.type, separator)));
  NSA_TRY(write_json(folder / "generation_config.json", generation_config(separator)));
  for (const EmbeddedFile& file : python_files())
    NSA_TRY(write_file_atomic(folder / file.name, file.text));
  NSA_TRY(write_file_atomic(folder / "README.md",
                            model_card(facts, written.parameters, written.type,
                                       tokenizer ? tokenizer->separator_text : std::string())));
  return written;
}

Status check_free(const Request& request) {
  std::error_code error;
  if (!fs::exists(request.out, error) ||
      (fs::is_directory(request.out, error) && fs::is_empty(request.out, error)))
    return {};
  const bool is_model =
      fs::exists(request.out / "config.json", error) && fs::exists(request.out / kModelFile, error);
  if (request.replace && !is_model)
    return fail(ErrorCode::kConflict, request.out.string() + " exists and is no exported model",
                "choose another folder");
  if (request.replace) return {};
  return fail(ErrorCode::kConflict, request.out.string() + " exists",
              "choose another folder, or replace it: --replace");
}

} // namespace

Result<WrittenWeights> export_model(const Request& request) {
  NSA_TRY(check_free(request));
  if (auto whole = manifest::verify(request.checkpoint, request.facts.checkpoint); !whole) {
    Error error = std::move(whole).error().within("the checkpoint is not exported");
    error.next = "nsactl ckpt verify " + request.facts.detail.summary.id +
                 ", then export another step: RUN@STEP";
    return fail(std::move(error));
  }
  NSA_TRY_ASSIGN(auto work, dataset::WorkFolder::create(request.out));
  auto written = write_files(request, work.path());
  if (!written) {
    Error error = std::move(written).error();
    if (error.code == ErrorCode::kExhausted && error.next.empty())
      error.next = "free some space, or choose a folder on another disk; nothing was left behind";
    return fail(std::move(error));
  }
  NSA_TRY(work.commit(request.replace));
  return written;
}

} // namespace nsa::model_export
