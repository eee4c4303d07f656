// nsa-fetch carries out `nsactl data fetch`. It takes the same arguments, and prints the same texts
// and exit codes.
#include "cli/command.h"
#include "cli/data_common.h"
#include "cli/json_text.h"
#include "common/base/json.h"
#include "common/base/printable.h"
#include "common/base/text.h"
#include "fetch/fetch.h"
#include "fetch/source_list.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>

namespace nsa::fetch {
namespace {

using cli::Arguments;
using cli::Context;
using cli::Exit;

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? std::string(trim(value)) : std::string();
}

Result<HttpOptions> http_options(const Arguments& arguments) {
  HttpOptions http;
  if (const std::string hub = environment("HF_ENDPOINT"); !hub.empty()) http.hub = hub;
  http.token = environment("HF_TOKEN");
  const bool plain =
      std::all_of(http.token.begin(), http.token.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (!plain)
    return fail(ErrorCode::kInvalidArgument, "HF_TOKEN holds characters that no token has",
                "export HF_TOKEN=... again, without quotes and line ends inside");
  NSA_TRY_ASSIGN(http.s3, s3_store(environment));
  const int64_t retries = arguments.integer("retries", http.retries);
  if (retries < 0 || retries > 100)
    return fail(ErrorCode::kInvalidArgument, "--retries must lie between 0 and 100");
  http.retries = static_cast<int>(retries);
  return http;
}

Result<FetchOptions> options_of(const Arguments& arguments, const Context& context) {
  FetchOptions options;
  for (const std::string& source : arguments.all("SOURCE")) {
    NSA_TRY_ASSIGN(options.sources.emplace_back(),
                   source_of_name(source, arguments.text("sample")));
  }
  NSA_TRY_ASSIGN(options.prepare, cli::data_set_of(arguments, context, cli::kFetchInvalidUtf8));
  options.prepare.jsonl_key = arguments.text("column", options.prepare.jsonl_key);
  if (arguments.has("tokens")) options.most_tokens = arguments.integer("tokens", 0);
  options.restart = arguments.has("restart");
  NSA_TRY_ASSIGN(options.http, http_options(arguments));
  return options;
}

std::string rate(uint64_t bytes, double seconds) {
  return format_bytes(static_cast<uint64_t>(static_cast<double>(bytes) / std::max(seconds, 1e-9))) +
         "/s";
}

std::string describe(const FetchProgress& progress, bool unicode) {
  if (progress.finishing) return "finishing";
  // The most important part comes first, because a narrow terminal cuts the rest.
  std::string text = cli::bar(progress.part, unicode, 12) + "  " +
                     rate(progress.text_bytes, progress.elapsed_seconds);
  const double own = progress.part - progress.part_at_start;
  if (own > 0.005)
    text += ", " + format_duration(progress.elapsed_seconds * (1 - progress.part) / own) + " left";
  text += ", " + format_bytes(progress.written_bytes) + " written, " +
          format_bytes(progress.free_bytes) + " free, " +
          format_count(static_cast<double>(progress.tokens)) + " tokens, " +
          format_count(static_cast<double>(progress.documents)) + " documents";
  if (progress.received_bytes > 0)
    text += ", " + rate(progress.received_bytes, progress.elapsed_seconds) + " received";
  return text;
}

void print_result(const FetchResult& result, const FetchOptions& options, Context& context) {
  cli::Io& io = context.io;
  const auto& output = options.prepare.output;
  if (context.output == cli::Output::kJson) {
    auto json = dataset::to_tree(result.manifest);
    json["folder"] = output.string();
    json["reused"] = result.reused;
    json["resumed"] = result.resumed;
    json["text_bytes"] = result.text_bytes;
    json["own_text_bytes"] = result.own_text_bytes;
    json["received_bytes"] = result.received_bytes;
    json["empty_documents"] = result.empty_documents;
    json["seconds"] = result.seconds;
    io.out << cli::json_text(json, 2) << '\n';
    return;
  }
  cli::print_summary(result.manifest, output, io);
  if (result.reused) {
    io.err << "made before of the same sources; nothing to do\n";
    return;
  }
  if (result.empty_documents > 0)
    io.err << "left out " << result.empty_documents << " empty documents\n";
  io.err << "took " << format_duration(result.seconds)
         << (result.resumed ? " since it was continued, " : ", ")
         << rate(result.own_text_bytes, result.seconds) << " of text\n";
  if (!context.quiet)
    io.err << "next: nsactl data info " << printable(output.string())
           << "   or, in a run file: [data] path = \"" << printable(output.string()) << "\"\n";
}

Result<Exit> run(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(FetchOptions options, options_of(arguments, context));
  const cli::InterruptGuard interrupt;
  cli::ProgressLine line(context.io);
  std::mutex streams; // notices come from reading threads
  options.http.notice = [&](const std::string& text) {
    const std::scoped_lock lock(streams);
    line.clear();
    context.io.err << printable(text) << std::endl;
  };
  const auto result = fetch(
      options,
      [&](const FetchProgress& progress) {
        const std::scoped_lock lock(streams);
        line.show(progress.elapsed_seconds, [&] { return describe(progress, context.io.unicode); });
      },
      interrupt.token());
  line.clear();
  if (!result && interrupt.token().stop_requested()) {
    context.io.err << "interrupted; the same command continues\n";
    return Exit::kInterrupted;
  }
  if (!result) return fail(result.error());
  print_result(*result, options, context);
  return Exit::kDone;
}

} // namespace
} // namespace nsa::fetch

int main(int argc, char** argv) {
  nsa::cli::Verb verb = nsa::cli::data_fetch_verb();
  verb.run = nsa::fetch::run;
  return nsa::cli::run_process({verb}, argc, argv);
}
