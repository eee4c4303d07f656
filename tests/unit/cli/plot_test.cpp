// Curves as text and as SVG: what is drawn where, gaps, and runs without values.
#include "cli/render/plot.h"

#include <cmath>
#include <gmock/gmock.h>
#include <limits>

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
