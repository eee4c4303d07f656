#include "daemon/requests/origin_rules.h"

#include "common/base/text.h"
#include "common/spec/fields.h"

#include <algorithm>

namespace nsa::control {

namespace {

constexpr const char* kShapes[] = {"model.attention", "model.vocabulary",    "model.dimension",
                                   "model.layers",    "model.heads",         "model.kv_groups",
                                   "model.mlp_ratio", "model.head_dimension"};
constexpr const char* kShapesOfNsa[] = {"nsa.branches", "nsa.gate", "nsa.compression"};

// The value in the form of a run file.
std::string value_of(const spec::RunSpec& spec, const std::string& key) {
  spec::RunSpec copy = spec;
  for (const spec::Field& field : spec::run_fields(copy))
    if (field.key == key) return spec::to_toml(spec::get(field));
  return {};
}

// The order of branches makes no difference.
spec::RunSpec with_sorted_branches(spec::RunSpec spec) {
  std::sort(spec.nsa.branches.begin(), spec.nsa.branches.end());
  return spec;
}

} // namespace

std::vector<std::string> shape_keys(const spec::RunSpec& spec) {
  std::vector<std::string> keys(std::begin(kShapes), std::end(kShapes));
  if (spec.model.attention != spec::Attention::kNsa) return keys;
  keys.insert(keys.end(), std::begin(kShapesOfNsa), std::end(kShapesOfNsa));
  if (spec.nsa.compression == spec::Compression::kMlp) keys.emplace_back("nsa.compression_block");
  return keys;
}

std::vector<Misfit> shape_misfits(const spec::Origin& origin, const spec::RunSpec& parent,
                                  const spec::RunSpec& child) {
  const spec::RunSpec theirs = with_sorted_branches(parent), ours = with_sorted_branches(child);
  std::vector<Misfit> misfits;
  for (const std::string& key : shape_keys(parent)) {
    // If the kind of attention differs, other [nsa] keys cannot be compared.
    if (key.starts_with("nsa.") && child.model.attention != parent.model.attention) continue;
    const std::string their = value_of(theirs, key), our = value_of(ours, key);
    if (their == our) continue;
    misfits.push_back(
        {key,
         "is " + our + ", and the weights of run " + origin.run + " are of a model with " + their,
         "set " + key + " = " + their + ", or begin without origin.checkpoint"});
  }
  return misfits;
}

std::optional<Misfit> tokenizer_misfit(const spec::Origin& origin,
                                       const std::optional<dataset::Manifest>& parent,
                                       const std::string& trained_on,
                                       const dataset::Manifest& child) {
  if (trained_on == child.digest) return std::nullopt;
  if (!parent)
    return Misfit{"data.path",
                  "must hold text of the tokenizer that run " + origin.run +
                      " was trained with, and the data set of that run cannot be read",
                  "bring its data set back, or train on it"};
  if (parent->tokenizer.digest == child.tokenizer.digest) return std::nullopt;
  const bool same_name = parent->tokenizer.name == child.tokenizer.name;
  return Misfit{"data.path",
                "has text of tokenizer " + child.tokenizer.name +
                    (same_name ? " with other tokens" : "") + ", and run " + origin.run +
                    " was trained with " + parent->tokenizer.name,
                "prepare the text with the same tokenizer: nsactl data prepare --tokenizer " +
                    parent->tokenizer.name};
}

std::optional<Misfit> step_misfit(const spec::Origin& origin, const std::vector<uint64_t>& kept) {
  if (std::find(kept.begin(), kept.end(), origin.step) != kept.end()) return std::nullopt;
  std::vector<std::string> names;
  for (const uint64_t step : kept)
    names.push_back(std::to_string(step));
  return Misfit{"origin.checkpoint",
                "names step " + std::to_string(origin.step) + ", and run " + origin.run +
                    " keeps no usable checkpoint of it" +
                    (names.empty() ? std::string() : "; it keeps " + join(names, ", ")),
                "see nsactl ckpt ls " + origin.run};
}

std::string beginning(const spec::RunSpec& child) {
  return "begins with the weights " +
         std::string(child.origin.optimizer ? "and the optimizer state of " : "of ") +
         child.origin.checkpoint + "; steps, schedule and text start again" +
         (child.origin.optimizer ? "" : ", and so does the optimizer");
}

} // namespace nsa::control
