// One call of nsactl, from words to exit code. main() gives it the real streams, tests their own.
#pragma once

#include "cli/verb.h"

#include <functional>
#include <string>
#include <vector>

namespace nsa::cli {

// What the process offers, before --color and the environment have their say.
struct Terminal {
  std::ostream& out;
  std::ostream& err;
  std::istream& in;
  bool out_is_terminal = false, err_is_terminal = false, in_is_terminal = false;
  std::function<int()> width; // columns now; none, or 0: unknown
  std::string program_dir;    // folder of the running program
};

int run_command(const std::vector<Verb>& verbs, const std::vector<std::string>& words,
                const Terminal& terminal);

// The same of this process: its words, its streams, its folder. For main().
int run_process(const std::vector<Verb>& verbs, int argc, char** argv);

// Colour: off by --color=never, NO_COLOR, TERM=dumb or no terminal; on by --color=always or
// CLICOLOR_FORCE. The option beats the environment.
enum class ColourWhen : uint8_t { kAuto, kAlways, kNever };
constexpr auto choice_names(ColourWhen) {
  return names_of("auto", "always", "never");
}
bool wants_colour(ColourWhen when, bool is_terminal);

} // namespace nsa::cli
