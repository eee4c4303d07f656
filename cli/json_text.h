// JSON as nsactl prints it. Nothing in it controls a terminal, and every program reads the same
// values.
#pragma once

#include "common/base/json.h"
#include "common/base/printable.h"

#include <string>

namespace nsa::cli {

// `Json` is nlohmann::json or ordered_json. Indent -1 prints one line.
template <class Json> std::string json_text(const Json& json, int indent = -1) {
  return printable_json(json.dump(indent, ' ', false, Json::error_handler_t::replace));
}

} // namespace nsa::cli
