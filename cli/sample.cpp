#include "cli/connect.h"
#include "cli/data_common.h"
#include "cli/json_text.h"
#include "cli/model_program.h"
#include "cli/model_tokenizer.h"
#include "common/base/printable.h"
#include "common/base/text.h"

#include <random>
#include <utility>

namespace nsa::cli {

namespace {

constexpr size_t kMaxPromptBytes = size_t{128} << 10;

Result<std::string> read_prompt(const Arguments& arguments, Context& context) {
  if (!arguments.has("prompt")) return std::string();
  if (arguments.text("prompt") != "-") return arguments.text("prompt");
  std::string text(std::istreambuf_iterator<char>(context.io.in), {});
  return text;
}

Result<wire::ModelRequest> sample_request(const ChosenCheckpoint& chosen,
                                          const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(const std::string prompt, read_prompt(arguments, context));
  if (prompt.size() > kMaxPromptBytes)
    return fail(ErrorCode::kInvalidArgument,
                "the prompt is longer than " + format_bytes(kMaxPromptBytes),
                "give its end alone: tail -c 100000 FILE | nsactl sample RUN --prompt -");
  if (!is_utf8(prompt))
    return fail(ErrorCode::kInvalidArgument, "the prompt is not UTF-8",
                "convert it: iconv -f latin1 -t utf8 FILE | nsactl sample RUN --prompt -");
  const int64_t tokens = arguments.integer("tokens", 100);
  if (tokens < 1 || tokens > 1'000'000)
    return fail(ErrorCode::kInvalidArgument, "--tokens takes a number from 1 to 1000000");
  if (arguments.integer("seed", 0) < 0)
    return fail(ErrorCode::kInvalidArgument,
                "--seed takes 0 or more, not " + arguments.text("seed"),
                "leave --seed out: the text is another each time then");
  NSA_TRY_ASSIGN(const double temperature, number_option(arguments, "temperature", 1, 0, 100));
  NSA_TRY_ASSIGN(const double top_p, number_option(arguments, "top-p", 1, 0, 1));
  NSA_TRY_ASSIGN(const auto tokenizer, find_tokenizer(chosen, arguments, context));
  if (!tokenizer)
    return fail(ErrorCode::kInvalidArgument, "text needs a tokenizer, and --tokenizer says none",
                "leave --tokenizer out: the data set of the run has one");
  NSA_TRY_ASSIGN(wire::ModelRequest request,
                 make_request(chosen, wire::ModelTask::kSample, arguments));
  request.prompt = prompt;
  request.tokenizer = text_of(*tokenizer);
  request.ranks_file = find_ranks(chosen, tokenizer, arguments, context).string();
  request.tokens = tokens;
  request.temperature = temperature;
  request.top_p = top_p;
  request.seed = arguments.has("seed") ? static_cast<uint64_t>(arguments.integer("seed", 0))
                                       : std::random_device{}();
  return request;
}

void print_text(Context& context, const std::string& text) {
  context.io.out << (context.raw ? text : printable(text, LineBreaks::kKeep)) << std::flush;
}

void print_end(const wire::ModelRequest& request, const wire::ModelEnd& end, Context& context) {
  context.io.out << "\n";
  if (context.quiet) return;
  const double rate = end.seconds > 0 ? static_cast<double>(end.tokens) / end.seconds : 0;
  context.io.err << end.tokens << " tokens"
                 << (end.end_of_document ? ", to the end of the text" : "") << "; "
                 << format_count(rate) << " tokens/s; prompt of " << end.prompt_tokens
                 << " tokens in " << format_duration(end.prefill_seconds) << "; seed "
                 << request.seed << "; " << printable(end.device) << "\n";
}

Result<Exit> run_sample(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(const ChosenCheckpoint chosen,
                 choose_checkpoint(daemon, arguments.text("RUN[@STEP]")));
  NSA_TRY_ASSIGN(const wire::ModelRequest request, sample_request(chosen, arguments, context));
  const bool json = context.output == Output::kJson;
  std::string whole;
  // The program prints its warnings before its first text. The prompt is printed after them, so
  // that no warning separates prompt and text.
  bool begun = json;
  const auto print_prompt = [&] {
    if (!std::exchange(begun, true)) print_text(context, request.prompt);
  };
  NSA_TRY_ASSIGN(const wire::ModelEnd end,
                 run_model_program(context, request, [&](const nlohmann::json& line) {
                   const std::string text = line.value("text", "");
                   whole += text;
                   print_prompt();
                   if (!json) print_text(context, text);
                 }));
  print_prompt();
  if (!json) {
    print_end(request, end, context);
    return Exit::kDone;
  }
  context.io.out << json_text(nlohmann::ordered_json{{"run", chosen.detail.summary.id},
                                                     {"step", chosen.manifest.step},
                                                     {"prompt", request.prompt},
                                                     {"text", whole},
                                                     {"seed", request.seed},
                                                     {"prompt_tokens", end.prompt_tokens},
                                                     {"tokens", end.tokens},
                                                     {"end_of_document", end.end_of_document},
                                                     {"prefill_seconds", end.prefill_seconds},
                                                     {"seconds", end.seconds},
                                                     {"device", end.device}})
                 << "\n";
  return Exit::kDone;
}

} // namespace

Verb sample_verb() {
  Verb verb;
  verb.name = "sample";
  verb.summary = "Let a run's model continue a text";
  verb.detail =
      "The text streams while it is computed, and ends after --tokens or where the model "
      "ends its document. The same seed gives the same text on the same device. nsad does "
      "not lease a GPU for it: on cuda it shares the GPU with whatever runs there.";
  verb.positionals = {checkpoint_argument()};
  verb.options = {
      {"prompt", 'p', ValueType::kText, "TEXT", "what to continue; - reads standard input"},
      {"tokens", 'n', ValueType::kInteger, "N", "at most so many (default: 100)"},
      {"temperature", 0, ValueType::kText, "T",
       "below 1 more probable tokens, 0 always the most probable (default: 1)"},
      {"top-p", 0, ValueType::kText, "P",
       "draw among the most probable tokens that together have P (default: 1)"},
      {"seed", 0, ValueType::kInteger, "N", "of the draws (default: another each time)"},
      tokenizer_option(),
      ranks_option()};
  for (Option& option : computing_options())
    verb.options.push_back(std::move(option));
  verb.examples = {
      {"nsactl sample @last --prompt Once", "the newest checkpoint"},
      {"nsactl sample k3fm2@400 -p Once --temperature 0", "the most probable text"},
      {"cat prompt.txt | nsactl sample k3fm2 -p - --seed 7", "a prompt of several lines"}};
  verb.run = run_sample;
  return verb;
}

} // namespace nsa::cli
