#include "common/dataset/fit.h"

#include "common/dataset/generations.h"
#include "common/dataset/needle_set.h"
#include "common/dataset/tokenizer.h"
#include "common/spec/mixture.h"

#include <algorithm>
#include <optional>

namespace nsa::dataset {

namespace {

class FitCheck {
public:
  FitCheck(const spec::Parsed& parsed, const std::string& file, const FileOpener& open)
      : parsed_(parsed), spec_(parsed.spec), file_(file), open_(open) {}

  Fit all() {
    const std::vector<spec::DataSource> sources = spec::sources_of(spec_.data);
    for (size_t i = 0; i < sources.size(); ++i) {
      const std::string key = spec::source_key(spec_.data, i);
      if (!spec::is_sound(parsed_, key)) continue;
      if (const auto manifest = read(key, sources[i])) {
        vocabulary(*manifest, sources[i].path);
        lengths(*manifest, sources[i].path);
        same_text(*manifest, key);
        read_.emplace_back(key, *manifest);
      }
    }
    if (read_.size() == sources.size()) needles();
    return std::move(fit_);
  }

private:
  void add(const std::string& key, std::string what, std::string next) {
    fit_.problems.push_back(
        spec::problem_at(parsed_, file_, key, std::move(what), std::move(next)));
  }

  std::optional<Manifest> read(const std::string& key, const spec::DataSource& source) {
    auto manifest = read_source(source, open_);
    if (manifest) return std::move(*manifest);
    if (manifest.error().code == ErrorCode::kNotFound && source.follow)
      fit_.absent.push_back({key, source.path, manifest.error().what, manifest.error().next});
    else if (manifest.error().code == ErrorCode::kNotFound)
      fit_.absent.push_back({key, source.path, "there is no data set in " + source.path,
                             "make one: nsactl data prepare --out " + source.path + " TEXT..."});
    else
      add(key, manifest.error().what, manifest.error().next);
    return std::nullopt;
  }

  void vocabulary(const Manifest& manifest, const std::string& path) {
    const int64_t vocabulary = manifest.tokenizer.vocabulary_size;
    if (!spec::is_sound(parsed_, "model.vocabulary") || spec_.model.vocabulary >= vocabulary)
      return;
    add("model.vocabulary",
        "must be at least " + std::to_string(vocabulary) + ", not " +
            std::to_string(spec_.model.vocabulary) + ": the data set in " + path +
            " has token ids up to " + std::to_string(vocabulary - 1),
        "padded to whole tiles: model.vocabulary = " +
            std::to_string(padded_vocabulary_size(manifest.tokenizer.vocabulary_size)));
  }

  void lengths(const Manifest& manifest, const std::string& path) {
    if (!spec::is_sound(parsed_, "train.sequence_length")) return;
    const int64_t needed = spec_.train.sequence_length + 1; // the last token is only predicted
    const auto check = [&](Split split, const std::string& name, const std::string& next) {
      if (const int64_t tokens = manifest.tokens(split); tokens < needed)
        add("train.sequence_length",
            "is " + std::to_string(spec_.train.sequence_length) + ", but the " + name +
                " split of the data set in " + path + " has " + std::to_string(tokens) +
                " tokens, and a sequence needs " + std::to_string(needed),
            next);
    };
    check(Split::kTrain, "train", "prepare more text, or train on shorter sequences");
    if (spec_.eval.at_end || spec_.eval.interval_steps > 0)
      check(Split::kHeldout, "held-out",
            "prepare the data with a larger held-out fraction, or set eval.at_end = false and "
            "eval.interval_steps = 0");
  }

  void needles() {
    const bool there = std::any_of(read_.begin(), read_.end(),
                                   [](const auto& source) { return is_needle_set(source.second); });
    if (spec_.eval.needles <= 0 || there || !spec::is_sound(parsed_, "eval.needles")) return;
    add("eval.needles",
        "is " + std::to_string(spec_.eval.needles) +
            ", but no data set of the run is one of synthetic:needle",
        "set eval.needles = 0, or fetch one: nsactl data fetch synthetic:needle --out FOLDER");
  }

  // Checks what the data sets of a mixture must and must not have in common.
  void same_text(const Manifest& manifest, const std::string& key) {
    for (const auto& [other_key, other] : read_) {
      if (other.tokenizer.digest != manifest.tokenizer.digest) {
        const bool same_name = other.tokenizer.name == manifest.tokenizer.name;
        return add(key,
                   "has text of tokenizer " + manifest.tokenizer.name +
                       (same_name ? " with other tokens" : "") + ", and " + other_key +
                       " has text of " + other.tokenizer.name,
                   "prepare the text with the same tokenizer: nsactl data prepare --tokenizer " +
                       other.tokenizer.name);
      }
      if (other.digest == manifest.digest)
        return add(key, "holds the same data set as " + other_key,
                   "write one table with the sum of the weights");
    }
  }

  const spec::Parsed& parsed_;
  const spec::RunSpec& spec_;
  const std::string& file_;
  const FileOpener& open_;
  Fit fit_;
  std::vector<std::pair<std::string, Manifest>> read_; // each with its key
};

} // namespace

Fit check_fit(const spec::Parsed& parsed, const std::string& file, const FileOpener& open) {
  return FitCheck(parsed, file, open).all();
}

} // namespace nsa::dataset
