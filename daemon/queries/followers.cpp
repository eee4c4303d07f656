#include "daemon/queries/followers.h"

#include <utility>

namespace nsa::control {

namespace {

class Subscription final : public api::Subscription {
public:
  explicit Subscription(std::shared_ptr<Followers::Follower> follower)
      : follower_(std::move(follower)) {}

private:
  // The list of followers holds only weak references.
  std::shared_ptr<Followers::Follower> follower_;
};

} // namespace

std::unique_ptr<api::Subscription> Followers::add(const std::string& run,
                                                  std::function<void(const wire::FollowLine&)> line,
                                                  std::function<void(Follower&)> begin) {
  auto follower = std::make_shared<Follower>(Follower{run, std::move(line)});
  all_.push_back(follower);
  clock_.post([weak = std::weak_ptr<Follower>(follower), begin = std::move(begin)] {
    if (const auto f = weak.lock()) begin(*f);
  });
  return std::make_unique<Subscription>(std::move(follower));
}

void Followers::tell(const RunId& run, const wire::FollowLine& line) {
  std::erase_if(all_, [](const std::weak_ptr<Follower>& f) { return f.expired(); });
  const auto current = all_; // a line may end a follower and so change the list
  for (const std::weak_ptr<Follower>& weak : current)
    if (const auto f = weak.lock(); f && (f->run.empty() || f->run == run)) f->line(line);
}

void Followers::tell_event(const wire::EventView& event) {
  wire::FollowLine line;
  line.type = wire::LineType::kEvent;
  line.event = event;
  tell(event.run, line);
  if (event.kind == wire::EventKind::kEvaluation)
    line.type = wire::LineType::kEvaluation;
  else if (event.kind == wire::EventKind::kCheckpoint)
    line.type = wire::LineType::kCheckpoint;
  else
    return;
  line.data = event.detail;
  tell(event.run, line);
}

void Followers::tell_state(const wire::RunSummary& summary) {
  wire::FollowLine line;
  line.type = wire::LineType::kState;
  line.summary = summary;
  tell(summary.id, line);
}

void Followers::tell_step(const RunId& run, const wire::RankStep& step) {
  wire::FollowLine line;
  line.type = wire::LineType::kStep;
  line.data = step;
  tell(run, line);
}

std::set<RunId> Followers::followed() const {
  std::set<RunId> runs;
  for (const std::weak_ptr<Follower>& weak : all_)
    if (const auto f = weak.lock(); f && !f->run.empty()) runs.insert(f->run);
  return runs;
}

void Followers::tell_end(const wire::RunSummary& last) {
  wire::FollowLine line;
  line.type = wire::LineType::kEnd;
  line.summary = last;
  tell(last.id, line);
}

} // namespace nsa::control
