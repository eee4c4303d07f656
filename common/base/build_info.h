// Identifies the build of this program. `version` prints it, every attempt records it, and the
// nsactl/nsad handshake compares it.
#pragma once

#include <string>

namespace nsa {

struct BuildInfo {
  std::string version;  // semantic version of the project, "0.1.0"
  std::string commit;   // abbreviated git commit; ends in "-dirty" if the tree had changes
  std::string compiler; // "GNU 12.2.0"
};

const BuildInfo& build_info();

} // namespace nsa
