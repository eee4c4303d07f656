// A run as one self-contained HTML page: no script, no font, no other host. Pure.
#pragma once

#include "cli/render/plot.h"
#include "common/wire/api_types.h"

#include <string>
#include <utility>
#include <vector>

namespace nsa::render {

struct Report {
  wire::RunDetail detail;
  std::vector<std::pair<std::vector<Curve>, PlotAxes>> plots;
  std::vector<wire::EventView> events; // oldest first
  WallTime made_at;
};

// Escapes the texts of ranks, files and users, so that none of them becomes markup.
std::string report_html(const Report& report);

} // namespace nsa::render
