// Curves as pictures: in a terminal of braille dots, and as a file of SVG or PNG. Pure.
#pragma once

#include "cli/render/text.h"

#include <string>
#include <utility>
#include <vector>

namespace nsa::render {

struct Curve {
  std::string name;                              // of the run, for the legend
  std::vector<std::pair<double, double>> points; // x ascending; y may be NaN, which is a gap
};

struct PlotAxes {
  std::string x_name, y_name;     // "step", "loss"
  bool logarithmic = false;       // y; values of 0 and below are gaps
  std::vector<double> marks = {}; // x of restarts
};

// Lines of `width` columns and about `height` rows, axes and legend included. Says so where there
// is nothing to draw.
std::string plot_text(const std::vector<Curve>& curves, const PlotAxes& axes, int width, int height,
                      const Style& style);

// A picture of its own, light or dark as the viewer's system is.
std::string plot_svg(const std::vector<Curve>& curves, const PlotAxes& axes);

// The same picture in pixels, for programs that show no SVG: 1920 by 960, dark on white.
std::string plot_png(const std::vector<Curve>& curves, const PlotAxes& axes);

// "1,250", "0.0031", "2.5e+09": as few digits as tell it apart at this distance.
std::string axis_number(double value, double distance);

} // namespace nsa::render
