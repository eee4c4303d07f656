// A plot as shapes, before it is written as SVG or drawn as PNG. Pure.
#pragma once

#include "cli/render/plot.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace nsa::render {

// Coordinates begin at the upper left corner; a PNG has kPngScale pixels a unit.
inline constexpr double kPictureWidth = 960, kPictureHeight = 480;
inline constexpr int kPngScale = 2;

enum class Anchor : uint8_t { kStart, kMiddle, kEnd }; // which part of the text is at x
struct PictureText {
  double x = 0, y = 0; // y of the line on which letters stand
  Anchor anchor = Anchor::kStart;
  std::string text;
};
struct PictureLine {
  double x = 0, y = 0, to_x = 0, to_y = 0;
  bool is_mark = false; // a restart; else a line of the grid
};
struct PictureCurve {
  size_t colour = 0; // of picture_colour()
  std::vector<std::vector<std::pair<double, double>>> strokes;
};
struct Picture {
  std::vector<PictureLine> lines;
  std::vector<PictureCurve> curves;
  std::vector<PictureText> texts;
};

Picture picture_of(const std::vector<Curve>& curves, const PlotAxes& axes);
const char* picture_colour(size_t curve); // "#0072b2"; of any number

} // namespace nsa::render
