#include "worker/inference/samples.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/printable.h"
#include "common/dataset/unicode.h"
#include "common/manifest/manifest.h"
#include "worker/inference/generate.h"

namespace nsa::inference {

Result<SampleWriter> SampleWriter::open(const dataset::Dataset& data, int64_t count, uint64_t seed,
                                        std::filesystem::path folder) {
  auto tokenizer = data.load_tokenizer();
  if (!tokenizer) {
    Error error = std::move(tokenizer).error().within("eval.samples");
    error.next =
        "copy the tokenizer's file into " + data.folder().string() + ", or set eval.samples = 0";
    return fail(std::move(error));
  }
  SampleWriter writer;
  writer.tokenizer_ = std::move(*tokenizer);
  writer.count_ = count;
  writer.seed_ = seed;
  writer.folder_ = std::move(folder);
  return writer;
}

std::string SampleWriter::sample(model::LanguageModel& model, at::Device device, uint64_t seed,
                                 const std::function<void()>& on_token) const {
  Generation what;
  what.prompt = {tokenizer_->separator()};
  what.tokens = kSampleTokens;
  what.vocabulary = tokenizer_->vocabulary_size();
  what.end = tokenizer_->separator();
  what.rule.seed = seed;
  std::vector<dataset::Token> ids;
  generate(model, device, what, [&](int64_t token) {
    ids.push_back(static_cast<dataset::Token>(token));
    on_token();
  });
  int64_t replaced = 0;
  return dataset::replace_invalid_utf8(tokenizer_->decode(ids), replaced);
}

void SampleWriter::write(model::LanguageModel& model, at::Device device, uint64_t step,
                         const std::function<void()>& on_token) const {
  std::string file;
  for (int64_t i = 0; i < count_; ++i) {
    const std::string text = sample(model, device, seed_ + static_cast<uint64_t>(i), on_token);
    file += "--- sample " + std::to_string(i + 1) + " of step " + std::to_string(step) + "\n" +
            text + "\n";
    log::info("train", "sample",
              {{"step", std::to_string(step)},
               {"number", std::to_string(i + 1)},
               {"text", printable(text)}});
  }
  const auto written = [&]() -> Status {
    NSA_TRY(make_folder(folder_));
    return write_file_atomic(folder_ / (manifest::folder_name(step) + ".txt"), file);
  }();
  if (!written)
    log::warning("train", "samples cannot be written: " + written.error().what +
                              "; training continues without them");
}

} // namespace nsa::inference
