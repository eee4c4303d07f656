// nsa-bench data TEXT RANKS: measures the data path on this machine and prints one JSON object a
// line.
//
// It measures tokenising on one thread, and preparing with 1, 2, ... threads (including shards,
// checksums, entropy and fsync). It then measures verifying, and loading batches as fast as one
// consumer can read them. It works in a temporary folder and removes it.
#include "bench/arguments/arguments.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/dataset/prepare.h"
#include "worker/data/loader.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace {

using namespace nsa;
namespace fs = std::filesystem;

[[noreturn]] void die(const Error& error) {
  std::fprintf(stderr, "error: %s\n", error.what.c_str());
  std::exit(1);
}

template <class T> T or_die(Result<T> result) {
  if (!result) die(result.error());
  return std::move(*result);
}

void print(const nlohmann::ordered_json& line) {
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

// Seconds of the fastest of `repeats` calls, which other load on the machine disturbs least.
template <class Work> double fastest(int repeats, Work work) {
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const MonotonicTime start = MonotonicTime::now();
    work();
    best = std::min(best, to_seconds(MonotonicTime::now() - start));
  }
  return best;
}

// The decompressed text as prepare() reads it, obtained through the byte tokenizer.
std::string text_of(const fs::path& input, const fs::path& folder) {
  dataset::PrepareOptions options;
  options.inputs = {input};
  options.output = folder / "text";
  options.tokenizer = dataset::TokenizerKind::kBytes;
  options.heldout_fraction = 0;
  options.invalid_utf8 = dataset::InvalidUtf8::kReplace;
  or_die(dataset::prepare(options));
  const auto data = or_die(dataset::Dataset::open(options.output, dataset::Check::kSizes));
  const auto& tokens = data->tokens(dataset::Split::kTrain);
  std::vector<dataset::Token> all(static_cast<size_t>(tokens.size() - 1));
  tokens.copy(1, std::span(all));
  return data->load_tokenizer().value()->decode(all);
}

void measure_tokenizer(const std::string& text, const fs::path& ranks) {
  const double load = fastest(3, [&] { or_die(dataset::load_gpt2_tokenizer(ranks)); });
  const auto tokenizer = or_die(dataset::load_gpt2_tokenizer(ranks));
  std::vector<dataset::Token> ids;
  const double seconds = fastest(3, [&] {
    ids.clear();
    tokenizer->encode(text, ids);
  });
  print({{"measure", "tokenise, gpt2, 1 thread"},
         {"text_bytes", text.size()},
         {"tokens", ids.size()},
         {"load_s", load},
         {"s", seconds},
         {"mb_per_s", static_cast<double>(text.size()) / 1e6 / seconds},
         {"tokens_per_s", static_cast<double>(ids.size()) / seconds}});
}

void measure_prepare(const fs::path& input, const fs::path& ranks, const fs::path& folder) {
  const int processors = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  for (const auto tokenizer : {dataset::TokenizerKind::kBytes, dataset::TokenizerKind::kGpt2}) {
    for (int threads = 1; threads <= processors; threads *= 2) {
      dataset::PrepareOptions options;
      options.inputs = {input};
      options.output = folder / name_of(tokenizer);
      options.tokenizer = tokenizer;
      options.ranks_file = ranks;
      options.documents = dataset::DocumentUnit::kParagraph;
      options.min_document_bytes = 4096;
      options.invalid_utf8 = dataset::InvalidUtf8::kReplace;
      options.threads = threads;
      options.if_exists = dataset::IfExists::kReplace;
      dataset::PrepareResult result;
      const double seconds = fastest(3, [&] { result = or_die(dataset::prepare(options)); });
      print({{"measure", "prepare, " + nsa::text_of(tokenizer)},
             {"threads", threads},
             {"s", seconds},
             {"mb_per_s", static_cast<double>(result.text_bytes) / 1e6 / seconds},
             {"documents", result.manifest.documents},
             {"tokens", result.manifest.text.tokens},
             {"unigram_entropy_nats", result.manifest.text.unigram_entropy_nats},
             {"bigram_entropy_nats", result.manifest.text.bigram_entropy_nats}});
    }
  }
  const double seconds = fastest(3, [&] { or_die(dataset::verify(folder / "bytes")); });
  const auto data = or_die(dataset::Dataset::open(folder / "bytes", dataset::Check::kSizes));
  uint64_t bytes = 0;
  for (const auto& shard : data->manifest().shards)
    bytes += shard.bytes;
  print({{"measure", "verify"},
         {"s", seconds},
         {"mb_per_s", static_cast<double>(bytes) / 1e6 / seconds}});
}

void measure_loader(const fs::path& folder) {
  const auto data = or_die(dataset::Dataset::open(folder / "gpt2", dataset::Check::kSizes));
  for (const int64_t length : {512, 2048, 32768}) {
    data::LoaderOptions options;
    options.sources = {{data}};
    options.shape = {length, 32768 / length, 1, 0, 1};
    const auto loader = or_die(data::Loader::open(options));
    constexpr int64_t kBatches = 400;
    const double seconds = fastest(3, [&] {
      for (int64_t i = 0; i < kBatches; ++i)
        loader->next();
    });
    const auto& statistics = loader->statistics();
    print({{"measure", "load, 32,768 tokens a batch"},
           {"sequence_length", length},
           {"batch_us", seconds / kBatches * 1e6},
           {"tokens_per_s", kBatches * 32768 / seconds},
           {"assemble_us", to_seconds(statistics.assemble_total) /
                               static_cast<double>(statistics.batches) * 1e6}});
  }
}

} // namespace

int main(int argc, char** argv) {
  const bench::CommandLine command{
      "nsa-bench data",
      "Measures the data path on this machine, one JSON object a line. TEXT is a text file\n"
      "(tools/fetch-text prints the name of one), RANKS gpt2.tiktoken (tools/fetch-tokenizer).",
      "TEXT RANKS",
      {},
      {"\"$(tools/fetch-text)\" \"$(tools/fetch-tokenizer)\""}};
  const std::vector<std::string> words = bench::read_or_exit(command, argc, argv);
  if (words.size() != 2) {
    std::fprintf(stderr, "error: nsa-bench data takes TEXT and RANKS: see nsa-bench data --help\n");
    return 2;
  }
  std::string pattern = fs::temp_directory_path() / "nsa-bench-XXXXXX";
  if (!::mkdtemp(pattern.data())) die({ErrorCode::kSystem, "cannot make a temporary folder", ""});
  const fs::path folder = pattern;
  measure_tokenizer(text_of(words[0], folder), words[1]);
  measure_prepare(words[0], words[1], folder);
  measure_loader(folder);
  fs::remove_all(folder);
}
