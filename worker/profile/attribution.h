// Where the time of recorded steps went: every instant belongs to one part of a step, or to none.
// Pure.
#pragma once

#include "nsa_model/ops/step_part.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace nsa::profile {

// A kernel or a copy on a device; on a CPU, a stretch in which a scope was the innermost one.
struct PartSpan {
  int64_t begin_ns = 0, end_ns = 0;
  std::optional<ops::StepPart> part; // nothing: not known
};

// What an instant counts for in which nothing runs.
enum class Idle : uint8_t {
  kNextPart, // on a device: it waits for what is launched next
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
  std::vector<PartTime> parts;    // those with time, the longest first
  std::vector<PartSpan> timeline; // in order; parts that do not overlap
  double attributed_ns() const;
  double ratio() const; // of all the time
};

// Of what lies within [begin, end). Where several spans run, each gets the same share of the time;
// a collective counts only where nothing else runs.
Attribution attribute(std::vector<PartSpan> spans, int64_t begin_ns, int64_t end_ns, Idle idle);

// The stretches in which each of nested scopes is the innermost one. Spans of one thread; of two
// that begin together, the one that stands first holds the other.
std::vector<PartSpan> innermost(std::vector<PartSpan> nested);

} // namespace nsa::profile
