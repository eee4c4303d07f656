// Plots as PNG. Text is drawn with a built-in font of 5 by 7 dots (docs/adr/0070), so that nsactl
// needs no installed font.
#include "cli/render/picture.h"
#include "cli/render/png_font.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <zlib.h>

namespace nsa::render {

namespace {

// std::hypot is not used: glibc 2.35 gave it a new version, so older systems would refuse the
// program.
double length_of(double x, double y) {
  return std::sqrt(x * x + y * y);
}

constexpr int kWidth = static_cast<int>(kPictureWidth) * kPngScale;
constexpr int kHeight = static_cast<int>(kPictureHeight) * kPngScale;
// Half of the widths of lines.
constexpr double kHalfCurve = 0.8 * kPngScale, kHalfLine = 0.5 * kPngScale;
constexpr int kDot = 3; // pixels per dot of the font; letters are 21 pixels high

struct Rgb {
  uint8_t red = 0, green = 0, blue = 0;
};
constexpr Rgb kInk{0x22, 0x22, 0x22}, kGrid{0xdf, 0xdf, 0xdf}, kMark{0xd5, 0x5e, 0x00};

Rgb colour_of(size_t curve) {
  const auto value = std::strtoul(picture_colour(curve) + 1, nullptr, 16);
  return {static_cast<uint8_t>(value >> 16), static_cast<uint8_t>(value >> 8),
          static_cast<uint8_t>(value)};
}

// How much of each pixel a shape covers, so that strokes that meet are not painted twice.
class Coverage {
public:
  Coverage() : parts_(static_cast<size_t>(kWidth) * kHeight) {}

  // Adds a line with round ends. Units are pixels.
  void add_stroke(double x, double y, double to_x, double to_y, double half_width) {
    const double reach = half_width + 1;
    const auto [left, right] = std::minmax(x, to_x);
    const auto [top, bottom] = std::minmax(y, to_y);
    const int first_row = std::max(0, static_cast<int>(top - reach)),
              last_row = std::min(kHeight - 1, static_cast<int>(bottom + reach)),
              first = std::max(0, static_cast<int>(left - reach)),
              last = std::min(kWidth - 1, static_cast<int>(right + reach));
    const double dx = to_x - x, dy = to_y - y, squared = dx * dx + dy * dy;
    for (int row = first_row; row <= last_row; ++row)
      for (int column = first; column <= last; ++column) {
        const double px = column + 0.5 - x, py = row + 0.5 - y;
        const double along = squared > 0 ? std::clamp((px * dx + py * dy) / squared, 0.0, 1.0) : 0;
        const double distance = length_of(px - along * dx, py - along * dy);
        add(column, row, std::clamp(half_width + 0.5 - distance, 0.0, 1.0));
      }
  }
  void add_square(int x, int y, int size) {
    for (int row = std::max(0, y); row < std::min(kHeight, y + size); ++row)
      for (int column = std::max(0, x); column < std::min(kWidth, x + size); ++column)
        add(column, row, 1);
  }
  const std::vector<uint8_t>& parts() const { return parts_; }

private:
  void add(int column, int row, double part) {
    uint8_t& held = parts_[static_cast<size_t>(row) * kWidth + static_cast<size_t>(column)];
    held = std::max(held, static_cast<uint8_t>(std::lround(part * 255)));
  }
  std::vector<uint8_t> parts_; // 255 means that the pixel is covered
};

class Bitmap {
public:
  Bitmap() : bytes_(static_cast<size_t>(kWidth) * kHeight * 3, '\xff') {}

  void paint(const Coverage& shape, Rgb colour) {
    for (size_t pixel = 0; pixel < shape.parts().size(); ++pixel) {
      const int part = shape.parts()[pixel];
      if (part == 0) continue;
      size_t at = pixel * 3;
      for (const int value : {colour.red, colour.green, colour.blue}) {
        const int before = static_cast<uint8_t>(bytes_[at]);
        bytes_[at++] = static_cast<char>(before + (value - before) * part / 255);
      }
    }
  }
  // Returns rows in PNG's format. Each begins with the number of its filter, which is 0 for none.
  std::string rows() const {
    constexpr size_t kRow = static_cast<size_t>(kWidth) * 3;
    std::string rows;
    rows.reserve(bytes_.size() + kHeight);
    for (size_t row = 0; row < kHeight; ++row) {
      rows += '\0';
      rows.append(bytes_, row * kRow, kRow);
    }
    return rows;
  }

private:
  std::string bytes_; // red, green, blue of each pixel
};

// Adds dashes of four units with gaps of four, as in the SVG.
void add_dashes(Coverage& shape, const PictureLine& line) {
  constexpr double kDash = 4;
  const double length = length_of(line.to_x - line.x, line.to_y - line.y);
  for (double from = 0; from < length; from += 2 * kDash) {
    const double a = from / length, b = std::min(from + kDash, length) / length;
    const auto x = [&](double part) { return kPngScale * (line.x + part * (line.to_x - line.x)); };
    const auto y = [&](double part) { return kPngScale * (line.y + part * (line.to_y - line.y)); };
    shape.add_stroke(x(a), y(a), x(b), y(b), kHalfLine);
  }
}

void add_text(Coverage& shape, const PictureText& text) {
  const int advance = (kGlyphColumns + 1) * kDot;
  const std::vector<Glyph> glyphs = glyphs_of(text.text);
  const int width = advance * static_cast<int>(glyphs.size()) - kDot;
  int x = static_cast<int>(std::lround(text.x * kPngScale));
  x -= text.anchor == Anchor::kEnd ? width : text.anchor == Anchor::kMiddle ? width / 2 : 0;
  const int y = static_cast<int>(std::lround(text.y * kPngScale)) - kGlyphRows * kDot;
  for (const Glyph& glyph : glyphs) {
    for (int column = 0; column < kGlyphColumns; ++column)
      for (int row = 0; row < kGlyphRows; ++row)
        if ((glyph[static_cast<size_t>(column)] >> row & 1) != 0)
          shape.add_square(x + column * kDot, y + row * kDot, kDot);
    x += advance;
  }
}

std::string big_endian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
          static_cast<char>(value >> 8), static_cast<char>(value)};
}

std::string chunk(const std::string& kind, const std::string& content) {
  const std::string checked = kind + content;
  const auto sum =
      ::crc32(0, reinterpret_cast<const Bytef*>(checked.data()), static_cast<uInt>(checked.size()));
  return big_endian(static_cast<uint32_t>(content.size())) + checked +
         big_endian(static_cast<uint32_t>(sum));
}

std::string deflated(const std::string& text) {
  uLongf size = ::compressBound(text.size());
  std::string out(size, '\0');
  // This fails only without memory or if `out` is too small, which compressBound rules out.
  ::compress2(reinterpret_cast<Bytef*>(out.data()), &size,
              reinterpret_cast<const Bytef*>(text.data()), text.size(), Z_BEST_COMPRESSION);
  out.resize(size);
  return out;
}

} // namespace

std::string plot_png(const std::vector<Curve>& curves, const PlotAxes& axes) {
  const Picture picture = picture_of(curves, axes);
  Bitmap bitmap;
  Coverage grid, marks, texts;
  for (const PictureLine& line : picture.lines) {
    if (line.is_mark)
      add_dashes(marks, line);
    else
      grid.add_stroke(line.x * kPngScale, line.y * kPngScale, line.to_x * kPngScale,
                      line.to_y * kPngScale, kHalfLine);
  }
  bitmap.paint(grid, kGrid);
  bitmap.paint(marks, kMark);
  for (const PictureCurve& curve : picture.curves) {
    Coverage drawn;
    for (const auto& stroke : curve.strokes)
      for (size_t i = 0; i < stroke.size(); ++i) {
        const auto& [x, y] = stroke[i == 0 ? 0 : i - 1]; // a single point becomes a dot
        drawn.add_stroke(x * kPngScale, y * kPngScale, stroke[i].first * kPngScale,
                         stroke[i].second * kPngScale, kHalfCurve);
      }
    bitmap.paint(drawn, colour_of(curve.colour));
  }
  for (const PictureText& text : picture.texts)
    add_text(texts, text);
  bitmap.paint(texts, kInk);
  // The fields are: 8 bits a channel, RGB, deflate, no filter, not interlaced.
  const std::string header =
      big_endian(kWidth) + big_endian(kHeight) + std::string("\x08\x02\x00\x00\x00", 5);
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR", header) + chunk("IDAT", deflated(bitmap.rows())) +
         chunk("IEND", "");
}

} // namespace nsa::render
