#pragma once
// The common part of both families' builders: consecutive nodes and the fork of the side stream.
// One builder a schedule, one thread.

#include <utility>

#include "nsa_model/kernels/fused/schedule.h"

namespace nsa::kernels {

inline Use reads(Buffer buffer, Range range = {}) {
  return {buffer, Access::kRead, range};
}
inline Use writes(Buffer buffer, Range range = {}) {
  return {buffer, Access::kWrite, range};
}
inline Use adds(Buffer buffer, Range range = {}) {
  return {buffer, Access::kAdd, range};
}
inline std::vector<Use> partial_outputs(const SelectedPlan& plan, Access access) {
  if (plan.packed) return {{Buffer::kPackedOut, access, {}}};
  return {{Buffer::kPartialOut, access, {}}, {Buffer::kPartialLse, access, {}}};
}

class ScheduleBuilder {
public:
  ScheduleBuilder(const AttentionCall& call, Pass pass) : schedule_(call, pass) {
    schedule_.nodes.reserve(32);
  }
  const SelectedPlan& plan() const { return schedule_.plan; }

  int add(Node node) {
    for (const Wait& wait : node.waits)
      if (wait.until == Until::kLaunched) at(wait.on).tells_launch = true;
    int& last = last_[static_cast<int>(node.stream)];
    last = static_cast<int>(schedule_.nodes.size());
    schedule_.nodes.push_back(std::move(node));
    return last;
  }
  // The side stream continues after the work on the main stream. It is forked once, because
  // everything that the side's later kernels read was written before.
  void fork() {
    if (last(Stream::kSide) != kCallersWork) return;
    add({.stream = Stream::kSide, .waits = {{last(Stream::kMain)}}});
  }
  // Returns the waits of the main stream's node that joins both streams.
  std::vector<Wait> join() const {
    const int side = last(Stream::kSide);
    return side == kCallersWork ? std::vector<Wait>{} : std::vector<Wait>{{side}};
  }
  void begin_lists() { schedule_.lists_begin = static_cast<int>(schedule_.nodes.size()); }
  Schedule finish() && {
    if (schedule_.lists_begin == 0) begin_lists();
    return std::move(schedule_);
  }

private:
  Node& at(int node) { return schedule_.nodes[static_cast<std::size_t>(node)]; }
  int last(Stream stream) const { return last_[static_cast<int>(stream)]; }

  Schedule schedule_;
  int last_[2] = {kCallersWork, kCallersWork};
};

} // namespace nsa::kernels
