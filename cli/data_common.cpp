#include "cli/data_common.h"

#include "common/base/printable.h"
#include "common/base/text.h"

#include <cstdio>

namespace nsa::cli {
namespace fs = std::filesystem;
namespace {

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

} // namespace

fs::path ranks_file(const Arguments& arguments, const Context& context) {
  if (arguments.has("ranks")) return arguments.text("ranks");
  const fs::path bin = context.program_dir;
  const fs::path installed = bin / "../share/nsad/gpt2.tiktoken";
  std::error_code error;
  if (fs::exists(installed, error)) return installed;
  return (bin / "../../../.deps/tokenizer/gpt2.tiktoken").lexically_normal(); // build/<preset>/bin
}

Option ranks_option() {
  return {"ranks", 0, ValueType::kPath, "FILE",
          "GPT-2's merge ranks, gpt2.tiktoken (default: where tools/fetch-tokenizer puts them)"};
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
  line("entropy", "unigram " + fixed(manifest.text.unigram_entropy_nats, 3) + ", bigram " +
                      fixed(manifest.text.bigram_entropy_nats, 3) + " nats a token, over " +
                      count(manifest.text.tokens) + " tokens");
}

} // namespace nsa::cli
