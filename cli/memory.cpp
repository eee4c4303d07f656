#include "cli/connect.h"
#include "cli/json_text.h"
#include "cli/parts.h"
#include "cli/render/memory_view.h"

namespace nsa::cli {

namespace {

constexpr size_t kEventsAtOnce = 1000;

Result<std::vector<wire::RankMemory>> fetch_reports(client::Daemon& daemon, const RunId& run,
                                                    AttemptNumber attempt) {
  std::vector<wire::EventView> reports;
  for (int64_t after = 0;;) {
    NSA_TRY_ASSIGN(const auto answer, daemon.get(client::run_target(
                                          run, "/events?limit=" + std::to_string(kEventsAtOnce) +
                                                   "&after=" + std::to_string(after))));
    NSA_TRY_ASSIGN(const auto page, client::read_items<wire::EventView>(answer));
    for (const wire::EventView& event : page)
      if (event.kind == wire::EventKind::kRankMemory) reports.push_back(event);
    if (page.size() < kEventsAtOnce) return render::stage_memory(reports, attempt);
    after = page.back().sequence;
  }
}

Result<Exit> run_memory(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(const auto run, daemon.get(client::run_target(arguments.text("RUN"))));
  NSA_TRY_ASSIGN(const auto detail, client::read_as<wire::RunDetail>(run));
  const RunId& id = detail.summary.id;
  const auto attempt =
      static_cast<AttemptNumber>(arguments.integer("attempt", detail.summary.attempt));
  NSA_TRY_ASSIGN(const auto reports, fetch_reports(daemon, id, attempt));
  if (reports.empty())
    return fail(ErrorCode::kNotFound,
                "no rank of attempt " + std::to_string(attempt) + " of run " + id +
                    " has told its memory",
                "see which attempts there are: nsactl status " + id + " -o wide");
  if (context.output == Output::kJson) {
    const nlohmann::json& estimate = detail.estimate;
    const bool known = estimate.is_object() && estimate.contains("memory_bytes");
    const nlohmann::json answer = {
        {"run", id},
        {"attempt", attempt},
        {"items", reports},
        {"estimate", known ? estimate["memory_bytes"] : nlohmann::json()}};
    context.io.out << json_text(answer) << "\n";
    return Exit::kDone;
  }
  context.io.out << detail.summary.name << " (" << id << ")  attempt " << attempt << "\n"
                 << render::memory_table(reports, view_options(context))
                 << render::memory_against_estimate(reports, detail.estimate);
  return Exit::kDone;
}

} // namespace

Verb memory_verb() {
  Verb verb;
  verb.name = "memory";
  verb.summary = "Print what each rank took at each stage, beside the estimate";
  verb.detail =
      "Stages: boot (libraries and device), model, loader, first-step, steady (some steps "
      "later). Resident memory is the process's. Allocated, reserved and peak memory are "
      "LibTorch's on the GPU; device is what all processes use there, as the driver says.";
  verb.positionals = {run_argument()};
  verb.options = {
      {"attempt", 0, ValueType::kInteger, "N", "of this attempt instead of the newest"}};
  verb.examples = {
      {"nsactl memory k3fm2", "one column a rank"},
      {"nsactl memory k3fm2 --attempt 1 -o json", "of the first attempt, for programs"}};
  verb.run = run_memory;
  return verb;
}

} // namespace nsa::cli
