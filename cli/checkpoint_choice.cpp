#include "cli/checkpoint_choice.h"

#include "common/base/printable.h"
#include "common/base/text.h"
#include "common/spec/spec_json.h"

#include <algorithm>
#include <charconv>

namespace nsa::cli {

namespace {

bool is_kept(const wire::CheckpointView& view) {
  return view.state != wire::CheckpointState::kDeleted &&
         view.state != wire::CheckpointState::kCorrupt;
}

// Returns a list such as "400, 300, 200", newest first.
std::string steps_of(const std::vector<wire::CheckpointView>& kept) {
  constexpr size_t kShown = 12;
  std::vector<std::string> steps;
  for (size_t i = 0; i < std::min(kept.size(), kShown); ++i)
    steps.push_back(std::to_string(kept[i].step));
  if (kept.size() > kShown) steps.push_back("...");
  return join(steps, ", ");
}

} // namespace

Result<RunAndStep> parse_run_and_step(const std::string& text) {
  const size_t at = text.rfind('@');
  if (at == std::string::npos || at == 0) return RunAndStep{text, std::nullopt};
  const std::string digits = text.substr(at + 1);
  uint64_t step = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (digits.empty() || parsed.ec != std::errc{} || parsed.ptr != digits.data() + digits.size())
    return fail(ErrorCode::kInvalidArgument,
                "'" + printable(digits) + "' behind @ is not the step of a checkpoint",
                "nsactl ckpt ls " + printable(text.substr(0, at)) + " lists the steps");
  return RunAndStep{text.substr(0, at), step};
}

Positional checkpoint_argument() {
  return {"RUN[@STEP]", ValueType::kRun,
          "a run, and the step of one of its checkpoints (default: the newest)"};
}

Result<wire::CheckpointView> pick_checkpoint(const std::vector<wire::CheckpointView>& views,
                                             const RunAndStep& wanted) {
  const std::string look = "nsactl ckpt ls " + wanted.run + " --all";
  std::vector<wire::CheckpointView> kept;
  std::copy_if(views.begin(), views.end(), std::back_inserter(kept), is_kept);
  std::sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  if (kept.empty() && views.empty())
    return fail(ErrorCode::kNotFound, "run " + wanted.run + " has no checkpoint yet",
                "write one while it runs: nsactl ckpt now " + wanted.run);
  if (kept.empty())
    return fail(
        ErrorCode::kNotFound,
        "no usable checkpoint of run " + wanted.run + " is left: all are deleted or damaged", look);
  if (!wanted.step) {
    const auto finite =
        std::find_if(kept.begin(), kept.end(), [](const auto& view) { return view.finite; });
    if (finite != kept.end()) return *finite;
    return fail(ErrorCode::kConflict,
                "the last loss before each checkpoint of run " + wanted.run + " was not finite",
                "take one all the same, by its step: " + steps_of(kept));
  }
  const auto same = [&](const auto& view) { return view.step == *wanted.step; };
  if (const auto found = std::find_if(kept.begin(), kept.end(), same); found != kept.end())
    return *found;
  const auto gone = std::find_if(views.begin(), views.end(), same);
  std::string what =
      "run " + wanted.run + " has no checkpoint of step " + std::to_string(*wanted.step);
  if (gone != views.end())
    what = "the checkpoint of step " + std::to_string(*wanted.step) + " is " + gone->state.text() +
           (gone->problem.empty() ? "" : ": " + gone->problem);
  return fail(ErrorCode::kNotFound, what,
              "kept are the steps " + steps_of(kept) + ": nsactl ckpt ls " + wanted.run);
}

Result<ChosenCheckpoint> choose_checkpoint(client::Daemon& daemon, const std::string& text) {
  NSA_TRY_ASSIGN(const RunAndStep wanted, parse_run_and_step(text));
  NSA_TRY_ASSIGN(const auto answer, daemon.get(client::run_target(wanted.run)));
  ChosenCheckpoint chosen;
  NSA_TRY_ASSIGN(chosen.detail, client::read_as<wire::RunDetail>(answer));
  auto spec = spec::from_json(chosen.detail.spec);
  if (!spec) return fail(std::move(spec).error().within("the run's spec"));
  chosen.spec = std::move(*spec);
  NSA_TRY_ASSIGN(const auto list, daemon.get(client::run_target(wanted.run, "/checkpoints")));
  NSA_TRY_ASSIGN(const auto views, client::read_items<wire::CheckpointView>(list));
  NSA_TRY_ASSIGN(chosen.view, pick_checkpoint(views, wanted));
  NSA_TRY_ASSIGN(chosen.manifest, manifest::read(chosen.view.folder));
  return chosen;
}

} // namespace nsa::cli
