// Replaces kill_point.cpp in builds without NSA_KILL_POINTS, in which no point can be selected.
#include "common/base/kill_point.h"

namespace nsa {

void pass_kill_point(KillPoint) {}

bool has_kill_points() {
  return false;
}

} // namespace nsa
