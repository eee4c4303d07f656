// Observes an attempt's ranks from outside: their progress pages, and /proc of ranks whose page
// does not change. While a rank moves, reading needs no system call. One thread.
#pragma once

#include "common/progress/page.h"
#include "daemon/run_loop/live_attempt.h"
#include "daemon/state/hang.h"

#include <functional>
#include <optional>
#include <vector>

namespace nsa::control {

// What /proc of a rank's own node says of it.
struct ProcessReading {
  char state = 'S'; // as in /proc/<pid>/stat
  int64_t tracer = 0;
  double cpu_seconds = 0, run_delay_seconds = 0;
};
// Of ranks on another node; nothing: not told.
using ReadProcess = std::function<std::optional<ProcessReading>(Rank)>;

class RankWatch {
public:
  // Ranks from `first` on. Without `read` their processes are on this node.
  explicit RankWatch(int ranks, Rank first = 0, ReadProcess read = {});
  void watch(std::vector<progress::Page> pages) { pages_ = std::move(pages); }
  bool watching() const { return !pages_.empty(); }
  bool have_watermarks() const; // false: some rank is of an older build
  // Of a rank that is not there: nothing happens.
  void set_process(Rank rank, int64_t pid);
  void set_exited(Rank rank, bool exited);

  // About ten times a second, for the hang detector.
  const std::vector<state::RankSample>& sample();
  const std::vector<state::RankSample>& samples() const { return samples_; } // as of then
  const std::vector<RankPlace>& places() const { return places_; }
  bool all_exited() const;
  // Waits in the kernel, where no signal reaches it.
  bool any_uninterruptible() const;

private:
  RankPlace* find(Rank rank);
  void read_process(size_t index);

  Rank first_;
  ReadProcess read_;
  std::vector<progress::Page> pages_;
  std::vector<RankPlace> places_;
  std::vector<state::RankSample> samples_;
};

} // namespace nsa::control
