// nsactl data prepare: text -> data set.
#include "cli/data_common.h"
#include "cli/json_text.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/dataset/prepare.h"

#include <charconv>
#include <csignal>
#include <cstdio>
#include <stop_token>
#include <thread>

namespace nsa::cli {
namespace {

using dataset::PrepareProgress;

// Turns SIGINT and SIGTERM into a stop request while it lives, so that an interrupted preparation
// cleans up. Made before any other thread, which inherit the blocked signals.
class InterruptGuard {
public:
  InterruptGuard() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, &before_);
    watcher_ = std::jthread([this](std::stop_token done) {
      const timespec poll{0, 50'000'000};
      while (!done.stop_requested())
        if (::sigtimedwait(&signals_, nullptr, &poll) > 0) source_.request_stop();
    });
  }
  ~InterruptGuard() {
    watcher_.request_stop();
    watcher_.join();
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  std::stop_token token() const { return source_.get_token(); }

private:
  sigset_t signals_, before_;
  std::stop_source source_;
  std::jthread watcher_;
};

// One line that is drawn again on a terminal; elsewhere a line every ten seconds.
class ProgressLine {
public:
  explicit ProgressLine(Io& io) : io_(io) {}

  void show(const PrepareProgress& progress) {
    if (!io_.err_is_terminal && progress.elapsed_seconds < next_line_) return;
    next_line_ = progress.elapsed_seconds + 10;
    const std::string text = describe(progress);
    if (!io_.err_is_terminal) {
      io_.err << text << std::endl;
      return;
    }
    io_.err << '\r' << text << "\x1b[K" << std::flush;
    drawn_ = true;
  }

  void clear() {
    if (drawn_) io_.err << "\r\x1b[K" << std::flush;
    drawn_ = false;
  }

private:
  std::string describe(const PrepareProgress& progress) const {
    if (progress.stage == PrepareProgress::Stage::kMeasuring) return "measuring entropy";
    if (progress.stage == PrepareProgress::Stage::kFinishing) return "finishing";
    const double done = progress.bytes_total == 0 ? 0
                                                  : static_cast<double>(progress.bytes_done) /
                                                        static_cast<double>(progress.bytes_total);
    constexpr int kCells = 24;
    const int filled = static_cast<int>(done * kCells);
    std::string bar;
    for (int cell = 0; cell < kCells; ++cell)
      bar += cell < filled ? (io_.unicode ? "█" : "#") : (io_.unicode ? "░" : "-");
    char percent[8];
    std::snprintf(percent, sizeof percent, "%3.0f%%", done * 100);
    std::string text = "tokenising [" + bar + "] " + percent + "  " +
                       format_count(static_cast<double>(progress.documents)) + " documents, " +
                       format_count(static_cast<double>(progress.tokens)) + " tokens";
    if (done > 0.02)
      text += ", " + format_duration(progress.elapsed_seconds * (1 - done) / done) + " left";
    return text;
  }

  Io& io_;
  double next_line_ = 10;
  bool drawn_ = false;
};

Result<double> parse_fraction(const std::string& text) {
  double value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc{} || parsed.ptr != text.data() + text.size())
    return fail(ErrorCode::kInvalidArgument, "--heldout-fraction: '" + text + "' is not a number",
                "give a share of the documents, such as 0.01");
  return value;
}

Result<dataset::PrepareOptions> options_of(const Arguments& arguments, const Context& context) {
  using namespace dataset;
  PrepareOptions options;
  for (const std::string& input : arguments.all("INPUT"))
    options.inputs.emplace_back(input);
  if (!arguments.has("out"))
    return fail(ErrorCode::kInvalidArgument, "the output folder is missing",
                "say where the data set is to be made: --out FOLDER");
  options.output = arguments.text("out");
  options.tokenizer = arguments.text("tokenizer", options.tokenizer);
  options.ranks_file = ranks_file(arguments, context);
  options.documents = arguments.choice("documents", DocumentUnit::kFile);
  options.min_document_bytes = arguments.integer("min-document-bytes", 0);
  options.invalid_utf8 = arguments.choice("invalid-utf8", InvalidUtf8::kError);
  options.jsonl_key = arguments.text("jsonl-key", options.jsonl_key);
  if (arguments.has("heldout-fraction")) {
    NSA_TRY_ASSIGN(options.heldout_fraction, parse_fraction(arguments.text("heldout-fraction")));
  }
  options.seed = static_cast<uint64_t>(arguments.integer("seed", 1));
  options.shard_tokens = arguments.integer("shard-tokens", options.shard_tokens);
  options.threads = static_cast<int>(arguments.integer("threads", 0));
  if (arguments.has("reuse") && arguments.has("replace"))
    return fail(ErrorCode::kInvalidArgument, "--reuse and --replace exclude each other");
  options.if_exists = arguments.has("reuse")     ? IfExists::kReuse
                      : arguments.has("replace") ? IfExists::kReplace
                                                 : IfExists::kFail;
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

Result<Exit> run(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(const dataset::PrepareOptions options, options_of(arguments, context));
  const InterruptGuard interrupt;
  ProgressLine line(context.io);
  const auto result = dataset::prepare(
      options, [&](const PrepareProgress& progress) { line.show(progress); }, interrupt.token());
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
  verb.options = {
      {"out", 0, ValueType::kPath, "FOLDER", "the data set to make"},
      {"tokenizer",
       0,
       ValueType::kText,
       "NAME",
       "gpt2 (default) or bytes",
       false,
       {"gpt2", "bytes"}},
      {"documents", 0, ValueType::kText, "UNIT",
       "a document of plain text is a file (default) or a paragraph", false,
       choices_of<dataset::DocumentUnit>()},
      {"min-document-bytes", 0, ValueType::kInteger, "N", "join paragraphs up to this size"},
      {"invalid-utf8", 0, ValueType::kText, "WHAT",
       "bytes that are not UTF-8: error (default), replace or keep", false,
       choices_of<dataset::InvalidUtf8>()},
      {"jsonl-key", 0, ValueType::kText, "KEY", "the key of the text in .jsonl (default: text)"},
      {"heldout-fraction", 0, ValueType::kText, "SHARE",
       "share of the documents that are held out for evaluation (default: 0.01)"},
      {"seed", 0, ValueType::kInteger, "N",
       "seed of the choice of held-out documents (default: 1)"},
      {"shard-tokens", 0, ValueType::kInteger, "N", "tokens a shard (default: 100000000)"},
      {"threads", 0, ValueType::kInteger, "N", "threads that tokenise (default: all processors)"},
      {"reuse", 0, ValueType::kFlag, "", "accept an existing data set of the same sources"},
      {"replace", 0, ValueType::kFlag, "", "replace an existing data set"},
      ranks_option(),
  };
  verb.examples = {
      {"nsactl data prepare --out data/mine texts/ more.jsonl.gz", "GPT-2 tokens"},
      {"nsactl data prepare --tokenizer bytes --documents paragraph --out data/book book.txt",
       "bytes of one long text"},
  };
  verb.run = run;
  return verb;
}

} // namespace nsa::cli
