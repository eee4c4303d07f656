// Observes an attempt's ranks from outside: their progress pages, and /proc for ranks whose page
// does not change. While a rank moves, reading needs no system call. One thread.
#pragma once

#include "common/progress/page.h"
#include "daemon/state/rank_sample.h"

#include <functional>
#include <optional>
#include <vector>

namespace nsa::control {

std::optional<state::ProcessReading> read_process(int64_t pid); // nullopt if the process has ended
// Reading of a rank on another node; nullopt if unknown.
using ReadProcess = std::function<std::optional<state::ProcessReading>(Rank)>;

class RankWatch {
public:
  // Watches ranks from `first` on. Without `read` their processes are on this node.
  explicit RankWatch(int ranks, Rank first = 0, ReadProcess read = {});
  void watch(std::vector<progress::Page> pages) { pages_ = std::move(pages); }
  bool watching() const { return !pages_.empty(); }
  bool have_watermarks() const; // false if some rank has an older build
  // Does nothing if the rank does not exist.
  void set_process(Rank rank, int64_t pid);
  void set_exited(Rank rank, bool exited);

  // Called about ten times a second, for the hang detector.
  void sample();
  // As of the last sample().
  const std::vector<state::RankSample>& samples() const { return samples_; }
  bool all_exited() const;
  // Whether a living rank waits in the kernel, where no signal reaches it.
  bool any_uninterruptible() const;

private:
  state::RankSample* find(Rank rank);

  Rank first_;
  ReadProcess read_;
  std::vector<progress::Page> pages_;
  std::vector<state::RankSample> samples_;
};

} // namespace nsa::control
