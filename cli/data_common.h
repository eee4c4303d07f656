// Functions that the `data` verbs share. They use only files and need no daemon.
#pragma once

#include "cli/verb.h"
#include "common/dataset/prepare.h"

#include <csignal>
#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace nsa::cli {

// Returns the path of GPT-2's merge ranks: --ranks, or else the place in an installation or a
// checkout. The file may be missing; the function that loads it says how to get it.
std::filesystem::path ranks_file(const Arguments& arguments, const Context& context);
Option ranks_option();

// Parses --tokenizer: a name, the path of a tokenizer.json or tokenizer.model, or a folder that has
// one.
struct NamedTokenizer {
  dataset::TokenizerKind kind = dataset::TokenizerKind::kGpt2;
  std::filesystem::path file; // argument for dataset::load_tokenizer()
};
Option data_tokenizer_option(const std::string& meaning);
Result<NamedTokenizer> named_tokenizer(const Arguments& arguments, const Context& context);

// The verb table of `data fetch`, which nsa-fetch implements. One malformed row among a billion
// must not end a fetch of days, so invalid UTF-8 is replaced and counted.
Verb data_fetch_verb();
inline constexpr auto kFetchInvalidUtf8 = dataset::InvalidUtf8::kReplace;

// Returns the options of a verb that makes a data set from text: --out, its own options, and those
// that all such verbs have. `usual` is the treatment of invalid UTF-8 without --invalid-utf8.
std::vector<Option> data_set_options(std::vector<Option> own, dataset::InvalidUtf8 usual);
// Reads the options that all such verbs have. The caller sets the inputs.
Result<dataset::PrepareOptions> data_set_of(const Arguments& arguments, const Context& context,
                                            dataset::InvalidUtf8 usual);

// Returns a bar such as "[#####-----]  42%"; `part` is from 0 to 1.
std::string bar(double part, bool unicode, int cells = 24);

// Turns SIGINT and SIGTERM into a stop request while it lives, so that an interrupted verb can
// clean up. Create it before any thread, because threads inherit the blocked signals.
class InterruptGuard {
public:
  InterruptGuard();
  ~InterruptGuard();
  std::stop_token token() const { return source_.get_token(); }

private:
  sigset_t signals_, before_;
  std::stop_source source_;
  std::jthread watcher_;
};

// A progress line. On a terminal it is redrawn, and cut so that it does not wrap. Elsewhere it
// prints a line every ten seconds. Use it on one thread.
class ProgressLine {
public:
  explicit ProgressLine(Io& io) : io_(io) {}
  // `text` is called only when the line is shown.
  void show(double elapsed_seconds, const std::function<std::string()>& text);
  void clear();

private:
  Io& io_;
  double next_line_ = 10;
  bool drawn_ = false;
};

// Prints the manifest in a dozen lines.
void print_summary(const dataset::Manifest& manifest, const std::filesystem::path& folder, Io& io);

} // namespace nsa::cli
