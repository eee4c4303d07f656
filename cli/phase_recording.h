// Converts samples of a rank's progress page to spans of its phases over whole steps, and to the
// time in each phase. Pure.
//
// The page holds when the current phase and step began, so a span is exact if the next phase was
// sampled, too. Phases are numbered within a step. So a phase that is shorter than the sampling
// interval is missed, and the gap is noticed. Its time counts as not attributed.
#pragma once

#include "common/base/ids.h"
#include "common/base/json.h"
#include "common/progress/page.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace nsa::cli {

struct PhaseSpan {
  uint64_t step = 0, micro_step = 0;
  progress::Phase phase = progress::Phase::kStartUp;
  int64_t begin_ns = 0, end_ns = 0; // CLOCK_MONOTONIC
};
struct StepSpan {
  uint64_t step = 0;
  int64_t begin_ns = 0, end_ns = 0;
};

// The phases of one rank.
struct PhaseTimes {
  uint64_t steps = 0;                    // number of whole steps
  int64_t begin_ns = 0, end_ns = 0;      // range of all these steps
  std::map<progress::Phase, int64_t> ns; // attributed to each phase
  std::vector<PhaseSpan> phases;         // in order, within begin and end
  std::vector<StepSpan> seen_steps;      // in order
  int64_t total_ns() const { return end_ns - begin_ns; }
  int64_t attributed_ns() const;
};

class PhaseRecording {
public:
  // Records that many whole steps, from the first step that begins after the first sample.
  explicit PhaseRecording(uint64_t steps) : steps_(steps) {}

  void add(const progress::HostRecord& record, int64_t now_ns);
  bool is_full() const;
  uint64_t whole_steps() const;
  // Empty until one whole step was seen.
  std::optional<PhaseTimes> times() const;

private:
  struct Seen {
    progress::HostRecord record;
    int64_t last_ns = 0; // time of the latest sample that showed it
  };
  bool follow_each_other(const Seen& a, const Seen& b, uint32_t last_number) const;

  uint64_t steps_;
  std::optional<uint64_t> waiting_in_; // the step that began before the first sample
  std::vector<Seen> seen_;             // begins with the first recorded step
};

// Returns a trace for chrome://tracing and Perfetto. Each rank is a process with a row for steps
// and one for phases. Times begin at 0.
nlohmann::json chrome_trace(const std::string& run, const std::map<Rank, PhaseTimes>& ranks);

} // namespace nsa::cli
