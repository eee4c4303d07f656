#include "daemon/state/parts.h"

#include <algorithm>

namespace nsa::state {

std::string_view node_of_slot(std::string_view slot) {
  const size_t slash = slot.find('/');
  return slash == std::string_view::npos ? std::string_view() : slot.substr(0, slash);
}

std::string slot_on(const std::string& node, const std::string& slot) {
  return node.empty() ? slot : node + "/" + slot;
}

std::vector<Part> parts_of(const std::vector<std::string>& slots, int ranks) {
  std::vector<Part> parts;
  const size_t count = std::min(slots.size(), static_cast<size_t>(std::max(ranks, 0)));
  for (size_t rank = 0; rank < count; ++rank) {
    const std::string_view node = node_of_slot(slots[rank]);
    if (parts.empty() || parts.back().node != node)
      parts.push_back({std::string(node), static_cast<Rank>(rank), 0});
    ++parts.back().ranks;
  }
  return parts;
}

bool has_other_nodes(const std::vector<Part>& parts) {
  return std::ranges::any_of(parts, [](const Part& part) { return !part.node.empty(); });
}

} // namespace nsa::state
