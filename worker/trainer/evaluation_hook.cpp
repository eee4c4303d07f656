#include "worker/trainer/evaluation_hook.h"

#include "common/base/log.h"
#include "common/manifest/manifest.h"
#include "common/spec/mixture.h"

#include <cmath>

namespace nsa::train {

bool evaluation_due(const spec::RunSpec& spec, uint64_t step) {
  const auto interval = static_cast<uint64_t>(spec.eval.interval_steps);
  return (interval > 0 && step % interval == 0) ||
         (spec.eval.at_end && step == static_cast<uint64_t>(spec.train.steps));
}

bool EvaluationHook::due(uint64_t step) const {
  return evaluation_due(p_.spec, step);
}

std::map<std::string, double>
EvaluationHook::losses_by_name(const std::vector<double>& losses) const {
  std::map<std::string, double> named;
  if (losses.size() < 2) return named;
  const std::vector<std::string> names = spec::source_names(p_.spec.data.sources);
  for (size_t i = 0; i < losses.size(); ++i)
    named[names[i]] = losses[i];
  return named;
}

RankResult<std::string> EvaluationHook::run(const TrainingPosition& position) {
  const MonotonicTime begin = MonotonicTime::now();
  if (p_.spec.eval.token_losses)
    p_.evaluator.keep_in = p_.run_folder / "evaluations" / manifest::folder_name(position.step);
  auto found = evaluate(p_.evaluator, position.step);
  if (!found) return tl::unexpected(found.error());
  const bool finite = std::isfinite(found->loss);
  if (p_.evaluator.collectives.rank() == 0) {
    const wire::RankEvaluation evaluation{0,
                                          position.step,
                                          position.tokens,
                                          found->loss,
                                          to_seconds(MonotonicTime::now() - begin),
                                          losses_by_name(found->of_source),
                                          p_.needles};
    for (auto& sink : p_.sinks)
      sink->evaluation(evaluation);
    log::info("train", "held-out loss",
              {{"step", std::to_string(position.step)}, {"loss", std::to_string(found->loss)}});
    for (const auto& [name, loss] : evaluation.sources)
      log::info("train", "held-out loss of a source",
                {{"source", name}, {"loss", std::to_string(loss)}});
    for (const wire::NeedleCell& cell : evaluation.needles)
      log::info("train", "needles found",
                {{"length", std::to_string(cell.length)},
                 {"depth_from", std::to_string(cell.depth_from)},
                 {"found", std::to_string(cell.found)},
                 {"asked", std::to_string(cell.asked)}});
    if (finite) p_.link.send(evaluation);
  }
  return std::string(finite ? "" : "held-out loss");
}

} // namespace nsa::train
