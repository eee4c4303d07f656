// Arguments that several verbs share, so that they are the same everywhere.
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
// Reports that one of several runs failed. The others continue, and the worst exit code is returned
// at the end.
inline void tell_failure(Context& context, const Error& error, Exit& worst) {
  context.io.err << render::error_text(error);
  worst = std::max(worst, exit_of(error.code));
}
// Asks a question on the terminal. Only "y" or "yes" means yes.
inline bool ask(Context& context, const std::string& question) {
  context.io.err << question << " [y/N] " << std::flush;
  std::string answer;
  std::getline(context.io.in, answer);
  return answer == "y" || answer == "Y" || answer == "yes";
}
inline Option yes_option() {
  return {"yes", 'y', ValueType::kFlag, "", "do it without asking; needed without a terminal"};
}
// Confirms a removal that cannot be undone. A person is asked on a terminal; elsewhere --yes is
// required. `what` would be removed. `next` is printed if nobody can be asked.
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
