// The followers of live runs and the lines that each one gets. A follower exists as long as its
// subscription. All calls are on the loop's thread.
#pragma once

#include "common/wire/messages.h"
#include "daemon/api/service.h"
#include "daemon/run_loop/clock.h"

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace nsa::control {

class Followers {
public:
  struct Follower {
    std::string run; // empty: all runs
    std::function<void(const wire::FollowLine&)> line;
  };

  explicit Followers(Clock& clock) : clock_(clock) {}
  // Calls `begin` once the caller has its subscription. Lines follow after that.
  std::unique_ptr<api::Subscription> add(const std::string& run,
                                         std::function<void(const wire::FollowLine&)> line,
                                         std::function<void(Follower&)> begin);
  void tell_event(const wire::EventView& event);
  void tell_state(const wire::RunSummary& summary);
  void tell_step(const RunId& run, const wire::RankStep& step);
  void tell_end(const wire::RunSummary& last);
  // Runs that have a follower of their own.
  std::set<RunId> followed() const;

private:
  void tell(const RunId& run, const wire::FollowLine& line);

  Clock& clock_;
  std::vector<std::weak_ptr<Follower>> all_;
};

} // namespace nsa::control
