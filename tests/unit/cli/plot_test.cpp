// Curves as text, SVG and PNG: the position of lines, gaps, and runs without values.
#include "cli/render/plot.h"
#include "cli/render/png_font.h"

#include <cmath>
#include <gmock/gmock.h>
#include <limits>
#include <set>
#include <zlib.h>

namespace nsa::render {
namespace {

using testing::HasSubstr;
using testing::Not;

const PlotAxes kLoss{"step", "loss"};

TEST(Plot, ALineFromCornerToCorner) {
  const Curve curve{"k1  run", {{0, 0}, {10, 10}}};
  const std::string text = plot_text({curve}, kLoss, 20, 8, {false, false});
  EXPECT_EQ(text, "loss\n"
                  "10.0 +            **\n"
                  " 7.5 +         ***  \n"
                  " 5.0 +     ****     \n"
                  " 2.5 +  ***         \n"
                  " 0.0 +**            \n"
                  "      0      10 step\n");
}

TEST(Plot, BrailleHasEightDotsACharacterAndColoursOnlyWhereAsked) {
  const Curve curve{"k1", {{0, 1}, {1, 2}, {2, 1}}};
  const std::string plain = plot_text({curve}, kLoss, 40, 10, {false, true});
  EXPECT_THAT(plain, HasSubstr("⠁") /* a first dot */);
  EXPECT_THAT(plain, Not(HasSubstr("\x1b")));
  EXPECT_THAT(plot_text({curve}, kLoss, 40, 10, {true, true}), HasSubstr("\x1b"));
}

TEST(Plot, SeveralCurvesHaveALegend) {
  const std::vector<Curve> curves = {{"k1  first", {{0, 1}}}, {"k2  second", {{0, 2}}}};
  const std::string text = plot_text(curves, kLoss, 60, 10, {false, false});
  EXPECT_THAT(text, HasSubstr("** k1  first"));
  EXPECT_THAT(text, HasSubstr("oo k2  second"));
}

TEST(Plot, NothingToDrawIsSaid) {
  const double none = std::nan("");
  const std::vector<Curve> curves = {{"k1", {}}, {"k2", {{1, none}, {2, HUGE_VAL}}}};
  EXPECT_EQ(plot_text(curves, kLoss, 60, 10, {false, false}),
            "there is nothing to draw: no run has a value of loss yet\n");
  EXPECT_THAT(plot_svg(curves, kLoss), HasSubstr("no values"));
}

TEST(Plot, GapsBreakTheLine) {
  PlotAxes axes = kLoss;
  axes.logarithmic = true;
  const Curve curve{"a <b> & \"c\"", {{0, 1}, {1, 10}, {2, 0}, {3, 100}, {4, 10}}};
  const std::string svg = plot_svg({curve}, axes);
  EXPECT_THAT(svg, HasSubstr("a &lt;b&gt; &amp; &quot;c&quot;"));
  const size_t path = svg.find("d=\"M") + 3;
  const std::string drawn = svg.substr(path, svg.find('"', path) - path);
  EXPECT_EQ(std::count(drawn.begin(), drawn.end(), 'M'), 2) << drawn;
  EXPECT_EQ(std::count(drawn.begin(), drawn.end(), 'L'), 2) << drawn;
}

// The contents of a PNG with 8 bits per channel and without filters. Its checksums are verified.
struct Pixels {
  uint32_t width = 0, height = 0;
  std::string rows;
  // Returns "rrggbb"; x and y are in units of the picture.
  std::string at(double x, double y) const {
    const auto column = static_cast<size_t>(x * width / 960),
               row = static_cast<size_t>(y * height / 480);
    char text[8];
    const auto* pixel = reinterpret_cast<const unsigned char*>(
        rows.data() + row * (width * size_t{3} + 1) + 1 + column * 3);
    std::snprintf(text, sizeof text, "%02x%02x%02x", pixel[0], pixel[1], pixel[2]);
    return text;
  }
};

uint32_t big_endian(const std::string& bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i)
    value = value << 8 | static_cast<unsigned char>(bytes.at(at + i));
  return value;
}

Pixels read_png(const std::string& png) {
  Pixels pixels;
  std::string packed;
  EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  for (size_t at = 8; at < png.size();) {
    const uint32_t size = big_endian(png, at);
    const std::string kind = png.substr(at + 4, 4), content = png.substr(at + 8, size);
    const std::string checked = kind + content;
    EXPECT_EQ(big_endian(png, at + 8 + size),
              ::crc32(0, reinterpret_cast<const Bytef*>(checked.data()),
                      static_cast<uInt>(checked.size())))
        << kind;
    if (kind == "IHDR") {
      pixels.width = big_endian(content, 0);
      pixels.height = big_endian(content, 4);
    }
    if (kind == "IDAT") packed += content;
    at += size + 12;
  }
  uLongf size = (pixels.width * uLongf{3} + 1) * pixels.height;
  pixels.rows.resize(size);
  EXPECT_EQ(::uncompress(reinterpret_cast<Bytef*>(pixels.rows.data()), &size,
                         reinterpret_cast<const Bytef*>(packed.data()), packed.size()),
            Z_OK);
  EXPECT_EQ(size, pixels.rows.size());
  return pixels;
}

TEST(Plot, APngHasTheCurvesWhereTheSvgHasThem) {
  PlotAxes axes = kLoss;
  axes.marks = {2.5};
  const double none = std::nan("");
  const std::vector<Curve> curves = {{"k1", {{0, 0}, {4, 0}, {5, none}, {6, 0}, {10, 0}}},
                                     {"k2", {{0, 10}, {10, 10}}}};
  const Pixels png = read_png(plot_png(curves, axes));
  ASSERT_EQ(png.width, 1920u);
  ASSERT_EQ(png.height, 960u);
  const double left = 80, right = 940, top = 40, bottom = 430; // of the axes, as in the SVG
  const auto x = [&](double step) { return left + (right - left) * step / 10; };
  EXPECT_EQ(png.at(x(3), bottom), "0072b2") << "the first curve";
  EXPECT_EQ(png.at(x(7), top), "e69f00") << "the second curve";
  EXPECT_EQ(png.at(x(5), bottom), "dfdfdf") << "the grid, where the first curve has a gap";
  EXPECT_EQ(png.at(x(3), 200), "ffffff");
  EXPECT_EQ(png.at(x(2.5), top + 2), "d55e00") << "a restart";
  const std::string svg = plot_svg(curves, axes);
  EXPECT_THAT(svg, HasSubstr("M80.0 430.0L424.0 430.0M596.0 430.0L940.0 430.0"));
  EXPECT_THAT(svg, HasSubstr("x1=\"295.0\" x2=\"295.0\" y1=\"40.0\" y2=\"430.0\""));
}

TEST(Plot, APngWithoutValuesHasItsWords) {
  const Pixels png = read_png(plot_png({}, kLoss));
  EXPECT_NE(png.rows.find(std::string(6, '\x22')), std::string::npos) << "nothing is written";
}

TEST(Plot, LettersArePrintedAndOtherCharactersAreQuestions) {
  EXPECT_EQ(glyphs_of("aß").size(), 2u);
  EXPECT_EQ(glyphs_of("ß")[0], glyphs_of("?")[0]);
  std::set<Glyph> all;
  for (char c = '!'; c <= '~'; ++c)
    all.insert(glyphs_of(std::string(1, c))[0]);
  EXPECT_EQ(all.size(), size_t{'~' - '!' + 1}) << "two letters look the same";
}

TEST(Plot, NumbersOfAxes) {
  EXPECT_EQ(axis_number(0, 1), "0.0");
  EXPECT_EQ(axis_number(5.25, 0.25), "5.25");
  EXPECT_EQ(axis_number(1250, 100), "1,250");
  EXPECT_EQ(axis_number(-1250000, 100), "-1,250,000");
  EXPECT_EQ(axis_number(6e-4, 1e-4), "0.00060");
  EXPECT_EQ(axis_number(2.5e9, 1e8), "2.5e+09");
  EXPECT_EQ(axis_number(0, 0), "0");
}

} // namespace
} // namespace nsa::render
