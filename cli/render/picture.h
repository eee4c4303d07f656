// A plot as shapes, which are then written as SVG or drawn as PNG. Pure.
#pragma once

#include "cli/render/plot.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace nsa::render {

// The origin is the upper left corner. A PNG has kPngScale pixels per unit.
inline constexpr double kPictureWidth = 960, kPictureHeight = 480;
inline constexpr int kPngScale = 2;

enum class Anchor : uint8_t { kStart, kMiddle, kEnd }; // the part of the text that is at x
struct PictureText {
  double x = 0, y = 0; // y is the text's baseline
  Anchor anchor = Anchor::kStart;
  std::string text;
};
struct PictureLine {
  double x = 0, y = 0, to_x = 0, to_y = 0;
  bool is_mark = false; // true: a restart; false: a grid line
};
struct PictureCurve {
  size_t colour = 0; // argument of picture_colour()
  std::vector<std::vector<std::pair<double, double>>> strokes;
};
struct Picture {
  std::vector<PictureLine> lines;
  std::vector<PictureCurve> curves;
  std::vector<PictureText> texts;
};

Picture picture_of(const std::vector<Curve>& curves, const PlotAxes& axes);
const char* picture_colour(size_t curve); // a colour such as "#0072b2", for any curve number

} // namespace nsa::render
