#include "daemon/supervision/rank_watch.h"

#include "daemon/proc/node_readings.h"
#include "daemon/proc/procfs.h"

#include <algorithm>

namespace nsa::control {

namespace {

std::optional<ProcessReading> read_here(int64_t pid) {
  const auto stat = proc::read_stat(static_cast<pid_t>(pid));
  if (!stat) return std::nullopt; // ended: its exit is on its way
  ProcessReading reading;
  reading.state = stat->state;
  reading.cpu_seconds = proc::ticks_to_seconds(stat->user_ticks + stat->system_ticks);
  reading.run_delay_seconds = proc::read_run_delay_seconds(pid);
  reading.tracer = proc::read_tracer(static_cast<pid_t>(pid));
  return reading;
}

} // namespace

RankWatch::RankWatch(int ranks, Rank first, ReadProcess read)
    : first_(first), read_(std::move(read)), places_(static_cast<size_t>(ranks)),
      samples_(static_cast<size_t>(ranks)) {
  for (size_t r = 0; r < samples_.size(); ++r)
    samples_[r].rank = first + static_cast<Rank>(r);
}

RankPlace* RankWatch::find(Rank rank) {
  const auto index = static_cast<size_t>(rank - first_);
  return rank >= first_ && index < places_.size() ? &places_[index] : nullptr;
}

void RankWatch::set_process(Rank rank, int64_t pid) {
  if (RankPlace* place = find(rank)) place->pid = pid;
}

void RankWatch::set_exited(Rank rank, bool exited) {
  if (RankPlace* place = find(rank)) place->exited = exited;
}

void RankWatch::read_process(size_t index) {
  state::RankSample& sample = samples_[index];
  const auto reading = read_ ? read_(sample.rank) : read_here(places_[index].pid);
  if (!reading) return;
  sample.process_state = reading->state;
  sample.cpu_seconds = reading->cpu_seconds;
  sample.run_delay_seconds = reading->run_delay_seconds;
  sample.tracer = reading->tracer;
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
  if (read_) return false; // of another node's processes nothing is waited for
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
      read_process(r);
    }
  }
  return samples_;
}

} // namespace nsa::control
