// After a change, prints the next commands on standard error, unless --quiet or JSON is set.
#pragma once

#include "cli/verb.h"

#include <initializer_list>
#include <string>

namespace nsa::cli {

inline void hint(Context& context, std::initializer_list<std::string> commands) {
  if (context.quiet || context.output == Output::kJson) return;
  std::string line = "next:";
  for (const std::string& command : commands)
    line += (line.size() > 5 ? " | " : " ") + command;
  context.io.err << line << "\n";
}

} // namespace nsa::cli
