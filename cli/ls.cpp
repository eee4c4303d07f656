#include "cli/columns.h"
#include "cli/connect.h"
#include "cli/json_text.h"
#include "cli/parts.h"
#include "common/wire/run_row.h"

#include <algorithm>

namespace nsa::cli {

namespace {

// Rows are read without a JSON document, so client::Daemon has not made their texts safe.
void make_printable(wire::RunSummary& run) {
  for (std::string* text : {&run.name, &run.reason, &run.inject, &run.user, &run.note, &run.from})
    *text = printable(*text);
  for (auto* list : {&run.tags, &run.alarms})
    for (std::string& text : *list)
      text = printable(text);
}

constexpr size_t kRecent = 10; // ended runs in a plain list

struct Listed {
  std::vector<wire::RunSummary> runs; // newest first
  int64_t left_out = 0;               // runs that nsad or cut() left out
};

// Programs get whole summaries, and a screen gets rows, which need a tenth of the bytes. With a
// filter all runs are requested, because the filter could not see runs that were cut before.
Result<Listed> fetch(const Context& context, client::Daemon& daemon, bool all, bool whole) {
  Listed listed;
  int64_t total = 0;
  const std::string target = std::string("/v1/runs?") + (all ? "all&" : "");
  if (whole) {
    NSA_TRY_ASSIGN(const auto answer, daemon.get(target + "rows=false"));
    NSA_TRY_ASSIGN(listed.runs, client::read_items<wire::RunSummary>(answer));
    total = answer.value("total", int64_t{0});
  } else {
    NSA_TRY_ASSIGN(const std::string answer, daemon.get_text(target + "rows"));
    NSA_TRY_ASSIGN(listed.runs, wire::read_rows(answer, &total));
    if (!context.raw)
      for (wire::RunSummary& run : listed.runs)
        make_printable(run);
  }
  listed.left_out = std::max<int64_t>(0, total - static_cast<int64_t>(listed.runs.size()));
  return listed;
}

// Keeps the live runs and the newest ended ones.
void cut(Listed& listed) {
  size_t ended = 0;
  listed.left_out +=
      static_cast<int64_t>(std::erase_if(listed.runs, [&](const wire::RunSummary& run) {
        return render::is_ended(run.state) && ++ended > kRecent;
      }));
}

bool matches(const wire::RunSummary& run, const std::vector<wire::RunState>& states,
             const std::vector<std::string>& tags) {
  const auto holds = [](const auto& list, const auto& value) {
    return std::find(list.begin(), list.end(), value) != list.end();
  };
  return (states.empty() || holds(states, run.state)) &&
         std::all_of(tags.begin(), tags.end(),
                     [&](const std::string& tag) { return holds(run.tags, tag); });
}

Result<Exit> run_ls(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  const auto states = arguments.all_choices<wire::RunState>("state");
  const auto tags = arguments.all("tag");
  const bool all = arguments.has("all"), narrowed = !states.empty() || !tags.empty();
  NSA_TRY_ASSIGN(Listed listed, fetch(context, daemon, all || narrowed,
                                      arguments.has("columns") || context.output == Output::kJson));
  std::erase_if(listed.runs,
                [&](const wire::RunSummary& run) { return !matches(run, states, tags); });
  if (!all) cut(listed);
  if (arguments.has("columns")) {
    NSA_TRY(print_columns(context, nlohmann::json(listed.runs), arguments.text("columns")));
    return Exit::kDone;
  }
  if (context.output == Output::kJson) {
    context.io.out << json_text(
                          nlohmann::json{{"items", listed.runs}, {"left_out", listed.left_out}})
                   << "\n";
    return Exit::kDone;
  }
  if (listed.runs.empty())
    context.io.err << (narrowed ? "no such runs\n"
                                : "no runs; start one: nsactl submit run.toml\n");
  else
    context.io.out << render::runs_table(listed.runs, WallTime::now(), view_options(context));
  if (listed.left_out > 0)
    context.io.err << listed.left_out << " more that ended earlier: add --all\n";
  return Exit::kDone;
}

} // namespace

Verb ls_verb() {
  Verb verb;
  verb.name = "ls";
  verb.summary = "List runs";
  verb.options = {{"all", 'a', ValueType::kFlag, "", "list runs that ended long ago, too"},
                  {"state", 's', ValueType::kText, "STATE", "only runs in this state", true,
                   choices_of<wire::RunState>()},
                  {"tag", 't', ValueType::kText, "TAG", "only runs with this tag", true},
                  columns_option("id,state,step,loss")};
  verb.examples = {{"nsactl ls", "what runs, and what ended lately"},
                   {"nsactl ls -a -s failed -o wide", "every failure, with more columns"},
                   {"nsactl ls -a --tag ablation", "all of one experiment"},
                   {"nsactl ls -a --columns id,state,step,restarts", "columns of your own"},
                   {"nsactl ls -s queued -o name", "ids alone, for a script"}};
  verb.run = run_ls;
  return verb;
}

} // namespace nsa::cli
