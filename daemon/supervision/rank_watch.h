// Observes an attempt's ranks from outside: their progress pages, and /proc of ranks whose page
// does not change. While a rank moves, reading needs no system call. One thread.
#pragma once

#include "common/progress/page.h"
#include "daemon/state/rank_sample.h"

#include <functional>
#include <optional>
#include <vector>

namespace nsa::control {

std::optional<state::ProcessReading> read_process(int64_t pid); // nothing: it has ended
// Of ranks on another node; nothing: not told.
using ReadProcess = std::function<std::optional<state::ProcessReading>(Rank)>;

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
  void sample();
  const std::vector<state::RankSample>& samples() const { return samples_; } // as of then
  bool all_exited() const;
  // Waits in the kernel, where no signal reaches it.
  bool any_uninterruptible() const;

private:
  state::RankSample* find(Rank rank);

  Rank first_;
  ReadProcess read_;
  std::vector<progress::Page> pages_;
  std::vector<state::RankSample> samples_;
};

} // namespace nsa::control
