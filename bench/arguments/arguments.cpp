#include "bench/arguments/arguments.h"

#include "common/base/text.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace nsa::bench {

namespace {

constexpr size_t kHelpColumn = 30;

Result<int64_t> number(const std::string& text) {
  char* end = nullptr;
  const int64_t value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < 1)
    return fail(ErrorCode::kInvalidArgument, "\"" + text + "\" is not a whole number from 1 up");
  return value;
}

Result<std::vector<std::string>> list(const std::string& text) {
  std::vector<std::string> words = split(text, ',');
  if (std::any_of(words.begin(), words.end(), [](const std::string& word) { return word.empty(); }))
    return fail(ErrorCode::kInvalidArgument,
                "\"" + text + "\" is not a list of words with commas between them");
  return words;
}

} // namespace

std::string help(const CommandLine& command) {
  std::string text = command.summary + "\n\nUsage: " + command.name + " [options]";
  if (!command.arguments.empty()) text += " " + command.arguments;
  text += "\n\nOptions:\n";
  const auto line = [&](std::string left, const std::string& what) {
    left = "  " + left;
    if (left.size() + 2 > kHelpColumn) {
      text += left + "\n" + std::string(kHelpColumn, ' ');
    } else {
      text += left + std::string(kHelpColumn - left.size(), ' ');
    }
    text += what + "\n";
  };
  for (const Option& option : command.options)
    line(option.value.empty() ? option.name : option.name + " " + option.value, option.what);
  line("--help", "this text");
  if (!command.examples.empty()) text += "\nExamples:\n";
  for (const std::string& example : command.examples)
    text += "  " + command.name + (example.empty() ? "" : " ") + example + "\n";
  return text;
}

Result<Words> read(const CommandLine& command, const std::vector<std::string>& words) {
  Words out;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--help" || word == "-h") {
      out.help = true;
      continue;
    }
    if (word.size() < 2 || word[0] != '-') {
      if (command.arguments.empty())
        return fail(ErrorCode::kInvalidArgument,
                    command.name + " takes options only, not \"" + word + "\"");
      out.rest.push_back(word);
      continue;
    }
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const auto option = std::find_if(command.options.begin(), command.options.end(),
                                     [&](const Option& o) { return o.name == name; });
    if (option == command.options.end()) {
      std::vector<std::string> names{"--help"};
      for (const Option& known : command.options)
        names.push_back(known.name);
      const auto nearest = nearest_name(name, names);
      return fail(ErrorCode::kInvalidArgument, "unknown option " + name,
                  nearest ? "did you mean " + *nearest + "?"
                          : "see " + command.name + " --help for all of them");
    }
    std::string value;
    if (option->value.empty()) {
      if (equals != std::string::npos)
        return fail(ErrorCode::kInvalidArgument, name + " takes no value");
    } else if (equals != std::string::npos) {
      value = word.substr(equals + 1);
    } else if (i + 1 < words.size()) {
      value = words[++i];
    } else {
      return fail(ErrorCode::kInvalidArgument, name + " needs a value",
                  "write " + name + " " + option->value);
    }
    if (const Status taken = option->take(value); !taken)
      return fail(ErrorCode::kInvalidArgument, name + ": " + taken.error().what,
                  taken.error().next);
  }
  return out;
}

std::vector<std::string> read_or_exit(const CommandLine& command, int argc, char** argv) {
  const Result<Words> words = read(command, {argv + 1, argv + argc});
  if (!words) {
    std::fprintf(stderr, "error: %s%s%s\n", words.error().what.c_str(),
                 words.error().next.empty() ? "" : ": ", words.error().next.c_str());
    std::exit(2);
  }
  if (words->help) {
    std::fputs(help(command).c_str(), stdout);
    std::exit(0);
  }
  return words->rest;
}

std::function<Status(const std::string&)> into(std::string& target) {
  return [&target](const std::string& value) -> Status {
    target = value;
    return {};
  };
}
std::function<Status(const std::string&)> into(int64_t& target) {
  return [&target](const std::string& value) -> Status {
    NSA_TRY_ASSIGN(target, number(value));
    return {};
  };
}
std::function<Status(const std::string&)> into(double& target) {
  return [&target](const std::string& value) -> Status {
    char* end = nullptr;
    target = std::strtod(value.c_str(), &end);
    if (value.empty() || *end != '\0' || !(target > 0))
      return fail(ErrorCode::kInvalidArgument, "\"" + value + "\" is not a number above 0");
    return {};
  };
}
std::function<Status(const std::string&)> into(std::vector<int64_t>& target) {
  return [&target](const std::string& value) -> Status {
    NSA_TRY_ASSIGN(const std::vector<std::string> words, list(value));
    target.clear();
    for (const std::string& word : words) {
      NSA_TRY_ASSIGN(const int64_t one, number(word));
      target.push_back(one);
    }
    return {};
  };
}
std::function<Status(const std::string&)> into(std::vector<std::string>& target,
                                               std::vector<std::string> choices) {
  return [&target, choices = std::move(choices)](const std::string& value) -> Status {
    NSA_TRY_ASSIGN(target, list(value));
    for (const std::string& word : target) {
      if (std::find(choices.begin(), choices.end(), word) != choices.end()) continue;
      const auto nearest = nearest_name(word, choices);
      return fail(ErrorCode::kInvalidArgument, "\"" + word + "\" is none of " + join(choices, ", "),
                  nearest ? "did you mean " + *nearest + "?" : "");
    }
    return {};
  };
}
std::function<Status(const std::string&)> into(bool& target, bool value) {
  return [&target, value](const std::string&) -> Status {
    target = value;
    return {};
  };
}
std::function<Status(const std::string&)> behind(std::vector<std::string>& target) {
  return [&target](const std::string& value) -> Status {
    target.push_back(value);
    return {};
  };
}

} // namespace nsa::bench
