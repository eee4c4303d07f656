#include "daemon/supervision/rank_watch.h"

#include "daemon/proc/node_readings.h"
#include "daemon/proc/procfs.h"

#include <algorithm>

namespace nsa::control {

namespace {

void read_process(state::RankSample& sample, int64_t pid) {
  const auto stat = proc::read_stat(static_cast<pid_t>(pid));
  if (!stat) return; // ended: its exit is on its way
  sample.process_state = stat->state;
  sample.cpu_seconds = proc::ticks_to_seconds(stat->user_ticks + stat->system_ticks);
  sample.run_delay_seconds = proc::read_run_delay_seconds(pid);
  sample.tracer = proc::read_tracer(static_cast<pid_t>(pid));
}

} // namespace

RankWatch::RankWatch(int ranks)
    : places_(static_cast<size_t>(ranks)), samples_(static_cast<size_t>(ranks)) {
  for (size_t r = 0; r < samples_.size(); ++r)
    samples_[r].rank = static_cast<Rank>(r);
}

void RankWatch::set_process(Rank rank, int64_t pid) {
  if (static_cast<size_t>(rank) < places_.size()) places_[static_cast<size_t>(rank)].pid = pid;
}

void RankWatch::set_exited(Rank rank, bool exited) {
  if (static_cast<size_t>(rank) < places_.size())
    places_[static_cast<size_t>(rank)].exited = exited;
}

bool RankWatch::all_exited() const {
  return std::all_of(places_.begin(), places_.end(),
                     [](const RankPlace& place) { return place.exited; });
}

bool RankWatch::have_watermarks() const {
  return std::all_of(pages_.begin(), pages_.end(),
                     [](const progress::Page& page) { return page.has_watermarks(); });
}

bool RankWatch::any_uninterruptible() const {
  return std::any_of(places_.begin(), places_.end(), [](const RankPlace& place) {
    const auto stat = proc::read_stat(static_cast<pid_t>(place.pid));
    return !place.exited && place.pid != 0 && stat && stat->state == 'D';
  });
}

const std::vector<state::RankSample>& RankWatch::sample() {
  for (size_t r = 0; r < samples_.size(); ++r) {
    state::RankSample& sample = samples_[r];
    RankPlace& place = places_[r];
    sample.exited = place.exited;
    const auto host = r < pages_.size() ? pages_[r].read_host() : std::nullopt;
    const auto device = r < pages_.size() ? pages_[r].read_device() : progress::DeviceRecord{};
    const bool moved = host != place.host || device != place.device;
    if (moved) {
      // Behind the host's record: what that says is enqueued is there.
      if (r < pages_.size()) sample.collectives = pages_[r].read_collectives();
      place.host = sample.host = host;
      place.device = sample.device = device;
      place.last_progress = WallTime::now();
    } else if (!place.exited && place.pid != 0) {
      read_process(sample, place.pid);
    }
  }
  return samples_;
}

} // namespace nsa::control
