// Command lines of the measuring programs: options with their help, examples, and errors that name
// the nearest option. Pure but for the setters that a program gives.
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
  std::string value; // what stands for its value in the help, "N"; empty: a switch without one
  std::string what;  // one sentence
  std::function<Status(const std::string& value)> take; // "" for a switch
};

struct CommandLine {
  std::string name;      // as the user calls it, "nsa-bench model"
  std::string summary;   // one or two sentences
  std::string arguments; // what stands for further words in the usage line; empty: none are taken
  std::vector<Option> options;
  std::vector<std::string> examples; // without the name
};

std::string help(const CommandLine& command);

struct Words {
  bool help = false;             // --help or -h was among them
  std::vector<std::string> rest; // what is no option
};
// "--name value" and "--name=value". kInvalidArgument names the nearest option, the option whose
// value is missing or wrong, or the word that nobody takes.
Result<Words> read(const CommandLine& command, const std::vector<std::string>& words);

// read(), after which the program goes on: prints help and exits with 0, or the error and exits
// with 2.
std::vector<std::string> read_or_exit(const CommandLine& command, int argc, char** argv);

// Setters. Numbers are whole and from 1 up; lists are separated by commas and not empty.
std::function<Status(const std::string&)> into(std::string& target);
std::function<Status(const std::string&)> into(int64_t& target);
std::function<Status(const std::string&)> into(double& target);
std::function<Status(const std::string&)> into(std::vector<int64_t>& target);
std::function<Status(const std::string&)> into(std::vector<std::string>& target,
                                               std::vector<std::string> choices);
// Words of an enum, or of those of its values that are `allowed`.
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
