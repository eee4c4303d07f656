#include "cli/columns.h"
#include "cli/connect.h"
#include "cli/hints.h"
#include "cli/json_text.h"
#include "cli/parts.h"

#include <algorithm>

namespace nsa::cli {

namespace {

constexpr Duration kVerifyTimeout = std::chrono::minutes(30); // verification reads every byte

Result<Exit> show(const Arguments& arguments, Context& context, bool verify) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  const std::string run = arguments.text("RUN");
  NSA_TRY_ASSIGN(
      const auto answer,
      daemon.get(client::run_target(run, verify ? "/checkpoints?verify" : "/checkpoints"),
                 verify ? kVerifyTimeout : client::Daemon::kTimeout));
  NSA_TRY_ASSIGN(auto views, client::read_items<wire::CheckpointView>(answer));
  const size_t all = views.size();
  if (!arguments.has("all"))
    std::erase_if(views,
                  [](const auto& view) { return view.state == wire::CheckpointState::kDeleted; });
  if (arguments.has("columns"))
    NSA_TRY(print_columns(context, nlohmann::json(views), arguments.text("columns")));
  else if (context.output == Output::kJson)
    context.io.out << json_text(nlohmann::json{{"items", views}}) << "\n";
  else if (views.empty())
    context.io.err << (all == 0 ? "no checkpoints yet\n"
                                : "no checkpoint is left; --all shows the deleted ones\n");
  else
    context.io.out << render::checkpoints_table(views, WallTime::now(), view_options(context));
  const bool corrupt = std::any_of(views.begin(), views.end(), [](const auto& view) {
    return view.state == wire::CheckpointState::kCorrupt;
  });
  return verify && corrupt ? Exit::kFailed : Exit::kDone;
}

} // namespace

Verb ckpt_ls_verb() {
  Verb verb;
  verb.name = "ckpt ls";
  verb.summary = "List the checkpoints of a run";
  verb.positionals = {run_argument()};
  verb.detail = "A verified checkpoint was read completely and matched its checksums, at a resume "
                "or by `ckpt verify`.";
  verb.options = {
      {"all", 'a', ValueType::kFlag, "", "list deleted checkpoints, too"},
      {"verify", 0, ValueType::kFlag, "", "first read every byte, as `ckpt verify` does"},
      columns_option("step,state,bytes")};
  verb.examples = {{"nsactl ckpt ls k3fm2 -o wide", "with their folders"}};
  verb.run = [](const Arguments& arguments, Context& context) {
    return show(arguments, context, arguments.has("verify"));
  };
  return verb;
}

Verb ckpt_verify_verb() {
  Verb verb;
  verb.name = "ckpt verify";
  verb.summary = "Read every byte of a run's checkpoints and compare the checksums";
  verb.detail = "Exit code 1 if a checkpoint is damaged; `ckpt ls` and `events` then show it. "
                "Resume never uses a damaged checkpoint.";
  verb.positionals = {run_argument()};
  verb.examples = {{"nsactl ckpt verify k3fm2", "before a long resume"}};
  verb.run = [](const Arguments& arguments, Context& context) {
    return show(arguments, context, true);
  };
  return verb;
}

} // namespace nsa::cli
