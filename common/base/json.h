// The only door from JSON text to a tree (tools/lint holds it shut elsewhere). A tree is copied,
// printed and compared recursively, and grows to many times its text: so size and depth are checked
// before there is one. Pure; throws nothing.
#pragma once

#include "common/base/result.h"

#include <nlohmann/json.hpp>
#include <string_view>

namespace nsa {

struct JsonLimits {
  size_t bytes = size_t{1} << 20;
  int depth = 64; // of arrays and objects within each other
};

// kCorrupt: "started.json, line 1, column 65: ...". `subject` names the file or the message.
// `watch` sees the parser's events, as nlohmann defines them.
Result<nlohmann::json> parse_json(std::string_view text, std::string_view subject,
                                  JsonLimits limits = {},
                                  const nlohmann::json::parser_callback_t& watch = nullptr);

// Whether parse_json() would take it; builds no tree.
Status check_json(std::string_view text, std::string_view subject, JsonLimits limits = {});

// What a json::exception says, without the library's name of it.
std::string reason_of(const nlohmann::json::exception& exception);

} // namespace nsa
