#include "cli/data_common.h"

#include "cli/render/text.h"
#include "common/base/printable.h"
#include "common/base/text.h"

#include <charconv>
#include <cstdio>
#include <iterator>

namespace nsa::cli {
namespace fs = std::filesystem;
namespace {

// Returns the first `count` characters of a UTF-8 text.
std::string first_characters(std::string text, int count) {
  for (size_t i = 0; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80 && count-- <= 0) {
      text.resize(i);
      break;
    }
  return text;
}

// Parses --heldout-fraction, which must be set.
Result<double> heldout_fraction(const Arguments& arguments) {
  const std::string text = arguments.text("heldout-fraction");
  double value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc{} || parsed.ptr != text.data() + text.size())
    return fail(ErrorCode::kInvalidArgument, "--heldout-fraction: '" + text + "' is not a number",
                "give a share of the documents, such as 0.01");
  return value;
}

} // namespace

fs::path ranks_file(const Arguments& arguments, const Context& context) {
  if (arguments.has("ranks")) return arguments.text("ranks");
  const fs::path bin = context.program_dir;
  fs::path installed = bin / "../share/nsad/gpt2.tiktoken";
  std::error_code error;
  if (fs::exists(installed, error)) return installed;
  // The program is in build/<preset>/bin.
  return (bin / "../../../.deps/tokenizer/gpt2.tiktoken").lexically_normal();
}

Option ranks_option() {
  return {"ranks", 0, ValueType::kPath, "FILE",
          "GPT-2's merge ranks, gpt2.tiktoken (default: where tools/fetch-tokenizer puts them)"};
}

Option data_tokenizer_option(const std::string& meaning) {
  return {"tokenizer", 0, ValueType::kText, "NAME",
          meaning + ": gpt2 (default), bytes, or the path of a tokenizer.json or tokenizer.model"};
}

Result<NamedTokenizer> named_tokenizer(const Arguments& arguments, const Context& context) {
  using dataset::TokenizerKind;
  const std::string text = arguments.text("tokenizer", "gpt2");
  const fs::path path = text;
  std::error_code error;
  if (path.extension() == ".json") return NamedTokenizer{TokenizerKind::kHuggingFace, path};
  if (path.extension() == ".model") return NamedTokenizer{TokenizerKind::kSentencePiece, path};
  // A name keeps its meaning even if a folder called gpt2 exists.
  const auto named = choice_from<TokenizerKind>(text);
  if (!text.empty() && (!named || dataset::is_named_by_file(*named))) {
    for (const TokenizerKind kind : {TokenizerKind::kHuggingFace, TokenizerKind::kSentencePiece})
      if (const fs::path file = path / dataset::tokenizer_file_name(kind); fs::exists(file, error))
        return NamedTokenizer{kind, file};
    if (fs::is_directory(path, error))
      return fail(ErrorCode::kNotFound,
                  "the folder " + text + " has no tokenizer.json and no tokenizer.model",
                  "name a folder that has one, a file, gpt2 or bytes");
    if (fs::exists(path, error))
      return fail(ErrorCode::kInvalidArgument,
                  "the name of " + text + " does not say what tokenizer the file holds",
                  "give it a name that ends in .json or .model");
  }
  NSA_TRY_ASSIGN(const TokenizerKind kind, dataset::parse_tokenizer(text));
  if (dataset::is_named_by_file(kind))
    return fail(ErrorCode::kInvalidArgument, "such a tokenizer is named by its file",
                "give the path: --tokenizer model/" +
                    std::string(dataset::tokenizer_file_name(kind)));
  return NamedTokenizer{kind, ranks_file(arguments, context)};
}

std::vector<Option> data_set_options(std::vector<Option> own, dataset::InvalidUtf8 usual) {
  std::vector<Option> options = {{"out", 0, ValueType::kPath, "FOLDER", "the data set to make"}};
  std::move(own.begin(), own.end(), std::back_inserter(options));
  const std::vector<Option> shared = {
      data_tokenizer_option("what makes tokens of text"),
      {"documents", 0, ValueType::kText, "UNIT",
       "a document of plain text is a file (default) or a paragraph", false,
       choices_of<dataset::DocumentUnit>()},
      {"min-document-bytes", 0, ValueType::kInteger, "N", "join paragraphs up to this size"},
      {"invalid-utf8", 0, ValueType::kText, "WHAT",
       "bytes that are not UTF-8: error, replace or keep (default: " + text_of(usual) + ")", false,
       choices_of<dataset::InvalidUtf8>()},
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
  options.insert(options.end(), shared.begin(), shared.end());
  return options;
}

Result<dataset::PrepareOptions> data_set_of(const Arguments& arguments, const Context& context,
                                            dataset::InvalidUtf8 usual) {
  using namespace dataset;
  if (arguments.text("out").empty())
    return fail(ErrorCode::kInvalidArgument, "the output folder is missing",
                "say where the data set is to be made: --out FOLDER");
  PrepareOptions options;
  options.output = arguments.text("out");
  NSA_TRY_ASSIGN(const NamedTokenizer tokenizer, named_tokenizer(arguments, context));
  if (arguments.has("ranks") && tokenizer.kind != TokenizerKind::kGpt2)
    return fail(ErrorCode::kInvalidArgument,
                "--ranks has no effect: the ranks are GPT-2's, and --tokenizer names another",
                "leave --ranks out, or write --tokenizer gpt2");
  options.tokenizer = tokenizer.kind;
  options.ranks_file = tokenizer.file;
  options.documents = arguments.choice("documents", DocumentUnit::kFile);
  options.min_document_bytes = arguments.integer("min-document-bytes", 0);
  options.invalid_utf8 = arguments.choice("invalid-utf8", usual);
  if (arguments.has("heldout-fraction")) {
    NSA_TRY_ASSIGN(options.heldout_fraction, heldout_fraction(arguments));
  }
  options.seed = static_cast<uint64_t>(arguments.integer("seed", 1));
  options.shard_tokens = arguments.integer("shard-tokens", options.shard_tokens);
  options.threads = static_cast<int>(arguments.integer("threads", 0));
  if (arguments.has("reuse") && arguments.has("replace"))
    return fail(ErrorCode::kInvalidArgument, "--reuse and --replace exclude each other",
                "--reuse keeps the existing data set, --replace makes it again");
  options.if_exists = arguments.has("reuse")     ? IfExists::kReuse
                      : arguments.has("replace") ? IfExists::kReplace
                                                 : IfExists::kFail;
  return options;
}

std::string bar(double part, bool unicode, int cells) {
  const int filled = static_cast<int>(part * cells);
  std::string text = "[";
  for (int cell = 0; cell < cells; ++cell)
    text += cell < filled ? (unicode ? "█" : "#") : (unicode ? "░" : "-");
  char percent[16];
  std::snprintf(percent, sizeof percent, "] %3.0f%%", part * 100);
  return text + percent;
}

InterruptGuard::InterruptGuard() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  watcher_ = std::jthread([this](const std::stop_token& done) {
    const timespec poll{0, 50'000'000};
    while (!done.stop_requested())
      if (::sigtimedwait(&signals_, nullptr, &poll) > 0) source_.request_stop();
  });
}

InterruptGuard::~InterruptGuard() {
  watcher_.request_stop();
  watcher_.join();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void ProgressLine::show(double elapsed_seconds, const std::function<std::string()>& text) {
  if (!io_.err_is_terminal && elapsed_seconds < next_line_) return;
  next_line_ = elapsed_seconds + 10;
  if (!io_.err_is_terminal) {
    io_.err << text() << std::endl;
    return;
  }
  // A wrapped line could not be redrawn. A terminal's width is known only if stdout is a terminal,
  // too.
  const int width = io_.current_width ? io_.current_width() : 80;
  io_.err << '\r' << first_characters(text(), width - 1) << "\x1b[K" << std::flush;
  drawn_ = true;
}

void ProgressLine::clear() {
  if (drawn_) io_.err << "\r\x1b[K" << std::flush;
  drawn_ = false;
}

void print_summary(const dataset::Manifest& manifest, const fs::path& folder, Io& io) {
  using dataset::Split;
  uint64_t bytes = 0;
  for (const auto& shard : manifest.shards)
    bytes += shard.bytes;
  const auto& tokenizer = manifest.tokenizer;
  auto line = [&](const char* name, const std::string& value) {
    io.out << name << std::string(14 - std::string_view(name).size(), ' ') << printable(value)
           << '\n';
  };
  auto count = [](int64_t n) { return std::to_string(n); };
  line("data set", folder.string());
  line("digest", manifest.digest);
  line("tokenizer", tokenizer.name + ", vocabulary " + count(tokenizer.vocabulary_size) +
                        " (model.vocabulary = " +
                        count(dataset::padded_vocabulary_size(tokenizer.vocabulary_size)) + ")");
  line("documents",
       count(manifest.documents) + ", " + count(manifest.heldout_documents) + " of them held out");
  line("tokens", count(manifest.tokens(Split::kTrain)) + " to train on, " +
                     count(manifest.tokens(Split::kHeldout)) + " held out");
  line("shards", count(static_cast<int64_t>(manifest.shards.size())) + ", " + format_bytes(bytes));
  line("sources", count(static_cast<int64_t>(manifest.sources.size())) + " files");
  if (manifest.replaced_characters > 0)
    line("replaced", count(manifest.replaced_characters) + " ill-formed characters became U+FFFD");
  line("entropy", "unigram " + render::decimals(manifest.text.unigram_entropy_nats, 3) +
                      ", bigram " + render::decimals(manifest.text.bigram_entropy_nats, 3) +
                      " nats a token, over " + count(manifest.text.tokens) + " tokens");
}

} // namespace nsa::cli
