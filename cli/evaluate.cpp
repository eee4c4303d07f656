#include "cli/connect.h"
#include "cli/json_text.h"
#include "cli/model_program.h"
#include "cli/parts.h"
#include "cli/render/table.h"
#include "cli/render/text.h"
#include "common/base/printable.h"
#include "common/base/text.h"
#include "common/dataset/mixture.h"
#include "common/spec/mixture.h"

#include <cmath>
#include <cstdio>

namespace nsa::cli {

namespace {

constexpr int64_t kNeedles = 100;

std::vector<wire::DataFolder> data_of(const spec::DataSection& data) {
  const std::vector<spec::DataSource> sources = spec::sources_of(data);
  const std::vector<std::string> names = spec::source_names(sources);
  const std::vector<int64_t> weights = spec::whole_weights(sources);
  std::vector<wire::DataFolder> folders;
  for (size_t i = 0; i < sources.size(); ++i)
    folders.push_back({sources[i].path, names[i], weights[i]});
  return folders;
}

std::string folders_text(const wire::ModelRequest& request) {
  std::vector<std::string> paths;
  for (const wire::DataFolder& folder : request.data)
    paths.push_back(folder.path);
  return join(paths, ", ");
}

// Checks that the same ids mean the same text. The size of the model's vocabulary does not tell.
Status check_tokenizer(const ChosenCheckpoint& chosen, const std::string& folder,
                       Context& context) {
  const auto trained = dataset::read_text(chosen.spec.data);
  if (!trained || trained->digest != chosen.manifest.data.dataset_digest) {
    context.io.err << "warning: the run's data set is not there any more; whether " +
                          printable(folder) + " has the same tokenizer is not known\n";
    return {};
  }
  const auto asked = dataset::read_manifest(folder); // nsa-model reports why it cannot be read
  const dataset::TokenizerRecord& ours = trained->tokenizer();
  if (!asked || asked->tokenizer.digest == ours.digest) return {};
  return fail(ErrorCode::kInvalidArgument,
              "the data set in " + folder + " has text of tokenizer " + asked->tokenizer.name +
                  (asked->tokenizer.name == ours.name ? " with other tokens than the run's"
                                                      : ", and the run's of " + ours.name),
              "prepare the text with the run's tokenizer: nsactl data prepare --tokenizer NAME");
}

Result<wire::ModelRequest> evaluation_request(const ChosenCheckpoint& chosen,
                                              const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(wire::ModelRequest request,
                 make_request(chosen, wire::ModelTask::kEvaluate, arguments));
  if (arguments.has("data")) {
    request.data = {{std::filesystem::absolute(arguments.text("data")).string(), "", 1}};
    NSA_TRY(check_tokenizer(chosen, request.data.front().path, context));
  } else {
    request.data = data_of(chosen.spec.data);
  }
  request.sequences =
      arguments.integer("sequences", chosen.spec.eval.batches * chosen.spec.train.micro_batch);
  request.sequence_length = arguments.integer("sequence-length", chosen.spec.train.sequence_length);
  request.needles = arguments.integer("needles", kNeedles);
  if (request.needles < 0)
    return fail(ErrorCode::kInvalidArgument, "--needles takes 0, which means none, or more");
  if (request.sequences < 0)
    return fail(ErrorCode::kInvalidArgument, "--sequences takes 0, which means all, or more");
  if (request.sequence_length < 1 || request.sequence_length > (int64_t{1} << 20))
    return fail(ErrorCode::kInvalidArgument, "--sequence-length takes a number from 1 to 1048576");
  return request;
}

nlohmann::ordered_json as_json(const ChosenCheckpoint& chosen, const wire::ModelRequest& request,
                               const wire::ModelEnd& end) {
  nlohmann::ordered_json sources = nlohmann::ordered_json::array();
  for (size_t i = 0; i < end.sources.size(); ++i)
    sources.push_back({{"name", request.data[i].name},
                       {"path", request.data[i].path},
                       {"weight", request.data[i].weight},
                       {"loss", end.sources[i]}});
  return {{"run", chosen.detail.summary.id},
          {"step", chosen.manifest.step},
          {"data", folders_text(request)},
          {"sources", std::move(sources)},
          {"data_digest", end.data_digest},
          {"sequences", end.sequences},
          {"sequence_length", end.sequence_length},
          {"loss", end.loss},
          {"perplexity", std::exp(end.loss)},
          {"positions", nlohmann::json(end.positions)},
          {"needles", nlohmann::json(end.needles)},
          {"seconds", end.seconds},
          {"device", end.device}};
}

void print_tables(const ChosenCheckpoint& chosen, const wire::ModelRequest& request,
                  const wire::ModelEnd& end, Context& context) {
  std::ostream& out = context.io.out;
  const auto line = [&](const char* name, const std::string& value) {
    out << name << std::string(12 - std::string_view(name).size(), ' ') << printable(value) << "\n";
  };
  line("model", chosen.detail.summary.id + "@" + std::to_string(chosen.manifest.step));
  line("data", folders_text(request) + ", digest " + end.data_digest);
  line("text", std::to_string(end.sequences) + " held-out sequences of " +
                   std::to_string(end.sequence_length) + " tokens");
  line("loss", render::decimals(end.loss, 6) + " nats a token");
  line("perplexity", render::decimals(std::exp(end.loss), 4));
  line("computed", "in " + format_duration(end.seconds) + " on " + end.device);
  if (!end.sources.empty()) out << "\ndata set                  weight     loss\n";
  for (size_t i = 0; i < end.sources.size(); ++i) {
    char row[160];
    std::snprintf(row, sizeof row, "%-24s %7lld  %7.4f", printable(request.data[i].name).c_str(),
                  static_cast<long long>(request.data[i].weight), end.sources[i]);
    out << row << "\n";
  }
  if (!end.needles.empty()) out << "\nneedle length  depth    found  asked  share\n";
  for (const wire::NeedleCell& cell : end.needles) {
    char row[96];
    std::snprintf(row, sizeof row, "%13lld  %.1f-%.1f  %5lld  %5lld  %3.0f %%\n",
                  static_cast<long long>(cell.length), cell.depth_from, cell.depth_to,
                  static_cast<long long>(cell.found), static_cast<long long>(cell.asked),
                  100.0 * static_cast<double>(cell.found) / static_cast<double>(cell.asked));
    out << row;
  }
  out << "\nposition      loss  perplexity\n";
  for (const wire::PositionLoss& range : end.positions) {
    const std::string last = std::to_string(range.to - 1);
    const std::string where =
        range.to == range.from + 1 ? last : std::to_string(range.from) + "-" + last;
    char row[96];
    std::snprintf(row, sizeof row, "%-10s %7.4f  %10.4f\n", where.c_str(), range.loss,
                  std::exp(range.loss));
    out << row;
  }
}

Result<Exit> run_evaluate(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(const ChosenCheckpoint chosen,
                 choose_checkpoint(daemon, arguments.text("RUN[@STEP]")));
  NSA_TRY_ASSIGN(const wire::ModelRequest request, evaluation_request(chosen, arguments, context));
  NSA_TRY_ASSIGN(const wire::ModelEnd end, run_model_program(context, request, [](const auto&) {}));
  if (context.output == Output::kJson)
    context.io.out << json_text(as_json(chosen, request, end)) << "\n";
  else
    print_tables(chosen, request, end, context);
  return Exit::kDone;
}

} // namespace

Verb evaluate_verb() {
  Verb verb;
  verb.name = "evaluate";
  verb.summary = "Measure a run's model on held-out text";
  verb.detail =
      "Loss, perplexity and loss by position, on the held-out split of a data set. For a set of "
      "synthetic:needle also the share of codes that the model finds, by the documents' length and "
      "by the depth of the code. Without options it reads the text of the run's own evaluations. "
      "The loss is then the one that the run recorded at this step, if it computes in the same "
      "type on the same device.";
  verb.positionals = {checkpoint_argument()};
  verb.options = {
      {"data", 0, ValueType::kPath, "FOLDER", "a data set (default: the run's)"},
      {"sequences", 0, ValueType::kInteger, "N",
       "so many, evenly spread; 0 means all (default: as the run)"},
      {"sequence-length", 0, ValueType::kInteger, "N", "tokens of each (default: as in training)"},
      {"needles", 0, ValueType::kInteger, "N",
       "documents of a needle set that are asked for their code (default: 100; 0: none)"}};
  for (Option& option : computing_options())
    verb.options.push_back(std::move(option));
  verb.examples = {
      {"nsactl evaluate k3fm2@400", "as the run evaluates itself"},
      {"nsactl evaluate @last --data /data/books --sequences 0", "all of another set"}};
  verb.run = run_evaluate;
  return verb;
}

} // namespace nsa::cli
