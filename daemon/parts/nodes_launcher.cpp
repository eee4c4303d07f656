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
  nlohmann::json first; // the shim of the first part, where that is on another node
  size_t waiting = 0;
  std::optional<Error> failed; // the first
};

// The parts that are not on this node.
std::vector<size_t> NodesLauncher::others_of(const Start& start) {
  std::vector<size_t> others;
  for (size_t number = 0; number < start.parts.size(); ++number)
    if (!start.parts[number].node.empty()) others.push_back(number);
  return others;
}

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
  if (!state::has_other_nodes(parts)) return here_.start(record, std::move(start), std::move(done));
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

// The node of rank 0 binds the port of its store, and says which it is.
void NodesLauncher::prepare_nodes(const std::shared_ptr<Start>& start) {
  if (start->parts.front().node.empty()) {
    auto listener = listen_tcp(0);
    if (!listener) return give_up(start, std::move(listener).error());
    const auto port = port_of(listener->get());
    if (!port) return give_up(start, port.error());
    start->listener = std::move(*listener);
    start->port = *port;
  }
  const wire::LaunchPlan& plan = start->start.plan;
  Preparation wanted{build_text(), plan.run_folder, plan.checkpoint_folder, start->data};
  const std::vector<size_t> others = others_of(*start);
  start->waiting = others.size();
  for (const size_t number : others) {
    wanted.binds_store = number == 0;
    nodes_.call(start->parts[number].node, CallKind::kPrepare, start->key, wanted,
                [this, start, number](const Result<nlohmann::json>& answer) {
                  if (!answer && !start->failed) start->failed = answer.error();
                  if (answer && number == 0)
                    start->port = integer_of<uint16_t>(*answer).value_or(0);
                  if (--start->waiting > 0) return;
                  if (start->failed) return give_up(start, *start->failed);
                  start_nodes(start);
                });
  }
}

// How a part's ranks reach the store. Each node knows by which name it reaches its head; a node
// that calls over loopback is on the head's machine.
std::string NodesLauncher::meeting_of(const Start& start, size_t number) const {
  const std::string port = ":" + std::to_string(start.port);
  if (number == 0) return "tcp:127.0.0.1" + port;
  const std::string& first = start.parts.front().node;
  if (first.empty()) return "tcp:HEAD" + port;
  const std::string address = options_.address_of ? options_.address_of(first) : "";
  const std::string host = address.substr(0, address.rfind(':'));
  const bool is_loopback = host.empty() || host.starts_with("127.") || host == "[::1]";
  return "tcp:" + (is_loopback ? "HEAD" : host) + port;
}

void NodesLauncher::start_nodes(const std::shared_ptr<Start>& start) {
  const std::vector<size_t> others = others_of(*start);
  start->waiting = others.size();
  for (const size_t number : others) {
    wire::LaunchPlan plan =
        plan_of_part(start->start.plan, start->parts, number, meeting_of(*start, number));
    plan.orphan_seconds = options_.orphan_seconds;
    plan.restart_daemon.clear();
    nodes_.call(start->parts[number].node, CallKind::kStart, start->key,
                {{"plan", plan}, {"spec", start->start.spec}},
                [this, start, number](const Result<nlohmann::json>& answer) {
                  if (!answer && !start->failed) start->failed = answer.error();
                  if (answer && number == 0) start->first = *answer;
                  if (--start->waiting > 0) return;
                  // Something may have begun: this attempt is over.
                  if (start->failed)
                    return give_up(start,
                                   {ErrorCode::kSystem, start->failed->what, start->failed->next});
                  start_here(start);
                });
  }
}

void NodesLauncher::start_here(const std::shared_ptr<Start>& start) {
  if (!start->parts.front().node.empty()) return tell_started(*start);
  privilege::AttemptStart mine = start->start;
  mine.plan = plan_of_part(start->start.plan, start->parts, 0, meeting_of(*start, 0));
  mine.options.store_listener = start->listener.get();
  here_.start(start->record, std::move(mine), [this, start](Result<shim::StartedShim> started) {
    start->listener.reset();
    if (!started) return give_up(start, std::move(started).error());
    start->done(std::move(started));
  });
}

// No part is on this node: the first part's shim stands for the attempt.
void NodesLauncher::tell_started(const Start& start) {
  auto identity = wire::body_as<ShimIdentity>(start.first);
  if (!identity) return start.done(fail(std::move(identity).error()));
  shim::StartedShim started;
  started.identity = {identity->boot_id, static_cast<pid_t>(identity->pid),
                      identity->start_time_ticks};
  start.done(std::move(started));
}

// What has been started on other nodes is ended; a node that cannot be asked ends it by itself.
void NodesLauncher::give_up(const std::shared_ptr<Start>& start, Error why) {
  start->listener.reset();
  for (const size_t number : others_of(*start))
    nodes_.call(start->parts[number].node, CallKind::kEnd, start->key, nullptr,
                [](const Result<nlohmann::json>&) {});
  start->done(fail(std::move(why)));
}

} // namespace nsa::parts
