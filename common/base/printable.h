// Makes text of a rank, a run or a file safe for a terminal. Characters that could move the cursor,
// set a title, fill the clipboard or reverse the reading direction become visible escapes. No I/O.
#pragma once

#include <string>
#include <string_view>

namespace nsa {

enum class LineBreaks { kEscape, kKeep };

// Escapes control characters except tab, and bytes that are not UTF-8, as \x1b. Escapes C1
// controls, and characters that break lines or change the text direction, as \u202e. `kKeep` keeps
// line feeds.
std::string printable(std::string_view text, LineBreaks line_breaks = LineBreaks::kEscape);

bool is_utf8(std::string_view text);

// Does the same for JSON text without changing its meaning. Such characters occur only inside
// strings, where \u009b is the same character.
std::string printable_json(std::string_view json);

} // namespace nsa
