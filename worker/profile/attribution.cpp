#include "worker/profile/attribution.h"

#include <algorithm>
#include <array>

namespace nsa::profile {

using ops::StepPart;

namespace {

// Sweeps from one begin or end of a span to the next and adds up times.
class Sweep {
public:
  Sweep(std::vector<PartSpan> spans, Idle idle) : spans_(std::move(spans)), idle_(idle) {}

  void run(Attribution& into) {
    into_ = &into;
    size_t next = 0;
    int64_t now = into.begin_ns;
    while (now < into.end_ns) {
      while (next < spans_.size() && spans_[next].begin_ns <= now) {
        begin(spans_[next]);
        ++next;
      }
      int64_t until = into.end_ns;
      if (next < spans_.size()) until = std::min(until, spans_[next].begin_ns);
      for (const PartSpan& span : running_)
        until = std::min(until, span.end_ns);
      if (running_.empty())
        pass_idle(next, now, until);
      else
        pass(now, until);
      now = until;
      std::erase_if(running_, [now](const PartSpan& span) { return span.end_ns <= now; });
    }
  }

private:
  void begin(const PartSpan& span) {
    if (span.end_ns <= into_->begin_ns) return;
    if (span.part) ++times_[static_cast<size_t>(*span.part)].spans;
    running_.push_back(span);
  }

  void pass(int64_t from, int64_t to) {
    const auto hides = [](const PartSpan& span) { return span.part == StepPart::kReduction; };
    const auto others = running_.size() -
                        static_cast<size_t>(std::count_if(running_.begin(), running_.end(), hides));
    const double each =
        static_cast<double>(to - from) / static_cast<double>(others > 0 ? others : running_.size());
    const PartSpan* shown = nullptr;
    for (const PartSpan& span : running_) {
      if (others > 0 && hides(span)) continue;
      if (shown == nullptr) shown = &span;
      if (span.part) times_[static_cast<size_t>(*span.part)].busy_ns += each;
    }
    show(from, to, shown->part);
  }

  void pass_idle(size_t next, int64_t from, int64_t to) {
    std::optional<StepPart> part;
    if (idle_ == Idle::kNextPart && next < spans_.size()) part = spans_[next].part;
    if (part) times_[static_cast<size_t>(*part)].idle_ns += static_cast<double>(to - from);
    show(from, to, part);
  }

  void show(int64_t from, int64_t to, std::optional<StepPart> part) {
    if (to <= from || !part) return;
    auto& timeline = into_->timeline;
    if (!timeline.empty() && timeline.back().end_ns == from && timeline.back().part == part)
      timeline.back().end_ns = to;
    else
      timeline.push_back({from, to, part});
  }

  std::vector<PartSpan> spans_;
  const Idle idle_;
  std::vector<PartSpan> running_;
  Attribution* into_ = nullptr;

public:
  std::array<PartTime, ops::kStepParts> times_{};
};

bool begins_before(const PartSpan& a, const PartSpan& b) {
  return a.begin_ns < b.begin_ns;
}

} // namespace

double Attribution::attributed_ns() const {
  double sum = 0;
  for (const PartTime& time : parts)
    sum += time.all_ns();
  return sum;
}

double Attribution::ratio() const {
  return end_ns > begin_ns ? attributed_ns() / static_cast<double>(end_ns - begin_ns) : 0;
}

Attribution attribute(std::vector<PartSpan> spans, int64_t begin_ns, int64_t end_ns, Idle idle) {
  std::stable_sort(spans.begin(), spans.end(), begins_before);
  Attribution result;
  result.begin_ns = begin_ns;
  result.end_ns = end_ns;
  Sweep sweep(std::move(spans), idle);
  sweep.run(result);
  for (size_t i = 0; i < ops::kStepParts; ++i) {
    PartTime& time = sweep.times_[i];
    time.part = static_cast<StepPart>(i);
    if (time.all_ns() > 0) result.parts.push_back(time);
  }
  std::stable_sort(result.parts.begin(), result.parts.end(),
                   [](const PartTime& a, const PartTime& b) { return a.all_ns() > b.all_ns(); });
  return result;
}

std::vector<PartSpan> innermost(std::vector<PartSpan> nested) {
  std::stable_sort(nested.begin(), nested.end(), begins_before);
  std::vector<PartSpan> out, open;
  int64_t from = 0;
  const auto emit = [&](int64_t to) {
    if (to > from) out.push_back({from, to, open.back().part});
    from = to;
  };
  const auto close_until = [&](int64_t now) {
    while (!open.empty() && open.back().end_ns <= now) {
      emit(open.back().end_ns);
      open.pop_back();
    }
  };
  for (const PartSpan& span : nested) {
    close_until(span.begin_ns);
    if (!open.empty()) emit(span.begin_ns);
    from = span.begin_ns;
    open.push_back(span);
  }
  close_until(INT64_MAX);
  return out;
}

} // namespace nsa::profile
