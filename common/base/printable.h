// Makes text of a rank, a run or a file safe for a terminal. Characters that could move the
// cursor, set a title, fill the clipboard or reverse the reading direction become visible escapes.
// Pure.
#pragma once

#include <string>
#include <string_view>

namespace nsa {

enum class LineBreaks { kEscape, kKeep };

// Escapes as \x1b: control characters but the tab, and bytes that are no UTF-8. Escapes as \u202e:
// C1 controls, and characters that break lines or turn the direction of text. `kKeep` leaves line
// feeds.
std::string printable(std::string_view text, LineBreaks line_breaks = LineBreaks::kEscape);

bool is_utf8(std::string_view text);

// The same for JSON text, which keeps its meaning: such characters stand only inside its strings,
// where \u009b is the same character.
std::string printable_json(std::string_view json);

} // namespace nsa
