// Letters of 5 by 7 dots for pictures.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace nsa::render {

inline constexpr int kGlyphColumns = 5, kGlyphRows = 7;
// Columns from left to right; bit 0 is the top dot.
using Glyph = std::array<uint8_t, kGlyphColumns>;

// Returns the glyphs of a UTF-8 text. Characters outside printable ASCII become "?".
std::vector<Glyph> glyphs_of(std::string_view text);

} // namespace nsa::render
