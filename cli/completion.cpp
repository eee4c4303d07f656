// nsactl completion bash|zsh|fish: a script for the shell, made from the verb table.
#include "cli/completion.h"

#include "cli/parser.h"
#include "cli/verbs.h"
#include "common/base/text.h"

#include <map>
#include <set>

namespace nsa::cli {

namespace {

struct Words {
  std::vector<std::string> first;                          // "submit", "ckpt"
  std::map<std::string, std::vector<std::string>> second;  // "ckpt" -> "ls", "verify"
  std::map<std::string, std::vector<std::string>> options; // "ckpt ls" -> "--set", ...
  std::map<std::string, std::string> summary;              // of a verb
};

Words words_of(const std::vector<Verb>& verbs) {
  Words words;
  std::set<std::string> seen;
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
  }
  return words;
}

std::string bash(const Words& words) {
  std::string out = "# bash completion of nsactl: source <(nsactl completion bash)\n"
                    "_nsactl() {\n"
                    "  local word=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]} choices=\n"
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
  out += "  esac\n"
         "  if [[ $word == -* ]]; then\n"
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
  out += "  esac\n  if [[ ${words[CURRENT]} == -* ]]; then compadd -- $choices; else _files; fi\n"
         "}\ncompdef _nsactl nsactl\n";
  return out;
}

std::string fish(const Words& words) {
  std::string out = "# fish completion of nsactl: nsactl completion fish | source\n";
  for (const std::string& first : words.first) {
    const auto found = words.summary.find(first);
    out += "complete -c nsactl -n __fish_use_subcommand -f -a " + first +
           (found == words.summary.end() ? "" : " -d '" + found->second + "'") + "\n";
  }
  for (const auto& [noun, verbs] : words.second)
    for (const std::string& verb : verbs)
      out += "complete -c nsactl -n '__fish_seen_subcommand_from " + noun + "' -f -a " + verb +
             " -d '" + words.summary.at(noun + " " + verb) + "'\n";
  for (const auto& [verb, options] : words.options)
    for (const std::string& option : options) {
      std::string condition;
      for (const std::string& part : split(verb, ' '))
        condition += (condition.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + part);
      out += "complete -c nsactl -n '" + condition + "' -l " + option.substr(2) + "\n";
    }
  return out;
}

Result<Exit> run(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(const std::string script, completion_script(all_verbs(), arguments.text("SHELL")));
  context.io.out << script;
  return Exit::kDone;
}

} // namespace

Result<std::string> completion_script(const std::vector<Verb>& verbs, const std::string& shell) {
  const Words words = words_of(verbs);
  if (shell == "bash") return bash(words);
  if (shell == "zsh") return zsh(words);
  if (shell == "fish") return fish(words);
  return fail(ErrorCode::kInvalidArgument, "no completion for the shell \"" + shell + "\"",
              "bash, zsh and fish are known");
}

Verb completion_verb() {
  Verb verb;
  verb.name = "completion";
  verb.summary = "Print a completion script for a shell";
  verb.positionals = {{"SHELL", ValueType::kText, "bash, zsh or fish"}};
  verb.examples = {{"source <(nsactl completion bash)", "in this shell"}};
  verb.run = run;
  return verb;
}

} // namespace nsa::cli
