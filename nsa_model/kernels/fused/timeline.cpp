#include <algorithm>
#include <array>
#include <cstdio>

#include "nsa_model/kernels/fused/schedule.h"

namespace nsa::kernels {
namespace {

std::string what_of(const Schedule& schedule, const Node& node) {
  if (node.kernel == Kernel::kWait) return "";
  std::string text(name_of(node.kernel));
  constexpr const char* kBranchNames[] = {"cmp", "slc", "win"};
  if (node.branch >= 0) text += std::string(" ") + kBranchNames[node.branch];
  if (node.columns > 0) {
    text += " " + std::to_string(node.first_column) + "-" +
            std::to_string(node.first_column + node.columns - 1);
  }
  if (node.most_ctas > 0) text += " on " + std::to_string(node.most_ctas) + " SMs";
  if (node.is_beside) text += " on " + std::to_string(schedule.plan.beside.ctas) + " SMs";
  if (node.leave_ctas > 0) text += " leaves " + std::to_string(node.leave_ctas) + " SMs";
  return text;
}

std::string waits_of(const Node& node) {
  std::string text;
  for (const Wait& wait : node.waits) {
    if (!text.empty()) text += ", ";
    text += wait.until == Until::kLaunched ? "launch " : "";
    text += wait.on == kCallersWork ? "the caller" : std::to_string(wait.on);
  }
  return text;
}

std::string written_by(const Node& node) {
  std::string text;
  for (const Use& use : node.uses) {
    if (use.access == Access::kRead) continue;
    if (!text.empty()) text += ", ";
    text += name_of(use.buffer);
  }
  const std::string of_all = "stats.cmp, stats.slc, stats.win";
  if (const std::size_t at = text.find(of_all); at != std::string::npos)
    text.replace(at, of_all.size(), "stats");
  return text;
}

using Row = std::vector<std::string>;

// Pads columns to their widest cell.
std::string table(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const Row& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      line.append(widths[i] + 2 - row[i].size(), ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

} // namespace

std::string timeline(const Schedule& schedule) {
  std::vector<Row> nodes = {{"node", "main stream", "side stream", "waits for", "writes"}};
  for (std::size_t i = 0; i < schedule.nodes.size(); ++i) {
    const Node& node = schedule.nodes[i];
    const bool side = node.stream == Stream::kSide;
    std::string what = what_of(schedule, node);
    if (what.empty()) what = side ? "begins" : "continues after both";
    nodes.push_back(
        {std::to_string(i), side ? "" : what, side ? what : "", waits_of(node), written_by(node)});
  }
  std::vector<Row> buffers = {{"scratch buffer", "in use", "part", "MiB"}};
  constexpr const char* kPartNames[] = {"kept", "start", "lists"};
  const ScratchLayout layout = lay_out(schedule);
  const auto lives = lifetimes_of(schedule);
  for (auto i = static_cast<std::size_t>(kFirstScratch); i < kBuffers; ++i) {
    if (lives[i].first < 0 || layout.places[i].bytes == 0) continue;
    char mebibytes[32];
    std::snprintf(mebibytes, sizeof(mebibytes), "%.1f",
                  static_cast<double>(layout.places[i].bytes) / (1 << 20));
    buffers.push_back({std::string(name_of(static_cast<Buffer>(i))),
                       std::to_string(lives[i].first) + "-" + std::to_string(lives[i].last),
                       kPartNames[static_cast<std::size_t>(layout.places[i].part)], mebibytes});
  }
  return table(nodes) + (buffers.size() > 1 ? "\n" + table(buffers) : "");
}

} // namespace nsa::kernels
