// Implements `nsactl completion bash|zsh|fish`, which prints a script for the shell from the verb
// table.
#include "cli/completion.h"

#include "cli/connect.h"
#include "cli/parser.h"
#include "cli/verbs.h"
#include "common/base/text.h"
#include "common/spec/fields.h"
#include "common/spec/parse.h"
#include "common/spec/toggles.h"
#include "common/wire/run_row.h"

#include <map>
#include <set>

namespace nsa::cli {

namespace {

// Short, because a person has pressed Tab.
constexpr Duration kCompletionTimeout = std::chrono::seconds(1);

struct Words {
  std::vector<std::string> first;                          // "submit", "ckpt"
  std::map<std::string, std::vector<std::string>> second;  // "ckpt" -> "ls", "verify"
  std::map<std::string, std::vector<std::string>> options; // "ckpt ls" -> "--set", ...
  // "ls --state" -> "queued", ...; for options of every verb: "--output" -> "table", ...
  std::map<std::string, std::vector<std::string>> choices;
  std::set<std::string> takes_runs;           // verbs with the argument RUN
  std::map<std::string, std::string> summary; // verb -> summary
};

Words words_of(const std::vector<Verb>& verbs) {
  Words words;
  std::set<std::string> seen;
  for (const Option& option : global_options())
    if (!option.choices.empty()) words.choices["--" + option.name] = option.choices;
  for (const Verb& verb : verbs) {
    if (verb.hidden) continue;
    const std::vector<std::string> parts = split(verb.name, ' ');
    if (seen.insert(parts[0]).second) words.first.push_back(parts[0]);
    if (parts.size() > 1) words.second[parts[0]].push_back(parts[1]);
    words.summary[verb.name] = verb.summary;
    auto& options = words.options[verb.name];
    for (const auto* list : {&verb.options, &global_options()})
      for (const Option& option : *list)
        options.push_back("--" + option.name);
    for (const Option& option : verb.options)
      if (!option.choices.empty()) words.choices[verb.name + " --" + option.name] = option.choices;
    for (const Positional& positional : verb.positionals)
      if (positional.type == ValueType::kRun) words.takes_runs.insert(verb.name);
  }
  return words;
}

// Returns a pattern for `case`, such as "'status'|'ckpt ls'".
std::string pattern(const std::set<std::string>& names) {
  std::string out;
  for (const std::string& name : names)
    out += (out.empty() ? "'" : "|'") + name + "'";
  return out;
}

std::string bash(const Words& words) {
  std::string out =
      "# bash completion of nsactl: source <(nsactl completion bash)\n"
      "_nsactl() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]} choices= values=\n"
      "  local before=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  COMPREPLY=()\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    COMPREPLY=($(compgen -W \"" +
      join(words.first, " ") + "\" -- \"$word\"))\n    return\n  fi\n";
  out += "  case $verb in\n";
  for (const auto& [noun, verbs] : words.second)
    out += "  " + noun +
           ")\n    if [ \"$COMP_CWORD\" -eq 2 ]; then\n"
           "      COMPREPLY=($(compgen -W \"" +
           join(verbs, " ") +
           "\" -- \"$word\"))\n"
           "      return\n    fi\n    verb=\"$verb ${COMP_WORDS[2]}\" ;;\n";
  out += "  esac\n  case $verb in\n";
  for (const auto& [verb, options] : words.options)
    out += "  '" + verb + "') choices='" + join(options, " ") + "' ;;\n";
  out += "  esac\n  case \"$verb $before\" in\n";
  for (const auto& [option, choices] : words.choices)
    out += std::string("  ") + (option.starts_with("--") ? "*' " : "'") + option + "') values='" +
           join(choices, " ") + "' ;;\n";
  out += "  *' --set') values=$(nsactl __complete keys 2>/dev/null)\n"
         "    compopt -o nospace 2>/dev/null ;;\n"
         "  esac\n"
         "  if [ -z \"$values\" ] && [[ $word != -* ]]; then\n"
         "    case $verb in\n"
         "    " +
         pattern(words.takes_runs) +
         ") values=$(nsactl __complete runs 2>/dev/null) ;;\n"
         "    esac\n"
         "  fi\n"
         "  if [ -n \"$values\" ]; then\n"
         "    COMPREPLY=($(compgen -W \"$values\" -- \"$word\"))\n"
         "  elif [[ $word == -* ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$choices\" -- \"$word\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -f -- \"$word\"))\n"
         "  fi\n"
         "}\n"
         "complete -o filenames -F _nsactl nsactl\n";
  return out;
}

std::string zsh(const Words& words) {
  std::string out = "#compdef nsactl\n"
                    "# zsh completion of nsactl: nsactl completion zsh > \"${fpath[1]}/_nsactl\"\n"
                    "_nsactl() {\n  local -a choices\n  local verb=${words[2]}\n"
                    "  if (( CURRENT == 2 )); then\n    compadd -- " +
                    join(words.first, " ") + "\n    return\n  fi\n  case $verb in\n";
  for (const auto& [noun, verbs] : words.second)
    out += "  " + noun + ")\n    if (( CURRENT == 3 )); then compadd -- " + join(verbs, " ") +
           "; return; fi\n    verb=\"$verb ${words[3]}\" ;;\n";
  out += "  esac\n  case $verb in\n";
  for (const auto& [verb, options] : words.options)
    out += "  '" + verb + "') choices=(" + join(options, " ") + ") ;;\n";
  out += "  esac\n  case \"$verb ${words[CURRENT-1]}\" in\n";
  for (const auto& [option, choices] : words.choices)
    out += std::string("  ") + (option.starts_with("--") ? "*' " : "'") + option +
           "') compadd -- " + join(choices, " ") + "; return ;;\n";
  out +=
      "  *' --set') compadd -S '' -- ${(f)\"$(nsactl __complete keys 2>/dev/null)\"}; return ;;\n"
      "  esac\n"
      "  if [[ ${words[CURRENT]} == -* ]]; then compadd -- $choices; return; fi\n"
      "  case $verb in\n  " +
      pattern(words.takes_runs) +
      ") compadd -- ${(f)\"$(nsactl __complete runs 2>/dev/null)\"} ;;\n"
      "  *) _files ;;\n  esac\n"
      "}\ncompdef _nsactl nsactl\n";
  return out;
}

// Returns a condition such as "__fish_seen_subcommand_from ckpt; and __fish_seen_subcommand_from
// ls".
std::string fish_condition(const std::string& verb) {
  std::string condition;
  for (const std::string& part : split(verb, ' '))
    condition += (condition.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + part);
  return condition;
}

// Quotes a text for fish, which reads \' and \\ inside quotes as the characters themselves.
std::string fish_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

std::string fish(const Words& words) {
  std::string out = "# fish completion of nsactl: nsactl completion fish | source\n";
  for (const std::string& first : words.first) {
    const auto found = words.summary.find(first);
    out += "complete -c nsactl -n __fish_use_subcommand -f -a " + first +
           (found == words.summary.end() ? "" : " -d " + fish_quoted(found->second)) + "\n";
  }
  for (const auto& [noun, verbs] : words.second)
    for (const std::string& verb : verbs)
      out += "complete -c nsactl -n '__fish_seen_subcommand_from " + noun + "' -f -a " + verb +
             " -d " + fish_quoted(words.summary.at(noun + " " + verb)) + "\n";
  for (const std::string& verb : words.takes_runs)
    out += "complete -c nsactl -n '" + fish_condition(verb) +
           "' -f -a '(nsactl __complete runs 2>/dev/null)'\n";
  for (const auto& [verb, options] : words.options)
    for (const std::string& option : options) {
      out += "complete -c nsactl -n '" + fish_condition(verb) + "' -l " + option.substr(2);
      const auto own = words.choices.find(verb + " " + option);
      const auto general = words.choices.find(option);
      if (own != words.choices.end())
        out += " -x -a '" + join(own->second, " ") + "'";
      else if (general != words.choices.end())
        out += " -x -a '" + join(general->second, " ") + "'";
      else if (option == "--set")
        out += " -x -a '(nsactl __complete keys 2>/dev/null)'";
      out += "\n";
    }
  return out;
}

// Returns ids and names of runs. Shells expand the words that they get, and other users chose the
// names. So only words made of a name's allowed characters are returned.
Result<std::set<std::string>> run_words(const Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context, false));
  NSA_TRY_ASSIGN(const std::string answer, daemon.get_text("/v1/runs?rows", kCompletionTimeout));
  NSA_TRY_ASSIGN(const auto runs, wire::read_rows(answer));
  std::set<std::string> words = {"@last"};
  for (const wire::RunSummary& run : runs)
    for (const std::string& word : {run.id, run.name})
      if (spec::is_run_name(word)) words.insert(word);
  return words;
}

std::set<std::string> key_words() {
  std::set<std::string> words;
  spec::RunSpec spec;
  for (const spec::Field& field : spec::run_fields(spec))
    words.insert(std::string(field.key) + "=");
  for (const spec::Toggle& toggle : spec::toggle_registry())
    words.insert("toggles." + std::string(toggle.name) + "=");
  return words;
}

enum class Wanted : uint8_t { kRuns, kKeys };
constexpr auto choice_names(Wanted) {
  return names_of("runs", "keys");
}

Result<Exit> run_complete(const Arguments& arguments, Context& context) {
  std::set<std::string> words = key_words();
  if (choice_from<Wanted>(arguments.text("WHAT")) == Wanted::kRuns) {
    context.quiet = true;
    NSA_TRY_ASSIGN(words, run_words(context));
  }
  for (const std::string& word : words)
    context.io.out << word << "\n";
  return Exit::kDone;
}

Result<Exit> run_completion(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(const std::string script, completion_script(all_verbs(), arguments.text("SHELL")));
  context.io.out << script;
  return Exit::kDone;
}

enum class Shell : uint8_t { kBash, kZsh, kFish };
constexpr auto choice_names(Shell) {
  return names_of("bash", "zsh", "fish");
}

} // namespace

Result<std::string> completion_script(const std::vector<Verb>& verbs, const std::string& shell) {
  const Words words = words_of(verbs);
  const auto kind = choice_from<Shell>(shell);
  if (!kind)
    return fail(ErrorCode::kInvalidArgument, "no completion for the shell \"" + shell + "\"",
                "bash, zsh and fish are known");
  switch (*kind) {
  case Shell::kBash:
    return bash(words);
  case Shell::kZsh:
    return zsh(words);
  case Shell::kFish:
    break;
  }
  return fish(words);
}

Verb complete_verb() {
  Verb verb;
  verb.name = "__complete";
  verb.summary = "Print the words that a completion script asks for";
  verb.positionals = {{"WHAT", ValueType::kText, "runs or keys"}};
  verb.run = run_complete;
  verb.hidden = true;
  return verb;
}

Verb completion_verb() {
  Verb verb;
  verb.name = "completion";
  verb.summary = "Print a completion script for a shell";
  verb.positionals = {{"SHELL", ValueType::kText, "bash, zsh or fish"}};
  verb.examples = {{"source <(nsactl completion bash)", "in this shell"}};
  verb.run = run_completion;
  return verb;
}

} // namespace nsa::cli
