// Draws curves: in a terminal with braille dots, and as an SVG or PNG file. Pure.
#pragma once

#include "cli/render/text.h"

#include <string>
#include <utility>
#include <vector>

namespace nsa::render {

struct Curve {
  std::string name;                              // name of the run, for the legend
  std::vector<std::pair<double, double>> points; // x ascending; y may be NaN, which is a gap
};

struct PlotAxes {
  std::string x_name, y_name;     // "step", "loss"
  bool logarithmic = false;       // for y; values up to 0 are gaps
  std::vector<double> marks = {}; // x of restarts
};

// Returns lines of `width` columns and about `height` rows, axes and legend included. If there is
// nothing to draw, the text says so.
std::string plot_text(const std::vector<Curve>& curves, const PlotAxes& axes, int width, int height,
                      const Style& style);

// Returns a complete picture, which is light or dark as the viewer's system is.
std::string plot_svg(const std::vector<Curve>& curves, const PlotAxes& axes);

// Returns the same picture as pixels, for programs that show no SVG: 1920 by 960, dark on white.
std::string plot_png(const std::vector<Curve>& curves, const PlotAxes& axes);

// Returns a number such as "1,250", "0.0031" or "2.5e+09", with as few digits as distinguish it at
// this distance.
std::string axis_number(double value, double distance);

} // namespace nsa::render
