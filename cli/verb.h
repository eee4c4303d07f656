// A verb of nsactl as data. Each file defines one verb with a function that returns its Verb. The
// same table drives the parser, help, completion and docs/cli.md, so every verb has all of them.
//
// To add a verb, write cli/<noun>_<verb>.cpp with `Verb <noun>_<verb>_verb()`, name it in
// verbs.cpp, and list the file in CMakeLists.txt. A verb contains no parser and no terminal code.
// Its arguments are parsed and checked by type, its output goes through Context::io, and it returns
// its errors.
#pragma once

#include "common/base/choice.h"
#include "common/base/result.h"

#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::cli {

// Exit codes of nsactl (docs/cli.md).
enum class Exit : int {
  kDone = 0,
  kFailed = 1,       // the run failed, a check failed, or an error without a code of its own
  kUsage = 2,        // arguments or run file are wrong
  kNotFound = 3,     // no such run, file or checkpoint
  kPermission = 4,   //
  kRefused = 5,      // valid, but not now: wrong state, no room
  kUnreachable = 6,  // no daemon, or one of another version
  kLost = 7,         // a run stopped and lost steps that no checkpoint holds
  kStillPending = 8, // --wait ended before the run did
  kGate = 9,         // a gate of the run file has stopped the run
  kPaused = 10,      // a gate paused the run, which waits for `nsactl resume`
  kTimeout = 124,    //
  kInterrupted = 130 // Ctrl-C
};
Exit exit_of(ErrorCode code);

// The streams of a verb: data goes to `out`, everything else to `err`. Colour is used only if the
// flag below is set. Tests pass string streams.
struct Io {
  std::ostream& out;
  std::ostream& err;
  std::istream& in;
  bool out_is_terminal = false, err_is_terminal = false, in_is_terminal = false;
  bool colour = false; // whether `out` has colour
  bool unicode = true; // false prints sparklines and marks in ASCII
  int width = 80;      // columns of the terminal; 0 disables cutting
  // Current width, which may change while a screen is redrawn.
  std::function<int()> current_width = {};
};

// Verbs see only the first three. Names and YAML are converted from their JSON (columns.h).
enum class Output : uint8_t { kTable, kWide, kJson, kName, kYaml };
constexpr auto choice_names(Output) {
  return names_of("table", "wide", "json", "name", "yaml");
}

struct Context {
  Io& io;
  Output output = Output::kTable;
  bool quiet = false;      // no hints of next commands
  bool raw = false;        // --raw: texts of ranks and files stay unchanged
  bool system = false;     // --system: use the system's nsad instead of this user's
  std::string socket;      // --socket; empty selects by net::user_paths()
  bool may_start = true;   // start nsad on demand
  std::string program_dir; // folder of the running nsactl and nsad
};

enum class ValueType { kFlag, kText, kInteger, kDuration, kPath, kRun };

template <ChoiceEnum E> std::vector<std::string> choices_of() {
  return {kChoiceNames<E>.begin(), kChoiceNames<E>.end()};
}

struct Option {
  std::string name; // long name without dashes: "follow"
  char letter = 0;  // 'f' for -f; 0 if there is none
  ValueType type = ValueType::kFlag;
  std::string value_name; // "KEY=VALUE"; empty for flags
  std::string meaning;    // one clause
  bool repeated = false;
  std::vector<std::string> choices; // permitted values; empty permits any
  std::string older = {};           // former name, which is still accepted
};

struct Positional {
  std::string name; // "RUN"
  ValueType type = ValueType::kText;
  std::string meaning;
  bool required = true, repeated = false;
};

// Arguments that are parsed and checked by type. Names are those in Option and Positional.
class Arguments {
public:
  void add(const std::string& name, std::string value) {
    values_[name].push_back(std::move(value));
  }
  bool has(const std::string& name) const { return values_.count(name) > 0; }
  std::string text(const std::string& name, const std::string& otherwise = {}) const {
    const auto it = values_.find(name);
    return it == values_.end() ? otherwise : it->second.back();
  }
  std::vector<std::string> all(const std::string& name) const {
    const auto it = values_.find(name);
    return it == values_.end() ? std::vector<std::string>{} : it->second;
  }
  // For an option whose choices are choices_of<E>().
  template <ChoiceEnum E> E choice(const std::string& name, E otherwise) const {
    return choice_from<E>(text(name)).value_or(otherwise);
  }
  template <ChoiceEnum E> std::vector<E> all_choices(const std::string& name) const {
    std::vector<E> values;
    for (const std::string& word : all(name))
      if (const auto value = choice_from<E>(word)) values.push_back(*value);
    return values;
  }
  int64_t integer(const std::string& name, int64_t otherwise) const; // type kInteger
  double seconds(const std::string& name, double otherwise) const;   // type kDuration: "90", "10m"

private:
  std::map<std::string, std::vector<std::string>> values_;
};

struct Verb {
  std::string name;    // "submit", or noun and verb: "ckpt ls"
  std::string summary; // one line, imperative, no full stop
  std::string detail;  // further sentences for --help; may be empty
  std::vector<Positional> positionals;
  std::vector<Option> options;
  std::vector<std::pair<std::string, std::string>> examples; // command, what it does
  // Returns the exit code, or an Error. main prints it ("error: ...", "  hint: ...") and converts
  // it with exit_of.
  std::function<Result<Exit>(const Arguments&, Context&)> run;
  bool hidden = false;
};

// Converts "90", "90s", "10m", "2h" and "1d" to seconds.
Result<double> parse_duration(std::string_view text);

} // namespace nsa::cli
