// Attributes the time of recorded steps: every instant belongs to one part of a step, or to none.
// It does no I/O.
#pragma once

#include "nsa_model/ops/step_part.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace nsa::profile {

// A kernel or a copy on a device. On a CPU, an interval in which a scope was the innermost one.
struct PartSpan {
  int64_t begin_ns = 0, end_ns = 0;
  std::optional<ops::StepPart> part; // nullopt: not known
};

// How an instant without a running span is counted.
enum class Idle : uint8_t {
  kNextPart, // for a device, which waits for the next launch
  kNothing,
};

struct PartTime {
  ops::StepPart part = ops::StepPart::kData;
  double busy_ns = 0, idle_ns = 0;
  uint64_t spans = 0;
  double all_ns() const { return busy_ns + idle_ns; }
};

struct Attribution {
  int64_t begin_ns = 0, end_ns = 0;
  std::vector<PartTime> parts;    // parts with time, the longest first
  std::vector<PartSpan> timeline; // in order, without overlap
  double attributed_ns() const;
  double ratio() const; // attributed part of all time
};

// Attributes the time within [begin, end). If several spans run, each gets the same fraction of the
// time. A collective counts only while nothing else runs.
Attribution attribute(std::vector<PartSpan> spans, int64_t begin_ns, int64_t end_ns, Idle idle);

// Returns the intervals in which each of nested scopes is the innermost one. The spans are of one
// thread. If two begin together, the first in the list contains the other.
std::vector<PartSpan> innermost(std::vector<PartSpan> nested);

} // namespace nsa::profile
