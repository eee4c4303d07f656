#include "cli/parser.h"

#include "cli/command.h"
#include "cli/help.h"

#include "common/base/text.h"
#include "common/spec/toggles.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>

namespace nsa::cli {

namespace {

std::string first_word(const std::string& name) {
  return name.substr(0, name.find(' '));
}

bool is_long_option(const std::string& word) {
  return word.starts_with("--");
}

std::vector<std::string> names_of(const Option& option) {
  std::vector<std::string> names = {"--" + option.name};
  if (option.letter != 0) names.push_back(std::string("-") + option.letter);
  if (!option.older.empty()) names.push_back("--" + option.older);
  return names;
}

tl::unexpected<Error> usage(std::string what, std::string next = {}) {
  return fail(ErrorCode::kInvalidArgument, std::move(what), std::move(next));
}

// Returns whether the word is a global option that takes a value.
bool takes_value(const std::string& word) {
  return std::any_of(global_options().begin(), global_options().end(), [&](const Option& option) {
    const auto names = names_of(option);
    return option.type != ValueType::kFlag &&
           std::find(names.begin(), names.end(), word) != names.end();
  });
}

// Returns the index of the first word that is neither a global option nor its value.
size_t find_verb(const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i].empty() || words[i][0] != '-') return i;
    if (takes_value(words[i])) ++i;
  }
  return words.size();
}

// Returns the verb that the words name, and how many words the name takes.
Result<std::pair<const Verb*, size_t>>
match_verb(const std::vector<Verb>& verbs, const std::vector<std::string>& words, size_t at) {
  std::vector<std::string> nouns, seconds;
  for (const Verb& verb : verbs) {
    if (verb.name == words[at]) return std::pair{&verb, size_t{1}};
    if (!verb.hidden) nouns.push_back(first_word(verb.name));
    if (first_word(verb.name) != words[at]) continue;
    const std::string second = verb.name.substr(words[at].size() + 1);
    if (at + 1 < words.size() && words[at + 1] == second) return std::pair{&verb, size_t{2}};
    seconds.push_back(second);
  }
  const std::string commands = "the commands are listed by `nsactl help`";
  if (seconds.empty()) {
    const auto near = nearest_name(words[at], nouns);
    return usage("unknown command '" + words[at] + "'",
                 near ? "did you mean '" + *near + "'?" : commands);
  }
  if (at + 1 >= words.size() || words[at + 1][0] == '-')
    return usage("'" + words[at] + "' needs one of: " + join(seconds, ", "),
                 "nsactl help " + words[at]);
  const auto near = nearest_name(words[at + 1], seconds);
  return usage("unknown command '" + words[at] + " " + words[at + 1] + "'",
               near ? "did you mean '" + words[at] + " " + *near + "'?"
                    : words[at] + " takes: " + join(seconds, ", "));
}

Status check_value(const std::string& name, ValueType type, const std::vector<std::string>& choices,
                   const std::string& value) {
  if (type == ValueType::kInteger) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc{} || end != value.data() + value.size())
      return usage(name + " wants a whole number, not '" + value + "'",
                   "write digits alone" + (name.starts_with("-") ? ": " + name + " 10" : ""));
  }
  if (type == ValueType::kDuration)
    if (const auto seconds = parse_duration(value); !seconds)
      return usage(name + ": " + seconds.error().what, seconds.error().next);
  if (!choices.empty() && std::find(choices.begin(), choices.end(), value) == choices.end()) {
    const auto near = nearest_name(value, choices);
    return usage(name + " takes " + join(choices, ", ") + ", not '" + value + "'",
                 near ? "did you mean '" + *near + "'?"
                      : "write one of them: " + name + " " + choices.front());
  }
  return {};
}

// CLI11's application of one verb, and the places where it stores its results.
class VerbParser {
public:
  explicit VerbParser(const Verb& verb) : verb_(verb) {
    app_.set_help_flag("");
    app_.add_flag("-h,--help", help_);
    for (const Option& option : global_options())
      add(option, globals_);
    for (const Option& option : verb.options)
      add(option, options_);
    for (const Positional& positional : verb.positionals) {
      auto* added = app_.add_option(positional.name, positionals_[positional.name]);
      if (positional.repeated)
        added->expected(-1);
      else
        added->expected(1)->allow_extra_args(verb.positionals.size() ==
                                             1); // else it takes the next one's word
    }
  }

  Result<Parsed> parse(std::vector<std::string> words) {
    Parsed parsed;
    parsed.old_names = old_names(words);
    words = with_empty_values(words);
    std::reverse(words.begin(), words.end()); // CLI11 takes them from the back
    try {
      app_.parse(words);
    } catch (const CLI::ExtrasError&) {
      return unexpected_words();
    } catch (const CLI::ArgumentMismatch& e) {
      // An unknown option leaves its value among the arguments. The option is the mistake then.
      const std::vector<std::string> extra = app_.remaining();
      if (std::any_of(extra.begin(), extra.end(), is_long_option)) return unexpected_words();
      if (const std::string what = e.what(); what.starts_with('-')) // "--name: 1 required ..."
        return usage(what.substr(0, what.find(':')) + " needs a value",
                     "nsactl help " + verb_.name);
      return usage("'" + verb_.name + "' got more or fewer arguments than it takes", usage_line());
    } catch (const CLI::ParseError& e) {
      return usage(e.what(), "nsactl help " + verb_.name);
    }
    if (help_) {
      parsed.help = verb_.name;
      return parsed;
    }
    parsed.verb = &verb_;
    for (const Option& option : global_options())
      NSA_TRY(take(option, globals_, parsed.globals));
    if (parsed.globals.has("system") && parsed.globals.has("socket"))
      return usage("--system and --socket exclude each other", "leave one of them out");
    for (const Option& option : verb_.options)
      NSA_TRY(take(option, options_, parsed.arguments));
    for (const Positional& positional : verb_.positionals) {
      const auto& values = positionals_[positional.name];
      if (positional.required && values.empty())
        return usage("'" + verb_.name + "' needs " + positional.name + ": " + positional.meaning,
                     usage_line());
      for (const std::string& value : values) {
        // The word may come from an unset variable of the shell. It must not become another path of
        // the API.
        if (value.empty())
          return usage(positional.name + " of '" + verb_.name + "' is empty", usage_line());
        NSA_TRY(check_value(positional.name, positional.type, {}, value));
        parsed.arguments.add(positional.name, value);
      }
    }
    return parsed;
  }

private:
  struct Found {
    std::vector<std::string> values;
    int64_t count = 0; // number of times a flag was given
  };

  void add(const Option& option, std::map<std::string, Found>& into) {
    const std::string names = join(names_of(option), ",");
    Found& found = into[option.name];
    if (option.type == ValueType::kFlag)
      app_.add_flag(names, found.count);
    else
      app_.add_option(names, found.values)->expected(1)->take_all()->allow_extra_args(false);
  }

  Status take(const Option& option, std::map<std::string, Found>& from, Arguments& into) {
    const Found& found = from[option.name];
    if (found.count > 0) into.add(option.name, "");
    if (found.values.size() > 1 && !option.repeated)
      return usage("--" + option.name + " is given more than once", "leave all but one out");
    for (const std::string& value : found.values) {
      NSA_TRY(check_value("--" + option.name, option.type, option.choices, value));
      into.add(option.name, value);
    }
    return {};
  }

  bool takes_value(const std::string& name) const {
    for (const auto* options : {&verb_.options, &global_options()})
      for (const Option& option : *options)
        if (option.type != ValueType::kFlag)
          for (const std::string& known : names_of(option))
            if (known == name) return true;
    return false;
  }

  // CLI11 would use the next word as the value of "--name=". But such a word comes from an unset
  // variable of the shell. So its empty value becomes a separate word.
  std::vector<std::string> with_empty_values(const std::vector<std::string>& words) const {
    std::vector<std::string> out;
    bool options = true;
    for (const std::string& word : words) {
      options = options && word != "--";
      const std::string name = word.substr(0, word.find('='));
      const bool empty = options && word.size() == name.size() + 1 && takes_value(name);
      out.push_back(empty ? name : word);
      if (empty) out.emplace_back();
    }
    return out;
  }

  std::vector<std::string> old_names(const std::vector<std::string>& words) const {
    std::vector<std::string> told;
    for (const auto* options : {&verb_.options, &global_options()})
      for (const Option& option : *options)
        for (const std::string& word : words)
          if (!option.older.empty() && word.substr(0, word.find('=')) == "--" + option.older)
            told.push_back("--" + option.older +
                           " is an older name, which is still taken; write --" + option.name);
    return told;
  }

  tl::unexpected<Error> unexpected_words() {
    const std::vector<std::string> extra = app_.remaining();
    const auto option = std::find_if(extra.begin(), extra.end(), is_long_option);
    const std::string word = option != extra.end() ? *option : extra.empty() ? "?" : extra.front();
    const std::string name = word.substr(0, word.find('='));
    if (const spec::PredecessorFlag* flag = spec::find_predecessor_flag(name))
      return usage("'" + name + "' is an option of the predecessor: " + std::string(flag->why),
                   flag->ours.empty() ? "leave it out"
                                      : "use --set " + std::string(flag->ours) + "=VALUE");
    if (word[0] != '-')
      return usage("'" + verb_.name + "' does not take '" + word + "'", usage_line());
    std::vector<std::string> known = {"--help"};
    for (const auto* options : {&verb_.options, &global_options()})
      for (const Option& option : *options)
        known.push_back("--" + option.name);
    const auto near = nearest_name(name, known);
    return usage("'" + verb_.name + "' has no option '" + word + "'",
                 near ? "did you mean '" + *near + "'?" : "nsactl help " + verb_.name);
  }

  std::string usage_line() const { return "usage: " + usage_of(verb_); }

  const Verb& verb_;
  CLI::App app_;
  bool help_ = false;
  std::map<std::string, Found> globals_, options_;
  std::map<std::string, std::vector<std::string>> positionals_;
};

} // namespace

const std::vector<Option>& global_options() {
  static const std::vector<Option> options = {
      {"output", 'o', ValueType::kText, "FORMAT", "table, wide, json, yaml, or name: ids alone",
       false, choices_of<Output>()},
      {"color", 0, ValueType::kText, "WHEN", "auto, always or never", false,
       choices_of<ColourWhen>()},
      {"socket", 0, ValueType::kPath, "PATH", "nsad's socket, instead of this user's own"},
      {"system", 0, ValueType::kFlag, "", "ask the system's nsad, not this user's own"},
      {"raw", 0, ValueType::kFlag, "",
       "print texts of ranks, runs and files unescaped; a terminal may interpret control "
       "characters in them"},
      {"quiet", 'q', ValueType::kFlag, "", "omit the hints about what to run next"},
      {"no-start", 0, ValueType::kFlag, "", "do not start nsad if it is not running"},
  };
  return options;
}

Result<Parsed> parse_command(const std::vector<Verb>& verbs,
                             const std::vector<std::string>& words) {
  Parsed parsed;
  const size_t at = find_verb(words);
  if (at == words.size()) {
    for (const std::string& word : words) {
      if (word == "-h" || word == "--help") continue;
      if (word == "--version") return parse_command(verbs, {"version"});
      if (word == words.back() && takes_value(word))
        return usage(word + " needs a value", "the options are listed by `nsactl help`");
      return usage("'" + word + "' needs a command", "the commands are listed by `nsactl help`");
    }
    parsed.help = "";
    return parsed;
  }
  if (words[at] == "help") {
    const std::vector<std::string> rest(words.begin() + static_cast<ptrdiff_t>(at) + 1,
                                        words.end());
    parsed.help = join(rest, " ");
    return parsed;
  }
  // `nsactl ckpt --help` shows the noun's page.
  if (at + 1 < words.size() && (words[at + 1] == "-h" || words[at + 1] == "--help") &&
      std::none_of(verbs.begin(), verbs.end(),
                   [&](const Verb& verb) { return verb.name == words[at]; })) {
    parsed.help = words[at];
    return parsed;
  }
  NSA_TRY_ASSIGN(const auto match, match_verb(verbs, words, at));
  std::vector<std::string> rest(words.begin(), words.begin() + static_cast<ptrdiff_t>(at));
  rest.insert(rest.end(), words.begin() + static_cast<ptrdiff_t>(at + match.second), words.end());
  return VerbParser(*match.first).parse(std::move(rest));
}

int64_t Arguments::integer(const std::string& name, int64_t otherwise) const {
  if (!has(name)) return otherwise;
  const std::string value = text(name);
  int64_t number = otherwise;
  std::from_chars(value.data(), value.data() + value.size(), number);
  return number;
}

double Arguments::seconds(const std::string& name, double otherwise) const {
  if (!has(name)) return otherwise;
  return parse_duration(text(name)).value_or(otherwise);
}

Result<double> parse_duration(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  const double factor = unit.empty() || unit == "s" ? 1
                        : unit == "ms"              ? 1e-3
                        : unit == "m"               ? 60
                        : unit == "h"               ? 3600
                        : unit == "d"               ? 86400
                                                    : -1;
  if (error != std::errc{} || factor < 0 || number < 0)
    return fail(ErrorCode::kInvalidArgument, "'" + std::string(text) + "' is not a duration",
                "write 90, 90s, 10m, 2h or 1d");
  return number * factor;
}

Exit exit_of(ErrorCode code) {
  switch (code) {
  case ErrorCode::kInvalidArgument:
  case ErrorCode::kUnsupported:
    return Exit::kUsage;
  case ErrorCode::kNotFound:
    return Exit::kNotFound;
  case ErrorCode::kPermission:
    return Exit::kPermission;
  case ErrorCode::kConflict:
    return Exit::kRefused;
  case ErrorCode::kUnavailable:
    return Exit::kUnreachable;
  case ErrorCode::kExhausted:
  case ErrorCode::kCorrupt:
  case ErrorCode::kSystem:
  case ErrorCode::kInternal:
    return Exit::kFailed;
  }
  return Exit::kFailed;
}

} // namespace nsa::cli
