#include "daemon/parts/nodes_launcher.h"

#include "common/base/tcp.h"
#include "common/dataset/mixture.h"
#include "common/spec/mixture.h"
#include "daemon/commands/host_launcher.h"

#include <algorithm>

namespace nsa::parts {

using control::AttemptKey;
using control::Done;

wire::LaunchPlan plan_of_part(const wire::LaunchPlan& whole, const std::vector<state::Part>& parts,
                              size_t number, const std::string& meeting) {
  const state::Part& part = parts[number];
  wire::LaunchPlan plan = whole;
  plan.rendezvous = meeting;
  plan.ranks.assign(whole.ranks.begin() + part.first_rank,
                    whole.ranks.begin() + part.first_rank + part.ranks);
  for (size_t i = 0; i < plan.ranks.size(); ++i) {
    wire::RankLaunch& rank = plan.ranks[i];
    rank.environment["LOCAL_RANK"] = std::to_string(i);
    rank.environment["LOCAL_WORLD_SIZE"] = std::to_string(part.ranks);
    rank.environment["GROUP_RANK"] = std::to_string(number);
    rank.environment["GROUP_WORLD_SIZE"] = std::to_string(parts.size());
    const auto at = std::ranges::find(rank.arguments, "--rendezvous");
    if (at != rank.arguments.end() && at + 1 != rank.arguments.end()) *(at + 1) = meeting;
  }
  return plan;
}

// One start, from the first question to the last answer.
struct NodesLauncher::Start {
  control::RunRecord record; // a copy: the run may be gone when an answer comes
  privilege::AttemptStart start;
  Done<shim::StartedShim> done;
  AttemptKey key;
  std::vector<state::Part> parts;
  UniqueFd listener; // of rank 0's store, until its shim has it
  std::vector<DataFolder> data;
  uint16_t port = 0;
  size_t waiting = 0;
  std::optional<Error> failed; // the first
};

Result<privilege::AttemptStart> NodesLauncher::prepare(const state::Run& run,
                                                       const control::RunRecord& record) {
  for (const state::Part& part : state::parts_of(run.slots, run.ranks))
    if (!part.node.empty() && !nodes_.is_ready(part.node))
      return fail(ErrorCode::kUnavailable, "waits for node " + part.node + ", which is not heard",
                  "nsactl node ls; it goes on when nsad runs there again");
  return here_.prepare(run, record);
}

void NodesLauncher::start(const control::RunRecord& record, privilege::AttemptStart start,
                          Done<shim::StartedShim> done) {
  auto parts = state::parts_of(start.plan.slots, static_cast<int>(start.plan.ranks.size()));
  if (parts.size() <= 1) return here_.start(record, std::move(start), std::move(done));
  const auto shared = std::make_shared<Start>();
  shared->record = record;
  shared->key = {start.plan.run_id, start.plan.attempt};
  shared->start = std::move(start);
  shared->done = std::move(done);
  shared->parts = std::move(parts);
  calls_.run(
      control::job_of(record.row, "the data set"),
      [data = record.spec.data,
       open = privilege::opener(options_.host, control::uid_of(record.row))] {
        return dataset::read_text(data, open);
      },
      [this, shared](const Result<dataset::RunText>& text) {
        if (!text) return give_up(shared, text.error());
        const auto sources = spec::sources_of(shared->record.spec.data);
        for (size_t i = 0; i < sources.size(); ++i)
          shared->data.push_back({sources[i].path, text->manifests[i].digest});
        prepare_nodes(shared);
      });
}

void NodesLauncher::prepare_nodes(const std::shared_ptr<Start>& start) {
  auto listener = listen_tcp(0);
  if (!listener) return give_up(start, std::move(listener).error());
  const auto port = port_of(listener->get());
  if (!port) return give_up(start, port.error());
  start->listener = std::move(*listener);
  start->port = *port;
  const wire::LaunchPlan& plan = start->start.plan;
  const Preparation wanted{build_text(), plan.run_folder, plan.checkpoint_folder, start->data};
  start->waiting = start->parts.size() - 1;
  for (size_t number = 1; number < start->parts.size(); ++number)
    nodes_.call(start->parts[number].node, CallKind::kPrepare, start->key, wanted,
                [this, start](const Result<nlohmann::json>& answer) {
                  if (!answer && !start->failed) start->failed = answer.error();
                  if (--start->waiting > 0) return;
                  if (start->failed) return give_up(start, *start->failed);
                  start_nodes(start);
                });
}

void NodesLauncher::start_nodes(const std::shared_ptr<Start>& start) {
  start->waiting = start->parts.size() - 1;
  for (size_t number = 1; number < start->parts.size(); ++number) {
    // Each node knows by which name it reaches its head.
    wire::LaunchPlan plan = plan_of_part(start->start.plan, start->parts, number,
                                         "tcp:HEAD:" + std::to_string(start->port));
    plan.orphan_seconds = options_.orphan_seconds;
    plan.restart_daemon.clear();
    nodes_.call(start->parts[number].node, CallKind::kStart, start->key,
                {{"plan", plan}, {"spec", start->start.spec}},
                [this, start](const Result<nlohmann::json>& answer) {
                  if (!answer && !start->failed) start->failed = answer.error();
                  if (--start->waiting > 0) return;
                  if (start->failed) return give_up(start, *start->failed);
                  start_here(start);
                });
  }
}

void NodesLauncher::start_here(const std::shared_ptr<Start>& start) {
  privilege::AttemptStart mine = start->start;
  mine.plan = plan_of_part(start->start.plan, start->parts, 0,
                           "tcp:127.0.0.1:" + std::to_string(start->port));
  mine.options.store_listener = start->listener.get();
  here_.start(start->record, std::move(mine), [this, start](Result<shim::StartedShim> started) {
    start->listener.reset();
    if (!started) return give_up(start, std::move(started).error());
    start->done(std::move(started));
  });
}

// What has been started on other nodes is ended; a node that cannot be asked ends it by itself.
void NodesLauncher::give_up(const std::shared_ptr<Start>& start, Error why) {
  start->listener.reset();
  for (size_t number = 1; number < start->parts.size(); ++number)
    nodes_.call(start->parts[number].node, CallKind::kEnd, start->key, nullptr,
                [](const Result<nlohmann::json>&) {});
  start->done(fail(std::move(why)));
}

} // namespace nsa::parts
