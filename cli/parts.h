// Arguments that several verbs share, so that they read alike everywhere.
#pragma once

#include "cli/render/run_views.h"
#include "cli/verb.h"

namespace nsa::cli {

inline Positional run_argument() {
  return {"RUN", ValueType::kRun, "id, start of an id, name, or @last"};
}
inline Option set_option() {
  return {"set", 0, ValueType::kText, "KEY=VALUE", "a key of the run file, instead of its value",
          true};
}
inline Option follow_option(std::string meaning) {
  return {"follow", 'f', ValueType::kFlag, "", std::move(meaning)};
}
inline Option wait_option(std::string meaning) {
  return {"wait", 'w', ValueType::kFlag, "", std::move(meaning)};
}
inline render::ViewOptions view_options(const Context& context) {
  return {
      {context.io.colour, context.io.unicode}, context.io.width, context.output == Output::kWide};
}

} // namespace nsa::cli
