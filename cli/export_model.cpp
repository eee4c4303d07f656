#include "cli/export_model.h"

#include "cli/checkpoint_choice.h"
#include "cli/connect.h"
#include "cli/data_common.h"
#include "cli/hints.h"
#include "cli/json_text.h"
#include "cli/model_export/export_model.h"
#include "cli/model_tokenizer.h"
#include "cli/run_records.h"
#include "common/base/build_info.h"
#include "common/base/printable.h"
#include "common/base/text.h"

namespace nsa::cli {

namespace {

namespace fs = std::filesystem;

Result<std::optional<model_export::HeldOut>> find_held_out(client::Daemon& daemon,
                                                           const ChosenCheckpoint& chosen) {
  NSA_TRY_ASSIGN(const auto records, fetch_records(daemon, chosen.detail.summary.id,
                                                   {wire::RecordKind::kEvaluation, {}, 0}));
  std::optional<model_export::HeldOut> newest;
  for (const nlohmann::json& record : records) {
    const double step = number_of(record, "step"), loss = number_of(record, "loss");
    if (step <= static_cast<double>(chosen.manifest.step) && loss == loss)
      newest = model_export::HeldOut{static_cast<uint64_t>(step), loss};
  }
  return newest;
}

void tell(const model_export::Request& request, const model_export::WrittenWeights& written,
          Context& context) {
  const std::string out = request.out.string();
  const model_export::Facts& facts = request.facts;
  if (context.output == Output::kJson) {
    context.io.out << json_text(nlohmann::ordered_json{
                          {"folder", out},
                          {"run", facts.detail.summary.id},
                          {"step", facts.checkpoint.step},
                          {"parameters", written.parameters},
                          {"bytes", written.bytes},
                          {"dtype", written.type},
                          {"tokenizer", model_export::tokenizer_text(facts)}})
                   << "\n";
    return;
  }
  context.io.out << "exported " << facts.detail.summary.id << "@" << facts.checkpoint.step << " to "
                 << printable(out) << ": " << format_count(static_cast<double>(written.parameters))
                 << " parameters, " << written.type << ", " << format_bytes(written.bytes) << "\n";
  if (!facts.tokenizer) context.io.err << "no tokenizer was exported\n";
  hint(context, {"AutoModelForCausalLM.from_pretrained(\"" + printable(out) +
                 "\", trust_remote_code=True)"});
}

} // namespace

std::vector<Option> model_options() {
  return {{"dtype", 0, ValueType::kText, "TYPE",
           "of the model's weights: stored (default), fp32 or bf16", false,
           choices_of<model_export::NumberType>()},
          tokenizer_option(),
          ranks_option(),
          {"replace", 0, ValueType::kFlag, "", "replace what --out names, if it exists"}};
}

Result<Exit> run_model_export(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(ChosenCheckpoint chosen, choose_checkpoint(daemon, arguments.text("RUN[@STEP]")));
  model_export::Request request;
  NSA_TRY_ASSIGN(request.facts.tokenizer, find_tokenizer(chosen, arguments, context));
  NSA_TRY_ASSIGN(request.facts.held_out, find_held_out(daemon, chosen));
  request.ranks_file = find_ranks(chosen, request.facts.tokenizer, arguments, context);
  request.checkpoint = chosen.view.folder;
  request.out = fs::absolute(arguments.text("out"));
  request.replace = arguments.has("replace");
  request.type = arguments.choice("dtype", model_export::NumberType::kStored);
  request.facts.spec = std::move(chosen.spec);
  request.facts.detail = std::move(chosen.detail);
  request.facts.checkpoint = std::move(chosen.manifest);
  request.facts.exported_by = build_info().version + "+" + build_info().commit;
  NSA_TRY_ASSIGN(const auto written, model_export::export_model(request));
  tell(request, written, context);
  return Exit::kDone;
}

} // namespace nsa::cli
