#include "cli/render/plot.h"

#include "cli/render/picture.h"
#include "cli/render/table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>

namespace nsa::render {

namespace {

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
  // Maps a value to 0..1. A range of one value maps to its middle.
  double share(double value) const { return high > low ? (value - low) / (high - low) : 0.5; }
};

// Returns the drawn y, or nullopt for a gap.
std::optional<double> height_of(double y, const PlotAxes& axes) {
  if (!std::isfinite(y) || (axes.logarithmic && y <= 0)) return std::nullopt;
  return axes.logarithmic ? std::log10(y) : y;
}

std::pair<Range, Range> ranges_of(const std::vector<Curve>& curves, const PlotAxes& axes) {
  Range x, y;
  for (const Curve& curve : curves)
    for (const auto& [at, value] : curve.points)
      if (const auto height = height_of(value, axes)) {
        x.take(at);
        y.take(*height);
      }
  return {x, y};
}

double value_at(double share, const Range& y, const PlotAxes& axes) {
  const double height = y.low + share * (y.high - y.low);
  return axes.logarithmic ? std::pow(10, height) : height;
}

std::string label(double share, const Range& y, const PlotAxes& axes) {
  const double value = value_at(share, y, axes);
  return axis_number(value, axes.logarithmic ? value / 10 : (y.high - y.low) / 4);
}

// Calls `dot` once for every dot of the line between two points (Bresenham's algorithm).
template <class Dot> void draw_line(int x, int y, int to_x, int to_y, Dot dot) {
  const int dx = std::abs(to_x - x), dy = -std::abs(to_y - y);
  const int step_x = x < to_x ? 1 : -1, step_y = y < to_y ? 1 : -1;
  for (int error = dx + dy;;) {
    dot(x, y);
    if (x == to_x && y == to_y) return;
    const int twice = 2 * error;
    if (twice >= dy) error += dy, x += step_x;
    if (twice <= dx) error += dx, y += step_y;
  }
}

// A drawing with two by four dots in each character. ASCII has one dot.
class Canvas {
public:
  Canvas(int columns, int rows, bool unicode)
      : columns_(columns), rows_(rows), unicode_(unicode),
        cells_(static_cast<size_t>(columns) * static_cast<size_t>(rows)) {}
  int dots_x() const { return unicode_ ? 2 * columns_ : columns_; }
  int dots_y() const { return unicode_ ? 4 * rows_ : rows_; }

  void dot(int x, int y, int curve) {
    static constexpr std::array<std::array<int, 2>, 4> kBits = {
        {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}};
    const int column = unicode_ ? x / 2 : x, row = unicode_ ? y / 4 : y;
    Cell& cell = cells_[index_of(row, column)];
    cell.dots |= unicode_ ? kBits[static_cast<size_t>(y % 4)][static_cast<size_t>(x % 2)] : 1;
    cell.curve = curve;
  }

  std::string row(int row, const Style& style) const {
    std::string text;
    for (int column = 0; column < columns_; ++column) {
      const Cell& cell = cells_[index_of(row, column)];
      if (cell.dots == 0)
        text += ' ';
      else
        text += paint(unicode_ ? braille(cell.dots) : std::string(1, ascii_mark(cell.curve)),
                      colour_of(cell.curve), style);
    }
    return text;
  }

  size_t index_of(int row, int column) const {
    return static_cast<size_t>(row) * static_cast<size_t>(columns_) + static_cast<size_t>(column);
  }

  static char ascii_mark(int curve) { return "*o+x#@"[curve % 6]; }
  static Colour colour_of(int curve) {
    static constexpr std::array kColours = {Colour::kCyan, Colour::kYellow, Colour::kGreen,
                                            Colour::kRed};
    return kColours[static_cast<size_t>(curve) % kColours.size()];
  }

private:
  struct Cell {
    int dots = 0, curve = 0;
  };
  static std::string braille(int dots) { // encodes U+2800 + dots as UTF-8
    return {static_cast<char>(0xe2), static_cast<char>(0xa0 | (dots >> 6)),
            static_cast<char>(0x80 | (dots & 0x3f))};
  }
  int columns_, rows_;
  bool unicode_;
  std::vector<Cell> cells_;
};

void draw_curve(Canvas& canvas, const Curve& curve, int number, const PlotAxes& axes,
                const Range& x, const Range& y) {
  std::optional<std::pair<int, int>> before;
  for (const auto& [at, value] : curve.points) {
    const auto height = height_of(value, axes);
    if (!height) {
      before.reset();
      continue;
    }
    const int to_x = static_cast<int>(std::lround(x.share(at) * (canvas.dots_x() - 1)));
    const int to_y = static_cast<int>(std::lround((1 - y.share(*height)) * (canvas.dots_y() - 1)));
    const auto [from_x, from_y] = before.value_or(std::pair(to_x, to_y));
    draw_line(from_x, from_y, to_x, to_y,
              [&](int dot_x, int dot_y) { canvas.dot(dot_x, dot_y, number); });
    before = {to_x, to_y};
  }
}

std::string left_pad(const std::string& text, size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

std::string coordinate(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

// The margins around the curves.
constexpr double kLeft = 80, kRight = 20, kTop = 40, kBottom = 50;
double picture_x(double share) {
  return kLeft + share * (kPictureWidth - kLeft - kRight);
}
double picture_y(double share) {
  return kPictureHeight - kBottom - share * (kPictureHeight - kTop - kBottom);
}

// Makes one stroke for each part of the curve without a gap.
PictureCurve strokes_of(const Curve& curve, size_t colour, const PlotAxes& axes, const Range& x,
                        const Range& y) {
  PictureCurve drawn{colour, {}};
  bool pen_down = false;
  for (const auto& [at, value] : curve.points) {
    const auto height = height_of(value, axes);
    if (height && !pen_down) drawn.strokes.emplace_back();
    if (height)
      drawn.strokes.back().emplace_back(picture_x(x.share(at)), picture_y(y.share(*height)));
    pen_down = height.has_value();
  }
  return drawn;
}

std::string svg_line(const PictureLine& line) {
  return "<line class=\"" + std::string(line.is_mark ? "mark" : "grid") + "\" x1=\"" +
         coordinate(line.x) + "\" x2=\"" + coordinate(line.to_x) + "\" y1=\"" + coordinate(line.y) +
         "\" y2=\"" + coordinate(line.to_y) +
         (line.is_mark ? "\"><title>restart</title></line>\n" : "\"/>\n");
}

std::string svg_text(const PictureText& text) {
  static constexpr std::array kAnchors = {"start", "middle", "end"};
  return "<text x=\"" + coordinate(text.x) + "\" y=\"" + coordinate(text.y) + "\" text-anchor=\"" +
         kAnchors[static_cast<size_t>(text.anchor)] + "\">" + escaped(text.text) + "</text>\n";
}

std::string svg_path(const PictureCurve& curve) {
  std::string path;
  for (const auto& stroke : curve.strokes)
    for (size_t i = 0; i < stroke.size(); ++i)
      path +=
          (i == 0 ? "M" : "L") + coordinate(stroke[i].first) + " " + coordinate(stroke[i].second);
  return "<path stroke=\"" + std::string(picture_colour(curve.colour)) + "\" d=\"" + path +
         "\"/>\n";
}

} // namespace

std::string axis_number(double value, double distance) {
  char text[64];
  const double size = std::max(std::abs(value), std::abs(distance));
  if (size == 0) return "0";
  if (size >= 1e7 || size < 1e-4) {
    std::snprintf(text, sizeof text, "%.3g", value);
    return text;
  }
  const int digits =
      distance > 0 ? std::clamp(static_cast<int>(std::ceil(-std::log10(distance))) + 1, 0, 6) : 3;
  std::snprintf(text, sizeof text, "%.*f", size >= 1000 ? 0 : digits, value);
  std::string out = text;
  if (size >= 1000)
    for (int at = static_cast<int>(out.size()) - 3; at > (out[0] == '-' ? 1 : 0); at -= 3)
      out.insert(static_cast<size_t>(at), ",");
  return out;
}

std::string plot_text(const std::vector<Curve>& curves, const PlotAxes& axes, int width, int height,
                      const Style& style) {
  const auto [x, y] = ranges_of(curves, axes);
  if (y.empty()) return "there is nothing to draw: no run has a value of " + axes.y_name + " yet\n";
  const int rows = std::max(4, height - 3);
  size_t margin = 0;
  for (const double share : {0.0, 0.25, 0.5, 0.75, 1.0})
    margin = std::max(margin, label(share, y, axes).size());
  Canvas canvas(std::max(10, width - static_cast<int>(margin) - 2), rows, style.unicode);
  for (size_t i = 0; i < curves.size(); ++i)
    draw_curve(canvas, curves[i], static_cast<int>(i), axes, x, y);
  std::string text = axes.y_name + (axes.logarithmic ? " (logarithmic)" : "") + "\n";
  for (int row = 0; row < rows; ++row) {
    const bool labelled = row % std::max(1, (rows - 1) / 4) == 0 || row == rows - 1;
    const double share = rows > 1 ? 1 - static_cast<double>(row) / (rows - 1) : 0.5;
    text += left_pad(labelled ? label(share, y, axes) : "", margin) +
            (style.unicode ? (labelled ? " ┤" : " │") : (labelled ? " +" : " |")) +
            canvas.row(row, style) + "\n";
  }
  const std::string first = axis_number(x.low, x.high - x.low),
                    last = axis_number(x.high, x.high - x.low) + " " + axes.x_name;
  const int gap =
      width - static_cast<int>(margin) - 2 - static_cast<int>(first.size() + last.size());
  text += std::string(margin + 2, ' ') + first +
          std::string(static_cast<size_t>(std::max(1, gap)), ' ') + last + "\n";
  for (size_t i = 0; i < curves.size() && curves.size() > 1; ++i)
    text += std::string(margin + 2, ' ') +
            paint(style.unicode ? "━━" : std::string(2, Canvas::ascii_mark(static_cast<int>(i))),
                  Canvas::colour_of(static_cast<int>(i)), style) +
            " " + curves[i].name + "\n";
  return text;
}

const char* picture_colour(size_t curve) {
  // The colours are from Okabe and Ito. Colour-blind people can distinguish these colours on white
  // and on black.
  static constexpr std::array kColours = {"#0072b2", "#e69f00", "#009e73",
                                          "#cc79a7", "#56b4e9", "#d55e00"};
  return kColours[curve % kColours.size()];
}

Picture picture_of(const std::vector<Curve>& curves, const PlotAxes& axes) {
  const auto [x, y] = ranges_of(curves, axes);
  Picture picture;
  const auto add_text = [&](double at_x, double at_y, Anchor anchor, std::string text) {
    picture.texts.push_back({at_x, at_y, anchor, std::move(text)});
  };
  add_text(kLeft, kTop - 16, Anchor::kStart,
           axes.y_name + (axes.logarithmic ? " (logarithmic)" : ""));
  add_text(kPictureWidth - kRight, kPictureHeight - 10, Anchor::kEnd, axes.x_name);
  if (y.empty()) {
    add_text(kPictureWidth / 2, kPictureHeight / 2, Anchor::kMiddle, "no values");
    return picture;
  }
  for (const double share : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    const double height = picture_y(share);
    picture.lines.push_back({kLeft, height, kPictureWidth - kRight, height, false});
    add_text(kLeft - 8, height + 5, Anchor::kEnd, label(share, y, axes));
    add_text(picture_x(share), kPictureHeight - kBottom + 20, Anchor::kMiddle,
             axis_number(x.low + share * (x.high - x.low), (x.high - x.low) / 4));
  }
  for (const double mark : axes.marks)
    if (mark >= x.low && mark <= x.high) {
      const double at = picture_x(x.share(mark));
      picture.lines.push_back({at, kTop, at, kPictureHeight - kBottom, true});
    }
  for (size_t i = 0; i < curves.size(); ++i) {
    picture.curves.push_back(strokes_of(curves[i], i, axes, x, y));
    const double at = kTop + 18 * static_cast<double>(i), end = kPictureWidth - kRight;
    picture.curves.push_back({i, {{{end - 24, at}, {end, at}}}});
    add_text(end - 30, at + 5, Anchor::kEnd, curves[i].name);
  }
  return picture;
}

std::string plot_svg(const std::vector<Curve>& curves, const PlotAxes& axes) {
  std::string svg =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 960 480\" "
      "font-family=\"sans-serif\" "
      "font-size=\"14\">\n<style>text{fill:#222}.grid{stroke:#8884}.mark{stroke:#d55e00;"
      "stroke-dasharray:4 4}path{fill:none;stroke-width:1.6}rect{fill:#fff}"
      "@media(prefers-color-scheme:dark){text{fill:#ddd}rect{fill:#111}}</style>\n"
      "<rect width=\"960\" height=\"480\"/>\n";
  const Picture picture = picture_of(curves, axes);
  for (const PictureLine& line : picture.lines)
    svg += svg_line(line);
  for (const PictureCurve& curve : picture.curves)
    svg += svg_path(curve);
  for (const PictureText& text : picture.texts)
    svg += svg_text(text);
  return svg + "</svg>\n";
}

} // namespace nsa::render
