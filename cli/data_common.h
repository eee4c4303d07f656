// What the `data` verbs share. They work on files alone and need no daemon.
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

// GPT-2's merge ranks: --ranks, else where an installation or a checkout keeps them. The path need
// not exist: who loads it says how to get it.
std::filesystem::path ranks_file(const Arguments& arguments, const Context& context);
Option ranks_option();

// --tokenizer: a name, or the path of a tokenizer.json or tokenizer.model, or of a folder that has
// one.
struct NamedTokenizer {
  dataset::TokenizerKind kind = dataset::TokenizerKind::kGpt2;
  std::filesystem::path file; // as dataset::load_tokenizer() takes it
};
Option data_tokenizer_option(const std::string& meaning);
Result<NamedTokenizer> named_tokenizer(const Arguments& arguments, const Context& context);

// The table of `data fetch`, which nsa-fetch carries out. One ill-formed row among a billion must
// not end a fetch of days: it is replaced and counted.
Verb data_fetch_verb();
inline constexpr auto kFetchInvalidUtf8 = dataset::InvalidUtf8::kReplace;

// The options of whoever makes a data set of text: --out, his own, and those that all have.
// `usual`: what becomes of bytes that are not UTF-8 without --invalid-utf8.
std::vector<Option> data_set_options(std::vector<Option> own, dataset::InvalidUtf8 usual);
// What those that all have say; the inputs are the caller's.
Result<dataset::PrepareOptions> data_set_of(const Arguments& arguments, const Context& context,
                                            dataset::InvalidUtf8 usual);

// "[#####-----]  42%"; `part` from 0 to 1.
std::string bar(double part, bool unicode, int cells = 24);

// Turns SIGINT and SIGTERM into a stop request while it lives, so that what is interrupted can
// clean up. Made before any other thread, which inherit the blocked signals.
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

// One line that is drawn again on a terminal, and cut there where it would wrap; elsewhere a line
// every ten seconds. One thread.
class ProgressLine {
public:
  explicit ProgressLine(Io& io) : io_(io) {}
  // `text` is called when the line is to be shown.
  void show(double elapsed_seconds, const std::function<std::string()>& text);
  void clear();

private:
  Io& io_;
  double next_line_ = 10;
  bool drawn_ = false;
};

// The manifest in a dozen lines.
void print_summary(const dataset::Manifest& manifest, const std::filesystem::path& folder, Io& io);

} // namespace nsa::cli
