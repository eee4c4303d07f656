#include "cli/connect.h"
#include "cli/hints.h"
#include "cli/json_text.h"
#include "cli/parts.h"
#include "common/base/text.h"
#include "common/spec/fields.h"

#include <algorithm>

namespace nsa::cli {

namespace {

// Returns the run's tags without the removed ones, and with the new ones that it lacks.
std::vector<std::string> changed_tags(std::vector<std::string> tags, const Arguments& arguments) {
  for (const std::string& gone : arguments.all("untag"))
    std::erase(tags, gone);
  for (const std::string& tag : arguments.all("tag"))
    if (std::find(tags.begin(), tags.end(), tag) == tags.end()) tags.push_back(tag);
  return tags;
}

Result<Exit> run_set(const Arguments& arguments, Context& context) {
  wire::SetRequest request;
  if (arguments.has("name")) request.overrides.push_back("run.name=" + arguments.text("name"));
  if (arguments.has("note")) request.overrides.push_back("run.note=" + arguments.text("note"));
  const bool tags = arguments.has("tag") || arguments.has("untag");
  if (request.overrides.empty() && !tags)
    return fail(ErrorCode::kInvalidArgument, "nothing to set",
                "give one of --name, --note, --tag and --untag");
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  // The argument must name one run. From here on its id is used.
  NSA_TRY_ASSIGN(const auto answer,
                 daemon.get(client::run_target(arguments.text("RUN"), "?unique")));
  NSA_TRY_ASSIGN(const auto detail, client::read_as<wire::RunDetail>(answer));
  const wire::RunSummary& run = detail.summary;
  if (tags)
    request.overrides.push_back("run.tags=" + spec::to_toml(changed_tags(run.tags, arguments)));
  NSA_TRY_ASSIGN(const auto changed, daemon.post(client::run_target(run.id, "/set"), request));
  if (context.output == Output::kJson) {
    context.io.out << json_text(changed) << "\n";
    return Exit::kDone;
  }
  NSA_TRY_ASSIGN(const auto now, client::read_as<wire::RunSummary>(changed));
  context.io.out << now.id << "  " << now.name;
  if (!now.tags.empty()) context.io.out << "  [" << join(now.tags, ", ") << "]";
  if (!now.note.empty()) context.io.out << "  " << now.note;
  context.io.out << "\n";
  hint(context, {"nsactl status " + now.id, "nsactl ls -o wide"});
  return Exit::kDone;
}

} // namespace

Verb set_verb() {
  Verb verb;
  verb.name = "set";
  verb.summary = "Change the name, note or tags of a run";
  verb.detail = "In any state. The event run_changed and the audit say who did it. A resume keeps "
                "what was set. Other keys of the run file change by `resume --set`.";
  verb.positionals = {run_argument()};
  verb.options = {{"name", 0, ValueType::kText, "NAME", "another name"},
                  {"note", 0, ValueType::kText, "TEXT", "another note; \"\" takes it away"},
                  {"tag", 0, ValueType::kText, "TAG", "one tag more", true},
                  {"untag", 0, ValueType::kText, "TAG", "one tag less", true}};
  verb.examples = {
      {"nsactl set k3fm2 --name baseline --tag paper", "what it is called from now on"},
      {"nsactl set @last --untag paper --note diverged", "after a look"}};
  verb.run = run_set;
  return verb;
}

} // namespace nsa::cli
