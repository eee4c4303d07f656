// One call of nsactl, from words to exit code. main() passes the real streams, and tests pass their
// own.
#pragma once

#include "cli/verb.h"

#include <functional>
#include <string>
#include <vector>

namespace nsa::cli {

// The process's streams, before --color and the environment are considered.
struct Terminal {
  std::ostream& out;
  std::ostream& err;
  std::istream& in;
  bool out_is_terminal = false, err_is_terminal = false, in_is_terminal = false;
  std::function<int()> width; // present columns; if null or 0, unknown
  std::string program_dir;    // folder of the running program
};

int run_command(const std::vector<Verb>& verbs, const std::vector<std::string>& words,
                const Terminal& terminal);

// Calls run_command() with this process's words, streams and folder. For main().
int run_process(const std::vector<Verb>& verbs, int argc, char** argv);

// Colour is off with --color=never, NO_COLOR, TERM=dumb or no terminal. It is on with
// --color=always or CLICOLOR_FORCE. The option overrides the environment.
enum class ColourWhen : uint8_t { kAuto, kAlways, kNever };
constexpr auto choice_names(ColourWhen) {
  return names_of("auto", "always", "never");
}
bool wants_colour(ColourWhen when, bool is_terminal);

} // namespace nsa::cli
