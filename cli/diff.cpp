#include "cli/connect.h"
#include "cli/json_text.h"
#include "cli/parts.h"
#include "cli/render/table.h"
#include "cli/run_records.h"

#include <algorithm>
#include <charconv>
#include <map>

namespace nsa::cli {

namespace {

struct Side {
  std::string run; // id of the run
  AttemptNumber attempt = 0;
  std::map<std::string, nlohmann::json> keys, toggles, programs;
  std::string name() const { return run + "@" + std::to_string(attempt); }
};

// Splits "k3fm2@2" into k3fm2 and 2. Without a number it returns 0, the newest attempt. "@last" is
// a run.
std::pair<std::string, int> split_attempt(const std::string& text) {
  const size_t at = text.rfind('@');
  if (at == std::string::npos || at == 0) return {text, 0};
  int attempt = 0;
  const char* const begin = text.data() + at + 1;
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), attempt);
  if (error != std::errc{} || end != text.data() + text.size() || attempt < 1) return {text, 0};
  return {text.substr(0, at), attempt};
}

// Returns a text such as "auto, in effect: off" if the two values differ.
std::string toggle_text(const wire::ToggleView& toggle) {
  const auto known = [](const std::string& value) { return value.empty() ? "<unset>" : value; };
  if (toggle.requested == toggle.effective || toggle.effective.empty())
    return known(toggle.requested);
  return known(toggle.requested) + ", in effect: " + toggle.effective;
}

Result<Side> fetch_side(client::Daemon& daemon, const std::string& text) {
  const auto [run, wanted] = split_attempt(text);
  NSA_TRY_ASSIGN(const auto answer, daemon.get(client::run_target(run)));
  NSA_TRY_ASSIGN(const auto detail, client::read_as<wire::RunDetail>(answer));
  Side side;
  side.run = detail.summary.id;
  side.attempt = wanted > 0 ? wanted : detail.summary.attempt;
  NSA_TRY_ASSIGN(
      const auto spec,
      daemon.get(client::run_target(
          side.run, "/spec" + (wanted > 0 ? "?attempt=" + std::to_string(wanted) : ""))));
  side.keys = flat_members(spec);
  std::erase_if(side.keys, [](const auto& key) { return key.first.starts_with("toggles."); });
  for (const wire::ToggleView& toggle : detail.toggles)
    if (toggle.attempt == side.attempt) side.toggles[toggle.name] = toggle_text(toggle);
  for (const wire::AttemptView& attempt : detail.attempts)
    if (attempt.attempt == side.attempt && attempt.provenance.is_object())
      side.programs = flat_members(attempt.provenance);
  side.programs.erase("spec_digest"); // the keys show this difference
  return side;
}

using Values = std::map<std::string, nlohmann::json>;
nlohmann::json differences(const Values& a, const Values& b) {
  nlohmann::json found = nlohmann::json::object();
  const auto value = [](const Values& values, const std::string& key) {
    const auto it = values.find(key);
    return it == values.end() ? nlohmann::json() : it->second;
  };
  for (const Values* side : {&a, &b})
    for (const auto& [key, unused] : *side)
      if (value(a, key) != value(b, key))
        found[key] = nlohmann::json::array({value(a, key), value(b, key)});
  return found;
}

std::string value_text(const nlohmann::json& value) {
  if (value.is_null()) return "-";
  return value.is_string() ? value.get<std::string>() : json_text(value);
}

Result<Exit> run_diff(const Arguments& arguments, Context& context) {
  const std::vector<std::string> names = arguments.all("RUN");
  if (names.size() != 2)
    return fail(ErrorCode::kInvalidArgument, "diff needs two attempts",
                "nsactl diff " + names.front() + "@1 " + names.front() + "@2");
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(const Side a, fetch_side(daemon, names[0]));
  NSA_TRY_ASSIGN(const Side b, fetch_side(daemon, names[1]));
  const nlohmann::json parts = {{"keys", differences(a.keys, b.keys)},
                                {"toggles", differences(a.toggles, b.toggles)},
                                {"programs", differences(a.programs, b.programs)}};
  if (context.output == Output::kJson) {
    nlohmann::json answer = parts;
    answer["attempts"] = {a.name(), b.name()};
    context.io.out << json_text(answer) << "\n";
    return Exit::kDone;
  }
  render::Table table({"WHAT", "NAME", a.name(), b.name()});
  for (const auto& [part, word] :
       {std::pair{"keys", "key"}, std::pair{"toggles", "toggle"}, std::pair{"programs", "program"}})
    for (const auto& [key, values] : parts.at(part).items())
      table.add({word, key, value_text(values[0]), value_text(values[1])});
  if (table.empty())
    context.io.err << "the two attempts have the same keys, toggles and programs\n";
  else
    context.io.out << table.print(context.output == Output::kWide ? 0 : context.io.width,
                                  context.io.unicode);
  return Exit::kDone;
}

} // namespace

Verb diff_verb() {
  Verb verb;
  verb.name = "diff";
  verb.summary = "Say what differs between two attempts: keys, toggles, programs";
  verb.detail = "RUN@2 is the second attempt of a run, RUN its newest. Keys are those that the "
                "attempt was started with, so what a resume changed is seen. Programs are "
                "builds, versions, devices, kernels and the data set's digest.";
  verb.positionals = {
      {"RUN", ValueType::kRun, "two of: RUN@ATTEMPT, or RUN for its newest attempt", true, true}};
  verb.examples = {{"nsactl diff k3fm2@1 k3fm2@2", "what did the resume change?"},
                   {"nsactl diff k3fm2 p446w -o json", "two runs, for a script"}};
  verb.run = run_diff;
  return verb;
}

} // namespace nsa::cli
