// Implements `nsactl data prepare`, which makes a data set from text.
#include "cli/data_common.h"
#include "cli/json_text.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/dataset/prepare.h"

#include <cstdio>
#include <stop_token>

namespace nsa::cli {
namespace {

using dataset::PrepareProgress;

constexpr auto kUsualInvalidUtf8 = dataset::InvalidUtf8::kError;

std::string describe(const PrepareProgress& progress, bool unicode) {
  if (progress.stage == PrepareProgress::Stage::kMeasuring) return "measuring entropy";
  if (progress.stage == PrepareProgress::Stage::kFinishing) return "finishing";
  const double done = progress.bytes_total == 0 ? 0
                                                : static_cast<double>(progress.bytes_done) /
                                                      static_cast<double>(progress.bytes_total);
  std::string text = "tokenising " + bar(done, unicode) + "  " +
                     format_count(static_cast<double>(progress.documents)) + " documents, " +
                     format_count(static_cast<double>(progress.tokens)) + " tokens";
  if (done > 0.02)
    text += ", " + format_duration(progress.elapsed_seconds * (1 - done) / done) + " left";
  return text;
}

Result<dataset::PrepareOptions> options_of(const Arguments& arguments, const Context& context) {
  NSA_TRY_ASSIGN(auto options, data_set_of(arguments, context, kUsualInvalidUtf8));
  for (const std::string& input : arguments.all("INPUT"))
    options.inputs.emplace_back(input);
  options.jsonl_key = arguments.text("jsonl-key", options.jsonl_key);
  return options;
}

void print_result(const dataset::PrepareResult& result, const dataset::PrepareOptions& options,
                  Context& context) {
  Io& io = context.io;
  if (context.output == Output::kJson) {
    auto json = dataset::to_tree(result.manifest);
    json["folder"] = options.output.string();
    json["reused"] = result.reused;
    json["text_bytes"] = result.text_bytes;
    json["empty_documents"] = result.empty_documents;
    json["passed_over"] = result.passed_over;
    json["seconds"] = result.seconds;
    io.out << json_text(json, 2) << '\n';
    return;
  }
  print_summary(result.manifest, options.output, io);
  if (result.reused) {
    io.err << "prepared before from the same sources; nothing to do\n";
    return;
  }
  if (!result.passed_over.empty())
    io.err << "passed over " << result.passed_over.size() << " files without text, such as "
           << printable(result.passed_over.front()) << '\n';
  if (result.empty_documents > 0)
    io.err << "left out " << result.empty_documents << " empty documents\n";
  io.err << "took " << format_duration(result.seconds) << ", "
         << format_bytes(static_cast<uint64_t>(static_cast<double>(result.text_bytes) /
                                               std::max(result.seconds, 1e-9)))
         << " of text a second\n";
  if (!context.quiet)
    io.err << "next: nsactl data info " << printable(options.output.string())
           << "   or, in a run file: [data] path = \"" << printable(options.output.string())
           << "\"\n";
}

Result<Exit> run_data_prepare(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(const dataset::PrepareOptions options, options_of(arguments, context));
  const InterruptGuard interrupt;
  ProgressLine line(context.io);
  const auto result = dataset::prepare(
      options,
      [&](const PrepareProgress& progress) {
        line.show(progress.elapsed_seconds, [&] { return describe(progress, context.io.unicode); });
      },
      interrupt.token());
  line.clear();
  if (!result && interrupt.token().stop_requested()) {
    context.io.err << "interrupted; nothing was left behind\n";
    return Exit::kInterrupted;
  }
  if (!result) return fail(result.error());
  print_result(*result, options, context);
  return Exit::kDone;
}

} // namespace

Verb data_prepare_verb() {
  Verb verb;
  verb.name = "data prepare";
  verb.summary = "Turn text into a data set of token shards";
  verb.detail = "Text files, folders of them, .gz and .jsonl become shards, a held-out split and a "
                "manifest. The output is either complete or absent. See docs/data.md for details.";
  verb.positionals = {
      {"INPUT", ValueType::kPath, "text files, or folders of .txt .md .rst .jsonl", true, true}};
  verb.options = data_set_options(
      {{"jsonl-key", 0, ValueType::kText, "KEY", "the key of the text in .jsonl (default: text)"}},
      kUsualInvalidUtf8);
  verb.examples = {
      {"nsactl data prepare --out data/mine texts/ more.jsonl.gz", "GPT-2 tokens"},
      {"nsactl data prepare --tokenizer bytes --documents paragraph --out data/book book.txt",
       "bytes of one long text"},
  };
  verb.run = run_data_prepare;
  return verb;
}

} // namespace nsa::cli
