// Waits for work that nsad does in the background, and shows its progress. Such work is a copy of a
// data set or a measurement of the network. Use it on the command line's thread.
#pragma once

#include "cli/connect.h"
#include "cli/data_common.h"
#include "common/wire/node_view.h"

#include <string>
#include <thread>

namespace nsa::cli {

// Returns the work's last state once it no longer runs. `describe` turns a state into the text of
// the progress line.
template <class Work, class Describe>
Result<Work> await_work(client::Daemon& daemon, const std::string& target, Context& context,
                        Describe describe) {
  constexpr std::chrono::milliseconds kPace(200);
  ProgressLine line(context.io);
  const MonotonicTime began = MonotonicTime::now();
  for (;;) {
    NSA_TRY_ASSIGN(const auto answer, daemon.get(target));
    NSA_TRY_ASSIGN(Work work, client::read_as<Work>(answer));
    if (work.state != wire::WorkState::kRunning) {
      line.clear();
      return work;
    }
    if (!context.quiet && context.output != Output::kJson)
      line.show(to_seconds(MonotonicTime::now() - began), [&] { return describe(work); });
    std::this_thread::sleep_for(kPace);
  }
}

} // namespace nsa::cli
