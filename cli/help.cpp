#include "cli/help.h"

#include "cli/parser.h"
#include "common/base/markdown.h"
#include "common/base/text.h"

#include <algorithm>

namespace nsa::cli {

namespace {

std::string padded(std::string text, size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

std::string option_left(const Option& option) {
  std::string text = option.letter ? std::string("-") + option.letter + ", " : "    ";
  text += "--" + option.name;
  if (option.type != ValueType::kFlag) text += " " + option.value_name;
  return text;
}

std::string option_lines(const std::vector<Option>& options) {
  size_t width = 0;
  for (const Option& option : options)
    width = std::max(width, option_left(option).size());
  std::string text;
  for (const Option& option : options) {
    text += "  " + padded(option_left(option), width) + "  " + option.meaning;
    if (option.repeated) text += "; may be repeated";
    text += "\n";
  }
  return text;
}

std::string verb_page(const Verb& verb) {
  std::string text = verb.summary + ".\n";
  if (!verb.detail.empty()) text += verb.detail + "\n";
  text += "\nUsage: " + usage_of(verb) + "\n";
  if (!verb.examples.empty()) {
    text += "\nExamples:\n";
    size_t width = 0;
    for (const auto& [command, what] : verb.examples)
      width = std::max(width, command.size());
    for (const auto& [command, what] : verb.examples)
      text += "  " + padded(command, width) + "  # " + what + "\n";
  }
  if (!verb.positionals.empty()) {
    text += "\nArguments:\n";
    size_t width = 0;
    for (const Positional& positional : verb.positionals)
      width = std::max(width, positional.name.size());
    for (const Positional& positional : verb.positionals)
      text += "  " + padded(positional.name, width) + "  " + positional.meaning + "\n";
  }
  if (!verb.options.empty()) text += "\nOptions:\n" + option_lines(verb.options);
  return text + "\nGlobal options:\n" + option_lines(global_options());
}

std::string verb_list(const std::vector<Verb>& verbs, const std::string& noun) {
  size_t width = 0;
  for (const Verb& verb : verbs)
    width = std::max(width, verb.name.size());
  std::string text;
  for (const Verb& verb : verbs)
    if (!verb.hidden && (noun.empty() || verb.name.rfind(noun + " ", 0) == 0))
      text += "  " + padded(verb.name, width) + "  " + verb.summary + "\n";
  return text;
}

std::string overview(const std::vector<Verb>& verbs) {
  return "nsactl trains NSA language models under nsad, the daemon of this node.\n"
         "\n"
         "  nsactl submit run.toml --follow   # check the file, start the ranks, watch\n"
         "  nsactl ls                         # what runs, what ran\n"
         "  nsactl status @last               # a run, its ranks, its last events\n"
         "\n"
         "Commands:\n" +
         verb_list(verbs, "") +
         "\n"
         "RUN is an id, the start of one, a name, or @last.\n"
         "`nsactl help COMMAND` explains a command; also: help exit-codes, environment, states.\n"
         "\n"
         "Global options:\n" +
         option_lines(global_options());
}

const std::vector<std::pair<std::string, std::string>>& topics() {
  static const std::vector<std::pair<std::string, std::string>> pages = {
      {"exit-codes",
       "Exit codes\n"
       "    0  done; of a followed or awaited run: it completed, or stopped as asked\n"
       "    1  the run failed or was cancelled, a check failed, or another error\n"
       "    2  arguments or run file are wrong, or need a feature that is not built\n"
       "    3  no such run, file or checkpoint\n"
       "    4  not permitted\n"
       "    5  refused in the present state\n"
       "    6  nsad cannot be reached, or speaks another version\n"
       "    7  the run stopped, but its last steps are lost: no checkpoint has them\n"
       "    8  the time of `wait --timeout` ended before the run did\n"
       "    9  a gate of the run file stopped the run, or fails (`gates`)\n"
       "   10  a gate paused the run: it waits for `resume`\n"
       "  130  Ctrl-C; a followed run continues\n"},
      {"environment",
       "Environment\n"
       "  NSA_SOCKET        nsad's socket, as --socket\n"
       "  XDG_STATE_HOME    runs, ledger and nsad.log in its folder nsa (default ~/.local/state)\n"
       "  XDG_RUNTIME_DIR   the socket in its folder nsa, unless logout removes that folder\n"
       "  XDG_CONFIG_HOME   nsa/nsad.toml and nsa/nsactl.toml (default ~/.config)\n"
       "  NO_COLOR          not empty: no colour (--color has priority)\n"
       "  CLICOLOR_FORCE    not empty: colour without a terminal, too\n"
       "Ranks get none of these variables. They get [toggles] and run.pass_environment of the run "
       "file.\n"},
      {"states",
       "States of a run\n"
       "  queued       waits for CPU slots or GPUs; its reason says for what\n"
       "  starting     ranks are being started\n"
       "  running      steps complete\n"
       "  restarting   starts again after a failure, from the newest verified checkpoint\n"
       "  stopping     writes a checkpoint, then ends\n"
       "  completed    did all its steps\n"
       "  stopped      ended by `stop`; `resume` continues it\n"
       "  failed       no restarts are left, or a restart could not help\n"
       "  cancelled    ended at once by `cancel`; `resume` continues from its last checkpoint\n"
       "  paused       ended by a gate, with a checkpoint; `resume` continues it\n"}};
  return pages;
}

} // namespace

std::string usage_of(const Verb& verb) {
  std::string text = "nsactl " + verb.name;
  for (const Positional& positional : verb.positionals) {
    std::string word = positional.name + (positional.repeated ? "..." : "");
    text += positional.required ? " " + word : " [" + word + "]";
  }
  return text + (verb.options.empty() ? "" : " [options]");
}

Result<std::string> help_page(const std::vector<Verb>& verbs, const std::string& topic) {
  if (topic.empty()) return overview(verbs);
  for (const Verb& verb : verbs)
    if (verb.name == topic) return verb_page(verb);
  const std::string list = verb_list(verbs, topic);
  if (!list.empty()) return "Commands:\n" + list;
  std::vector<std::string> known;
  for (const auto& [name, page] : topics()) {
    if (name == topic) return page;
    known.push_back(name);
  }
  for (const Verb& verb : verbs)
    known.push_back(verb.name);
  const auto near = nearest_name(topic, known);
  return fail(ErrorCode::kInvalidArgument, "no help on '" + topic + "'",
              near ? "did you mean '" + *near + "'?" : "nsactl help");
}

std::string commands_markdown(const std::vector<Verb>& verbs) {
  std::string text;
  for (const Verb& verb : verbs) {
    if (verb.hidden) continue;
    text += "## nsactl " + verb.name + "\n\n" + verb.summary + ".\n";
    if (!verb.detail.empty()) text += verb.detail + "\n";
    text += "\n```\n" + usage_of(verb) + "\n```\n\n";
    if (!verb.positionals.empty() || !verb.options.empty()) {
      text += "| argument | meaning |\n|---|---|\n";
      for (const Positional& positional : verb.positionals)
        text += "| `" + positional.name + "` | " + positional.meaning + " |\n";
      for (const Option& option : verb.options)
        text += "| `" + std::string(trim(option_left(option))) + "` | " + option.meaning +
                (option.repeated ? "; may be repeated" : "") + " |\n";
      text += "\n";
    }
    if (!verb.examples.empty()) {
      text += "```sh\n";
      for (const auto& [command, what] : verb.examples)
        text += command + "  # " + what + "\n";
      text += "```\n\n";
    }
  }
  text += "## Global options\n\n| option | meaning |\n|---|---|\n";
  for (const Option& option : global_options())
    text += "| `" + std::string(trim(option_left(option))) + "` | " + option.meaning + " |\n";
  for (const auto& [name, page] : topics())
    text += "\n## help " + name + "\n\n```\n" + page + "```\n";
  return wrap_markdown(text);
}

} // namespace nsa::cli
