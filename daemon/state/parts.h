// The parts of an attempt: its ranks on one node, with the shim that is their parent. A run on one
// node has one part. A slot of another node has that node's name before a slash: "bee/cpu0". So the
// slots of a run say which rank is where. Pure functions.
#pragma once

#include "common/base/ids.h"

#include <string>
#include <string_view>
#include <vector>

namespace nsa::state {

struct Part {
  std::string node; // empty: the node of this nsad
  Rank first_rank = 0;
  int ranks = 0;
  bool operator==(const Part&) const = default;
};

// "" for a slot of this nsad's own node.
std::string_view node_of_slot(std::string_view slot);
std::string slot_on(const std::string& node, const std::string& slot);
// Ranks take slots in order; slots of one node are adjacent.
std::vector<Part> parts_of(const std::vector<std::string>& slots, int ranks);
bool has_other_nodes(const std::vector<Part>& parts);

} // namespace nsa::state
