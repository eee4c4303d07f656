// Which build this program is: printed by `version`, recorded as provenance with every attempt, and
// compared in the nsactl/nsad handshake.
#pragma once

#include <string>

namespace nsa {

struct BuildInfo {
  std::string version;  // semantic version of the project, "0.1.0"
  std::string commit;   // abbreviated git commit, "-dirty" appended when the tree had changes
  std::string compiler; // "GNU 12.2.0"
};

const BuildInfo& build_info();

} // namespace nsa
