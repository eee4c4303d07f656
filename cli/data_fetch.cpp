// Implements `nsactl data fetch` by starting nsa-fetch, which lies beside nsactl and links the
// libraries for the web and Parquet. Both programs have this table, so help and completion know
// every option.
#include "cli/columns.h"
#include "cli/data_common.h"
#include "common/dataset/prepare.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <unistd.h>

namespace nsa::cli {
namespace {

// The verb sees kJson for names and YAML, because its JSON is rewritten. nsa-fetch writes to the
// terminal itself, so it needs the real choice.
Output asked_output(const Context& context) {
  const auto* rewriter = dynamic_cast<const Rewriter*>(context.io.out.rdbuf());
  return rewriter ? rewriter->asked() : context.output;
}

// Returns words that parse to these arguments.
std::vector<std::string> words_of(const Verb& verb, const Arguments& arguments,
                                  const Context& context) {
  std::vector<std::string> words = {"data", "fetch"};
  for (const Option& option : verb.options)
    for (const std::string& value : arguments.all(option.name))
      words.push_back("--" + option.name +
                      (option.type == ValueType::kFlag ? std::string() : "=" + value));
  words.push_back("--output=" + text_of(asked_output(context)));
  if (context.quiet) words.emplace_back("--quiet");
  words.emplace_back("--");
  for (const std::string& source : arguments.all("SOURCE"))
    words.push_back(source);
  return words;
}

Result<Exit> run_data_fetch(const Arguments& arguments, Context& context) {
  const Verb verb = data_fetch_verb();
  const std::filesystem::path program = std::filesystem::path(context.program_dir) / "nsa-fetch";
  std::vector<std::string> words = words_of(verb, arguments, context);
  std::vector<char*> argv = {const_cast<char*>("nsa-fetch")};
  for (std::string& word : words)
    argv.push_back(word.data());
  argv.push_back(nullptr);
  context.io.out.flush();
  // nsa-fetch takes over nsactl's streams, signals and exit code.
  ::execv(program.c_str(), argv.data());
  return fail(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kSystem,
              "cannot start " + program.string() + ": " + std::strerror(errno),
              "install the whole archive, or build it: ninja -C build/dev nsa-fetch");
}

} // namespace

Verb data_fetch_verb() {
  Verb verb;
  verb.name = "data fetch";
  verb.summary = "Fetch text from anywhere into a data set";
  verb.detail =
      "Reads Parquet, JSON lines and text from the Hugging Face hub, from web servers, from "
      "S3-compatible stores and from files, and writes token shards as the text arrives. Whatever "
      "ends it, the same command continues at the exact document. See docs/data-fetch.md.";
  verb.positionals = {
      {"SOURCE", ValueType::kText,
       "hf://datasets/OWNER/NAME[@REVISION]/GLOB, s3://BUCKET/GLOB, a URL, files, fineweb-edu, or "
       "synthetic:KIND",
       true, true}};
  verb.options = data_set_options(
      {{"sample",
        0,
        ValueType::kText,
        "SIZE",
        "of fineweb-edu: 10BT, 100BT or 350BT",
        false,
        {"10BT", "100BT", "350BT"}},
       {"column", 0, ValueType::kText, "NAME",
        "the column of Parquet, or key of JSON lines, that holds the text (default: text)"},
       {"tokens", 0, ValueType::kInteger, "N", "end with the document that reaches N tokens"},
       {"retries", 0, ValueType::kInteger, "N",
        "tries in a row without a byte before giving up (default: 8)"},
       {"restart", 0, ValueType::kFlag, "", "delete what an earlier call left, and start again"}},
      kFetchInvalidUtf8);
  verb.examples = {
      {"nsactl data fetch fineweb-edu --sample 10BT --out data/fineweb-edu-10B", "GPT-2 tokens"},
      {"nsactl data fetch --out data/mine 'rows/*.parquet' more.jsonl.zst",
       "files of this machine"},
      {"nsactl data fetch --tokens 50000000 --out data/some "
       "'hf://datasets/OWNER/NAME/*.parquet'",
       "the first 50 million tokens"},
  };
  verb.run = run_data_fetch;
  return verb;
}

} // namespace nsa::cli
