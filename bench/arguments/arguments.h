// Command lines of the measuring programs: options with their help, examples, and errors that name
// the nearest option. Pure, except for the setters that a program passes.
#pragma once

#include "common/base/choice.h"
#include "common/base/result.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace nsa::bench {

struct Option {
  std::string name;  // "--tokens"
  std::string value; // placeholder of its value in the help, "N"; empty for a switch
  std::string what;  // description in one sentence
  std::function<Status(const std::string& value)> take; // receives the value; "" for a switch
};

struct CommandLine {
  std::string name;    // name that the user types, "nsa-bench model"
  std::string summary; // one or two sentences
  // Placeholder of further words in the usage line; empty if none are allowed.
  std::string arguments;
  std::vector<Option> options;
  std::vector<std::string> examples; // without the name
};

std::string help(const CommandLine& command);

struct Words {
  bool help = false;             // --help or -h was given
  std::vector<std::string> rest; // words that are not options
};
// Reads "--name value" and "--name=value". The error is kInvalidArgument. It names the nearest
// option, the option whose value is missing or wrong, or an unexpected word.
Result<Words> read(const CommandLine& command, const std::vector<std::string>& words);

// Calls read() for a program's main. Prints help and exits with 0, or prints the error and exits
// with 2.
std::vector<std::string> read_or_exit(const CommandLine& command, int argc, char** argv);

// Setters. Numbers are integers of at least 1; lists are separated by commas and not empty.
std::function<Status(const std::string&)> into(std::string& target);
std::function<Status(const std::string&)> into(int64_t& target);
std::function<Status(const std::string&)> into(double& target);
std::function<Status(const std::string&)> into(std::vector<int64_t>& target);
std::function<Status(const std::string&)> into(std::vector<std::string>& target,
                                               std::vector<std::string> choices);
// Parses names of an enum. If `allowed` is not empty, only those values are accepted.
template <ChoiceEnum E>
std::function<Status(const std::string&)> into(std::vector<E>& target,
                                               const std::vector<E>& allowed = {}) {
  std::vector<std::string> names;
  for (const E value : allowed)
    names.push_back(text_of(value));
  if (names.empty()) names.assign(kChoiceNames<E>.begin(), kChoiceNames<E>.end());
  return [&target, names](const std::string& text) -> Status {
    std::vector<std::string> words;
    NSA_TRY(into(words, names)(text));
    target.clear();
    for (const std::string& word : words)
      target.push_back(choice_from<E>(word).value());
    return {};
  };
}
std::function<Status(const std::string&)> into(bool& target, bool value = true);
std::function<Status(const std::string&)> behind(std::vector<std::string>& target);

} // namespace nsa::bench
