#include "daemon/requests/resume_rules.h"

#include "common/base/text.h"
#include "common/spec/fields.h"
#include "common/spec/parse.h"
#include "common/spec/schedule.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string_view>

namespace nsa::control {

namespace {

using spec::OnResume;

constexpr std::string_view kToggles = "toggles.";

// The rule of the key's row in common/spec/fields.cpp. A misspelt key is let through, so that
// apply_overrides() suggests the nearest name. Tables [[data.source]] have keys of their own.
OnResume on_resume(const spec::FieldTable& fields, std::string_view key) {
  if (key.starts_with(kToggles)) return OnResume::kRounding;
  if (const spec::Field* field = spec::find_field(fields, key)) return field->on_resume;
  if (key.starts_with("data.source")) return OnResume::kFixed;
  const std::string_view table = key.substr(0, key.find('.') + 1);
  const bool is_known = std::any_of(fields.begin(), fields.end(), [&](const spec::Field& field) {
    return field.key.starts_with(table);
  });
  return is_known ? OnResume::kFree : OnResume::kFixed;
}

// The reasons for OnResume::kFixed. A key "table." holds for the rest of the table.
struct Reason {
  std::string_view key, why;
};
constexpr Reason kWhyNot[] = {
    {"model.", "the weights in the checkpoint have the shape of the model"},
    {"nsa.", "the weights were trained with these blocks, branches and gates"},
    {"data.source", "the order of the text follows from the data sets and their weights"},
    {"data.document_mask", "it decides what a token attends to"},
    {"data.follow", "the order of the text follows from it"},
    {"train.seed", "the order of the text follows from it"},
    {"train.sequence_length", "the text would be cut into other sequences"},
    {"precision.", "the checkpoint holds the state of one precision"},
    {"parallel.device", "a run keeps its kind of device"},
    {"run.name", "the run is found by it"},
    {"run.pass_environment", "nsad keeps the values that were given at the submission"},
    {"schema", "it is the version of the run file"},
    {"parallel.", "which parameters get gradients follows from the model"},
    {"origin.", "its first weights came from there"},
    {"train.", "the optimizer's state belongs to it"},
};

std::string_view key_of(std::string_view override_pair) {
  return override_pair.substr(0, override_pair.find('='));
}

bool sets(const std::vector<std::string>& overrides, std::string_view key) {
  return std::any_of(overrides.begin(), overrides.end(),
                     [&](const std::string& pair) { return key_of(pair) == key; });
}

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

std::string steps(uint64_t count) {
  return std::to_string(count) + (count == 1 ? " step" : " steps");
}

// Lists the keys of this kind that differ, as in "train.micro_batch 4 -> 2".
std::vector<std::string> changes(const spec::RunSpec& before, const spec::RunSpec& after,
                                 OnResume kind) {
  std::vector<std::string> out;
  const auto add = [&](const std::string& key, const std::string& was, const std::string& is) {
    if (was != is) out.push_back(key + " " + was + " -> " + is);
  };
  spec::RunSpec old = before, now = after;
  const spec::FieldTable then_fields = spec::run_fields(old), now_fields = spec::run_fields(now);
  for (size_t i = 0; i < now_fields.size(); ++i)
    if (now_fields[i].on_resume == kind)
      add(std::string(now_fields[i].key), spec::to_toml(spec::get(then_fields[i])),
          spec::to_toml(spec::get(now_fields[i])));
  if (kind != OnResume::kRounding) return out;
  std::map<std::string, std::pair<std::string, std::string>> toggles;
  for (const auto& [name, value] : before.toggles)
    toggles[name].first = value;
  for (const auto& [name, value] : after.toggles)
    toggles[name].second = value;
  for (const auto& [name, values] : toggles)
    add(std::string(kToggles) + name, values.first.empty() ? "default" : values.first,
        values.second.empty() ? "default" : values.second);
  return out;
}

} // namespace

Status check_changed_keys(const std::vector<std::string>& overrides) {
  spec::RunSpec spec;
  const spec::FieldTable fields = spec::run_fields(spec);
  std::vector<std::string> refused;
  for (const std::string& pair : overrides) {
    const std::string key(key_of(pair));
    if (on_resume(fields, key) != OnResume::kFixed) continue;
    std::string text = key;
    for (const Reason& reason : kWhyNot)
      if (key.starts_with(reason.key)) {
        text += " (" + std::string(reason.why) + ")";
        break;
      }
    if (std::find(refused.begin(), refused.end(), text) == refused.end()) refused.push_back(text);
  }
  if (refused.empty()) return {};
  return fail(ErrorCode::kInvalidArgument, "a resume may not change " + join(refused, ", "),
              "it may change steps, learning rate, batch shape, ranks, toggles, note and tags, and "
              "how the run is supervised; submit a new run for the rest");
}

Result<std::vector<std::string>> complete_overrides(const spec::RunSpec& before,
                                                    const std::vector<std::string>& overrides) {
  std::vector<std::string> all = overrides;
  const bool shape = sets(all, "train.micro_batch") || sets(all, "parallel.ranks") ||
                     sets(all, "parallel.context_ranks");
  const bool batch = sets(all, "train.global_batch");
  if (!shape && !batch) return all;
  const spec::RunSpec after = spec::apply_overrides(before, overrides).spec;
  // Keeps the amount of held-out text, so that the losses can be compared.
  const int64_t heldout = before.eval.batches * before.train.micro_batch;
  const int64_t micro_batch = after.train.micro_batch;
  const bool follows = micro_batch > 0 && heldout % micro_batch == 0 && !sets(all, "eval.batches");
  if (follows && heldout / micro_batch != before.eval.batches)
    all.push_back("eval.batches=" + std::to_string(heldout / micro_batch));
  if (sets(all, "train.accumulate")) return all;
  const int64_t at_once = after.train.micro_batch * after.data_ranks();
  const bool named = batch && after.train.global_batch > 0;
  const int64_t wanted = named ? after.train.global_batch : before.sequences_per_step();
  // One of the values is wrong; validation reports it with the other mistakes.
  if (at_once < 1 || wanted < 1) return all;
  if (wanted % at_once != 0)
    return fail(ErrorCode::kInvalidArgument,
                "a global batch of " + std::to_string(wanted) +
                    " sequences does not divide over micro_batch * ranks = " +
                    std::to_string(after.train.micro_batch) + " * " +
                    std::to_string(after.data_ranks()) + " = " + std::to_string(at_once),
                "choose a micro_batch and ranks whose product divides " + std::to_string(wanted) +
                    ", or a new global batch: --set train.global_batch=" +
                    std::to_string(std::max<int64_t>(1, wanted / at_once) * at_once));
  if (wanted / at_once != before.train.accumulate)
    all.push_back("train.accumulate=" + std::to_string(wanted / at_once));
  return all;
}

Status check_from(const RunId& run, uint64_t step, const std::vector<uint64_t>& kept) {
  if (std::find(kept.begin(), kept.end(), step) != kept.end()) return {};
  std::vector<std::string> names;
  for (const uint64_t one : kept)
    names.push_back(std::to_string(one));
  return fail(ErrorCode::kNotFound,
              "run " + run + " keeps no usable checkpoint of step " + std::to_string(step) +
                  (names.empty() ? std::string() : "; it keeps " + join(names, ", ")),
              "see nsactl ckpt ls " + run);
}

std::string exactness(uint64_t step, const spec::RunSpec& before, const spec::RunSpec& after) {
  const std::string after_step = "after step " + std::to_string(step);
  const bool new_data = before.data.path != after.data.path;
  const bool new_length = before.train.sequence_length != after.train.sequence_length;
  std::string text = "exact " + after_step + ": weights, optimizer state and counters";
  if (!new_data && !new_length) text += ", and the order of the text";
  std::vector<std::string> course = changes(before, after, OnResume::kCourse);
  if (new_length)
    course.push_back("train.sequence_length " + std::to_string(before.train.sequence_length) +
                     " -> " + std::to_string(after.train.sequence_length));
  if (before.sequences_per_step() != after.sequences_per_step())
    course.push_back("sequences a step " + std::to_string(before.sequences_per_step()) + " -> " +
                     std::to_string(after.sequences_per_step()));
  const std::vector<std::string> rounding = changes(before, after, OnResume::kRounding);
  if (!course.empty()) text += "; changed on purpose: " + join(course, ", ");
  if (new_data) text += "; the new text is read from its beginning";
  if (!rounding.empty()) return text + "; not bit for bit: " + join(rounding, ", ");
  const bool cuda = after.parallel.device == spec::Device::kCuda;
  if (cuda && !after.train.deterministic)
    return text + "; not bit for bit: train.deterministic is false on a GPU";
  return course.empty() ? text + "; losses are the same bit for bit" : text;
}

Status check_resume(const ResumeFacts& facts, const spec::RunSpec& before,
                    const spec::RunSpec& after) {
  const std::string resume = "nsactl resume " + facts.run;
  const uint64_t first = facts.checkpoint_step.value_or(0);
  const bool goes_back = facts.from && first < static_cast<uint64_t>(after.train.steps);
  if (facts.completed && after.train.steps <= before.train.steps && !goes_back)
    return fail(ErrorCode::kConflict,
                "run " + facts.run + " has completed all its " +
                    steps(static_cast<uint64_t>(before.train.steps)),
                "to train further: " + resume +
                    " --set train.steps=" + std::to_string(2 * before.train.steps));
  if (static_cast<uint64_t>(after.train.steps) < first)
    return fail(ErrorCode::kInvalidArgument,
                "train.steps = " + std::to_string(after.train.steps) +
                    " lies before the newest checkpoint, of step " + std::to_string(first),
                "give a later last step");
  const bool new_batch = sets(facts.overrides, "train.global_batch") &&
                         after.train.global_batch == after.sequences_per_step();
  if (before.sequences_per_step() != after.sequences_per_step() && !new_batch)
    return fail(ErrorCode::kInvalidArgument,
                "a resume keeps the global batch: " + std::to_string(before.sequences_per_step()) +
                    " sequences a step, not " + std::to_string(after.sequences_per_step()),
                "leave out train.accumulate, which then follows, or change the batch: --set "
                "train.global_batch=" +
                    std::to_string(after.sequences_per_step()));
  if (facts.from_start && facts.checkpoint_step)
    return fail(ErrorCode::kConflict,
                "run " + facts.run + " has a checkpoint of step " + std::to_string(first),
                "leave out --from-start to continue from it, or submit a new run");
  if (!facts.checkpoint_step && facts.reached_step > 0 && !facts.from_start)
    return fail(ErrorCode::kConflict,
                "run " + facts.run + " has no checkpoint: it would begin at step 0, and its " +
                    steps(facts.reached_step) + " would be computed again",
                "to begin at step 0: " + resume + " --from-start");
  return {};
}

std::vector<std::string> resume_warnings(const ResumeFacts& facts, const spec::RunSpec& before,
                                         const spec::RunSpec& after) {
  std::vector<std::string> warnings;
  // Someone who sets the rate or the schedule wants the change.
  if (!facts.checkpoint_step || sets(facts.overrides, "train.learning_rate") ||
      sets(facts.overrides, "train.schedule") ||
      sets(facts.overrides, "train.final_learning_rate_ratio"))
    return warnings;
  const uint64_t next = *facts.checkpoint_step + 1;
  const double was = spec::learning_rate(before.train, next);
  const double is = spec::learning_rate(after.train, next);
  constexpr double kNoticed = 0.05;
  if (std::abs(is - was) <= kNoticed * std::max(is, was)) return warnings;
  std::string pairs;
  for (const std::string& pair : facts.overrides)
    pairs += " --set " + pair;
  // A schedule that has ended at 0 leaves no rate to keep.
  const bool ended_at_zero = was <= 0;
  const double advised = ended_at_zero ? after.train.learning_rate / 10 : was;
  warnings.push_back(
      "train.steps = " + std::to_string(after.train.steps) + " stretches train.schedule = \"" +
      spec::text_of(after.train.schedule) + "\": at step " + std::to_string(next) +
      " the learning rate jumps from " + short_number(was) + " to " + short_number(is) +
      (ended_at_zero ? "; to choose a low one: nsactl resume " : "; to keep it: nsactl resume ") +
      facts.run + pairs +
      " --set train.schedule=constant --set train.learning_rate=" + short_number(advised));
  return warnings;
}

} // namespace nsa::control
