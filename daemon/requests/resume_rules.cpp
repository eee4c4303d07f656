#include "daemon/requests/resume_rules.h"

#include "common/spec/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string_view>

namespace nsa::control {

namespace {

// "table." allows every key of the table.
constexpr std::array<std::string_view, 22> kMayChange = {"run.note",
                                                         "run.tags",
                                                         "train.steps",
                                                         "train.learning_rate",
                                                         "train.final_learning_rate_ratio",
                                                         "train.warmup_steps",
                                                         "train.schedule",
                                                         "train.gradient_clip",
                                                         "train.non_finite",
                                                         "train.non_finite_limit",
                                                         "train.micro_batch",
                                                         "train.accumulate",
                                                         "train.activation_recompute",
                                                         "train.log_interval_steps",
                                                         "parallel.shard_update",
                                                         "toggles.",
                                                         "checkpoint.",
                                                         "hang.",
                                                         "restart.",
                                                         "eval.",
                                                         "metrics.",
                                                         "inject."};

std::string_view key_of(std::string_view override_pair) {
  return override_pair.substr(0, override_pair.find('='));
}

bool may_change(std::string_view key) {
  return std::any_of(kMayChange.begin(), kMayChange.end(), [&](std::string_view allowed) {
    return allowed.ends_with('.') ? key.starts_with(allowed) : key == allowed;
  });
}

bool sets(const ResumeFacts& facts, std::string_view key) {
  return std::any_of(facts.overrides.begin(), facts.overrides.end(),
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

} // namespace

Status check_changed_keys(const std::vector<std::string>& overrides) {
  for (const std::string& pair : overrides)
    if (!may_change(key_of(pair)))
      return fail(
          ErrorCode::kInvalidArgument, "a resume may not change " + std::string(key_of(pair)),
          "it may change steps, learning rate, batch shape, toggles, note and tags, and how "
          "the run is supervised; submit a new run for the rest");
  return {};
}

Status check_resume(const ResumeFacts& facts, const spec::RunSpec& before,
                    const spec::RunSpec& after) {
  const std::string resume = "nsactl resume " + facts.run;
  if (facts.completed && after.train.steps <= before.train.steps)
    return fail(ErrorCode::kConflict,
                "run " + facts.run + " has completed all its " +
                    steps(static_cast<uint64_t>(before.train.steps)),
                "to train further: " + resume +
                    " --set train.steps=" + std::to_string(2 * before.train.steps));
  const uint64_t first = facts.checkpoint_step.value_or(0);
  if (static_cast<uint64_t>(after.train.steps) < first)
    return fail(ErrorCode::kInvalidArgument,
                "train.steps = " + std::to_string(after.train.steps) +
                    " lies before the newest checkpoint, of step " + std::to_string(first),
                "give a later last step");
  if (before.sequences_per_step() != after.sequences_per_step())
    return fail(ErrorCode::kInvalidArgument,
                "a resume keeps the global batch: " + std::to_string(before.sequences_per_step()) +
                    " sequences a step, not " + std::to_string(after.sequences_per_step()),
                "change train.micro_batch and train.accumulate together");
  if (facts.from_start && facts.checkpoint_step)
    return fail(ErrorCode::kConflict,
                "run " + facts.run + " has a checkpoint of step " + std::to_string(first),
                "leave out --from-start to go on from it, or submit a new run");
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
  // Who sets the rate or the schedule means the change.
  if (!facts.checkpoint_step || sets(facts, "train.learning_rate") ||
      sets(facts, "train.schedule") || sets(facts, "train.final_learning_rate_ratio"))
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
