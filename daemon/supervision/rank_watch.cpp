#include "daemon/supervision/rank_watch.h"

#include "daemon/proc/node_readings.h"
#include "daemon/proc/procfs.h"

#include <algorithm>

namespace nsa::control {

std::optional<state::ProcessReading> read_process(int64_t pid) {
  const auto stat = proc::read_stat(static_cast<pid_t>(pid));
  if (!stat) return std::nullopt;
  return state::ProcessReading{stat->state, proc::read_tracer(static_cast<pid_t>(pid)),
                               proc::ticks_to_seconds(stat->user_ticks + stat->system_ticks),
                               proc::read_run_delay_seconds(pid)};
}

RankWatch::RankWatch(int ranks, Rank first, ReadProcess read)
    : first_(first), read_(std::move(read)), samples_(static_cast<size_t>(ranks)) {
  for (size_t r = 0; r < samples_.size(); ++r)
    samples_[r].rank = first + static_cast<Rank>(r);
}

state::RankSample* RankWatch::find(Rank rank) {
  const auto index = static_cast<size_t>(rank - first_);
  return rank >= first_ && index < samples_.size() ? &samples_[index] : nullptr;
}

void RankWatch::set_process(Rank rank, int64_t pid) {
  if (state::RankSample* sample = find(rank)) sample->pid = pid;
}

void RankWatch::set_exited(Rank rank, bool exited) {
  if (state::RankSample* sample = find(rank)) sample->exited = exited;
}

bool RankWatch::all_exited() const {
  return std::ranges::all_of(samples_, &state::RankSample::exited);
}

bool RankWatch::have_watermarks() const {
  return std::ranges::all_of(pages_, &progress::Page::has_watermarks);
}

bool RankWatch::any_uninterruptible() const {
  if (read_) return false; // nsad does not wait for another node's processes
  return std::ranges::any_of(samples_, [](const state::RankSample& sample) {
    const auto reading = read_process(sample.pid);
    return !sample.exited && sample.pid != 0 && reading && reading->state == 'D';
  });
}

void RankWatch::sample() {
  for (size_t r = 0; r < std::min(samples_.size(), pages_.size()); ++r) {
    state::RankSample& sample = samples_[r];
    const auto host = pages_[r].read_host();
    const auto device = pages_[r].read_device();
    if (host != sample.host || device != sample.device) {
      // Read after the host's record, so that it includes every collective that the record counts.
      if (!host || !sample.host || host->enqueued != sample.host->enqueued)
        sample.collectives = pages_[r].read_collectives();
      sample.host = host;
      sample.device = device;
      sample.moved_at = WallTime::now();
    } else if (!sample.exited && sample.pid != 0) {
      if (const auto reading = read_ ? read_(sample.rank) : read_process(sample.pid))
        sample.process = *reading;
    }
  }
}

} // namespace nsa::control
