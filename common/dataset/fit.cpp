#include "common/dataset/fit.h"

#include "common/dataset/manifest.h"
#include "common/dataset/tokenizer.h"

namespace nsa::dataset {

Fit check_fit(const spec::Parsed& parsed, const std::string& file, const FileOpener& open) {
  Fit fit;
  if (!spec::is_sound(parsed, "data.path")) return fit;
  const spec::RunSpec& spec = parsed.spec;
  const auto add = [&](const std::string& key, std::string what, std::string next) {
    fit.problems.push_back(spec::problem_at(parsed, file, key, std::move(what), std::move(next)));
  };
  const auto manifest = read_manifest(spec.data.path, open);
  fit.present = manifest || manifest.error().code != ErrorCode::kNotFound;
  if (!fit.present) return fit;
  if (!manifest) {
    add("data.path", manifest.error().what, manifest.error().next);
    return fit;
  }

  const int64_t vocabulary = manifest->tokenizer.vocabulary_size;
  if (spec::is_sound(parsed, "model.vocabulary") && spec.model.vocabulary < vocabulary)
    add("model.vocabulary",
        "must be at least " + std::to_string(vocabulary) + ", not " +
            std::to_string(spec.model.vocabulary) + ": the data set in " + spec.data.path +
            " has token ids up to " + std::to_string(vocabulary - 1),
        "padded to whole tiles: model.vocabulary = " +
            std::to_string(padded_vocabulary_size(manifest->tokenizer.vocabulary_size)));

  if (!spec::is_sound(parsed, "train.sequence_length")) return fit;
  const int64_t needed = spec.train.sequence_length + 1; // the last token is only predicted
  const auto check_split = [&](Split split, const std::string& name, const std::string& next) {
    if (const int64_t tokens = manifest->tokens(split); tokens < needed)
      add("train.sequence_length",
          "is " + std::to_string(spec.train.sequence_length) + ", but the " + name +
              " split of the data set in " + spec.data.path + " has " + std::to_string(tokens) +
              " tokens, and a sequence needs " + std::to_string(needed),
          next);
  };
  check_split(Split::kTrain, "train", "prepare more text, or train on shorter sequences");
  if (spec.eval.at_end || spec.eval.interval_steps > 0)
    check_split(Split::kHeldout, "held-out",
                "prepare the data with a larger held-out fraction, or set eval.at_end = false and "
                "eval.interval_steps = 0");
  return fit;
}

} // namespace nsa::dataset
