// Arguments that several verbs share, so that they read alike everywhere.
#pragma once

#include "cli/render/problems.h"
#include "cli/render/run_views.h"
#include "cli/verb.h"

#include <algorithm>
#include <istream>
#include <string>

namespace nsa::cli {

inline Positional run_argument() {
  return {"RUN", ValueType::kRun, "id, start of an id, name, or @last"};
}
inline Option set_option() {
  return {"set", 0, ValueType::kText, "KEY=VALUE", "set a key of the run file", true};
}
inline Option follow_option(std::string meaning) {
  return {"follow", 'f', ValueType::kFlag, "", std::move(meaning)};
}
inline Option wait_option(std::string meaning) {
  return {"wait", 'w', ValueType::kFlag, "", std::move(meaning)};
}
// One of several runs failed: told at once, the others go on, and the worst exit code is the end's.
inline void tell_failure(Context& context, const Error& error, Exit& worst) {
  context.io.err << render::error_text(error);
  worst = std::max(worst, exit_of(error.code));
}
// On a terminal: a question that only "y" or "yes" answers with yes.
inline bool ask(Context& context, const std::string& question) {
  context.io.err << question << " [y/N] " << std::flush;
  std::string answer;
  std::getline(context.io.in, answer);
  return answer == "y" || answer == "Y" || answer == "yes";
}
inline Option yes_option() {
  return {"yes", 'y', ValueType::kFlag, "", "do it without asking; needed without a terminal"};
}
// What cannot be undone: on a terminal a person is asked; elsewhere only --yes is an answer. `what`
// would be removed; `next` is said where nobody can be asked.
inline Result<bool> confirm_removal(const Arguments& arguments, Context& context,
                                    const std::string& what, const std::string& next) {
  if (arguments.has("yes")) return true;
  if (!context.io.in_is_terminal || !context.io.err_is_terminal || context.output == Output::kJson)
    return fail(ErrorCode::kInvalidArgument, "nothing was removed: this would remove " + what,
                "it cannot be undone; " + next);
  if (ask(context, "remove " + what + "? It cannot be undone.")) return true;
  context.io.err << "nothing was removed\n";
  return false;
}
inline render::ViewOptions view_options(const Context& context) {
  return {
      {context.io.colour, context.io.unicode}, context.io.width, context.output == Output::kWide};
}

} // namespace nsa::cli
