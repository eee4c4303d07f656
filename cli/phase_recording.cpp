#include "cli/phase_recording.h"

#include <algorithm>
#include <limits>

namespace nsa::cli {

using progress::HostRecord;

int64_t PhaseTimes::attributed_ns() const {
  int64_t sum = 0;
  for (const auto& [phase, time] : ns)
    sum += time;
  return sum;
}

void PhaseRecording::add(const HostRecord& record, int64_t now_ns) {
  if (record.step == 0 || is_full()) return;
  if (seen_.empty()) {
    if (!waiting_in_) waiting_in_ = record.step;
    if (record.step == *waiting_in_) return;
  }
  const bool same = !seen_.empty() && seen_.back().record.position() == record.position();
  if (same)
    seen_.back().last_ns = now_ns;
  else
    seen_.push_back({record, now_ns});
}

uint64_t PhaseRecording::whole_steps() const {
  return seen_.empty() ? 0 : seen_.back().record.step - seen_.front().record.step;
}

bool PhaseRecording::is_full() const {
  return whole_steps() >= steps_;
}

// Returns whether no phase was missed between the two. The number of a step's last phase identifies
// it. That number is the same in all steps except those with an evaluation or a checkpoint.
bool PhaseRecording::follow_each_other(const Seen& a, const Seen& b, uint32_t last_number) const {
  if (a.record.step == b.record.step) return a.record.phase_number + 1 == b.record.phase_number;
  return a.record.step + 1 == b.record.step && a.record.phase_number >= last_number &&
         b.record.phase_number == 1;
}

namespace {

// Returns the number of the last phase of most steps. Other steps have an evaluation or a
// checkpoint, or their last phase was missed.
uint32_t most_common(const std::vector<StepSpan>& steps,
                     const std::map<uint64_t, uint32_t>& last_numbers) {
  std::map<uint32_t, size_t> counts;
  for (const StepSpan& step : steps)
    ++counts[last_numbers.at(step.step)];
  return std::max_element(counts.begin(), counts.end(),
                          [](const auto& a, const auto& b) {
                            return a.second != b.second ? a.second < b.second : a.first < b.first;
                          })
      ->first;
}

} // namespace

std::optional<PhaseTimes> PhaseRecording::times() const {
  if (whole_steps() == 0) return std::nullopt;
  PhaseTimes times;
  times.steps = whole_steps();
  times.begin_ns = seen_.front().record.step_start_ns;
  // Each step ends where the next one begins. The newest step has not ended.
  std::map<uint64_t, uint32_t> last_numbers;
  for (const Seen& seen : seen_) {
    last_numbers[seen.record.step] =
        std::max(last_numbers[seen.record.step], seen.record.phase_number);
    const bool begins =
        times.seen_steps.empty() || times.seen_steps.back().step != seen.record.step;
    if (!begins) continue;
    if (!times.seen_steps.empty()) times.seen_steps.back().end_ns = seen.record.step_start_ns;
    times.seen_steps.push_back({seen.record.step, seen.record.step_start_ns, 0});
  }
  times.end_ns = times.seen_steps.back().begin_ns;
  times.seen_steps.pop_back();
  const uint32_t last_number = most_common(times.seen_steps, last_numbers);
  for (size_t i = 0; i < seen_.size() && seen_[i].record.step < seen_.back().record.step; ++i) {
    const Seen& now = seen_[i];
    const Seen& next = seen_[i + 1]; // exists, because the loop ends before the newest step
    const int64_t end = follow_each_other(now, next, last_number)
                            ? next.record.phase_start_ns
                            : std::min(now.last_ns, next.record.phase_start_ns);
    const PhaseSpan span{now.record.step, now.record.micro_step, now.record.phase,
                         std::max(now.record.phase_start_ns, times.begin_ns),
                         std::min(end, times.end_ns)};
    if (span.end_ns <= span.begin_ns) continue;
    times.ns[span.phase] += span.end_ns - span.begin_ns;
    times.phases.push_back(span);
  }
  return times;
}

namespace {

double microseconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-3;
}

nlohmann::json named(const char* what, Rank rank, int thread, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", thread}, {"args", {{"name", name}}}};
}

} // namespace

nlohmann::json chrome_trace(const std::string& run, const std::map<Rank, PhaseTimes>& ranks) {
  int64_t zero = std::numeric_limits<int64_t>::max();
  for (const auto& [rank, times] : ranks)
    zero = std::min(zero, times.begin_ns);
  nlohmann::json events = nlohmann::json::array();
  constexpr int kSteps = 0, kPhases = 1;
  for (const auto& [rank, times] : ranks) {
    events.push_back(named("process_name", rank, kSteps, "rank " + std::to_string(rank)));
    events.push_back(named("thread_name", rank, kSteps, "steps"));
    events.push_back(named("thread_name", rank, kPhases, "phases"));
    for (const StepSpan& step : times.seen_steps)
      events.push_back({{"ph", "X"},
                        {"name", "step " + std::to_string(step.step)},
                        {"cat", "step"},
                        {"pid", rank},
                        {"tid", kSteps},
                        {"ts", microseconds(step.begin_ns - zero)},
                        {"dur", microseconds(step.end_ns - step.begin_ns)}});
    for (const PhaseSpan& span : times.phases)
      events.push_back({{"ph", "X"},
                        {"name", progress::phase_name(span.phase)},
                        {"cat", "phase"},
                        {"pid", rank},
                        {"tid", kPhases},
                        {"ts", microseconds(span.begin_ns - zero)},
                        {"dur", microseconds(span.end_ns - span.begin_ns)},
                        {"args", {{"step", span.step}, {"micro_step", span.micro_step}}}});
  }
  return {
      {"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}, {"otherData", {{"run", run}}}};
}

} // namespace nsa::cli
