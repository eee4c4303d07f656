#include "daemon/parts/nodes_launcher.h"

#include "common/base/tcp.h"
#include "common/base/text.h"
#include "common/dataset/mixture.h"
#include "common/manifest/manifest.h"
#include "common/spec/mixture.h"
#include "common/spec/origin.h"
#include "common/spec/toggles.h"
#include "daemon/commands/host_launcher.h"
#include "daemon/parts/lent_gpus.h"
#include "daemon/parts/meeting.h"
#include "daemon/plan/plan.h"

#include <algorithm>
#include <filesystem>
#include <set>

namespace nsa::parts {

using control::AttemptKey;
using control::Done;

std::string fetched_text(const std::string& node, const transfer::Received& received) {
  std::string text = "node " + node + " has the checkpoint, " + format_bytes(received.bytes);
  if (received.fetched == 0) return text + ": it was there already";
  text += ": " + format_bytes(received.fetched) + " came in " + format_duration(received.seconds);
  if (received.damaged > 0)
    text +=
        "; damaged, so fetched once more: " + std::to_string(received.damaged) + " of its files";
  return text;
}

std::string fetching_text(const std::string& node, const std::string& name, uint64_t here,
                          uint64_t total) {
  const uint64_t percent = total == 0 ? 100 : here * 100 / total;
  return "node " + node + " fetches " + name + ": " + std::to_string(percent) + " % of " +
         format_bytes(total);
}

wire::LaunchPlan plan_of_part(const wire::LaunchPlan& whole, const std::vector<state::Part>& parts,
                              size_t number, const std::string& meeting) {
  const state::Part& part = parts[number];
  wire::LaunchPlan plan = whole;
  plan.rendezvous = meeting;
  plan.ranks.assign(whole.ranks.begin() + part.first_rank,
                    whole.ranks.begin() + part.first_rank + part.ranks);
  std::vector<std::string> gpus;
  for (int i = 0; i < part.ranks; ++i) {
    const std::string& slot = whole.slots.at(static_cast<size_t>(part.first_rank + i));
    gpus.push_back(part.node.empty() ? slot : slot.substr(part.node.size() + 1));
  }
  for (size_t i = 0; i < plan.ranks.size(); ++i) {
    wire::RankLaunch& rank = plan.ranks[i];
    std::string& visible = rank.environment[std::string(plan::kVisibleDevices)];
    if (!visible.empty()) visible = join(gpus, ",");
    rank.environment["LOCAL_RANK"] = std::to_string(i);
    rank.environment["LOCAL_WORLD_SIZE"] = std::to_string(part.ranks);
    rank.environment["GROUP_RANK"] = std::to_string(number);
    rank.environment["GROUP_WORLD_SIZE"] = std::to_string(parts.size());
    const auto at = std::ranges::find(rank.arguments, "--rendezvous");
    if (at != rank.arguments.end() && at + 1 != rank.arguments.end()) *(at + 1) = meeting;
  }
  return plan;
}

void leave_out_node_variables(wire::LaunchPlan& plan, const spec::RunSpec& spec) {
  const auto toggles = spec::resolve_toggles(spec::requested_toggles(spec));
  const auto asked_for =
      toggles ? spec::toggle_environment(*toggles) : std::map<std::string, std::string>();
  for (wire::RankLaunch& rank : plan.ranks)
    for (const std::string_view name : plan::kNodeVariables)
      if (asked_for.count(std::string(name)) == 0) rank.environment.erase(std::string(name));
}

namespace {

// Facts and files from the head's disk that a node needs: digests of the data sets, and files to
// fetch if it does not see the run's folder.
struct Ground {
  std::vector<DataFolder> data;
  std::vector<FolderOffer> folders; // offer numbers are assigned later, one for each node
  std::map<std::string, std::string> texts;
};

// The files of a checkpoint as its manifest lists them, and the manifest itself.
Result<std::vector<transfer::File>> files_of(const std::string& folder, bool with_optimizer) {
  NSA_TRY_ASSIGN(manifest::Manifest checkpoint, manifest::read(folder));
  if (!with_optimizer) checkpoint = manifest::weights_alone(std::move(checkpoint));
  std::vector<transfer::File> files;
  for (const manifest::File& file : checkpoint.files)
    files.push_back({file.name, file.bytes, file.checksum});
  NSA_TRY_ASSIGN(transfer::File own,
                 transfer::describe(std::filesystem::path(folder) / manifest::kManifestName));
  files.push_back(std::move(own));
  return files;
}

Result<Ground> look_for_ground(const spec::RunSpec& spec, const wire::LaunchPlan& plan,
                               const FileOpener& open) {
  Ground ground;
  NSA_TRY_ASSIGN(const dataset::RunText text, dataset::read_text(spec.data, open));
  const auto sources = spec::sources_of(spec.data);
  for (size_t i = 0; i < sources.size(); ++i)
    ground.data.push_back({sources[i].path, text.manifests[i].digest});
  const std::filesystem::path run(plan.run_folder);
  if (!plan.checkpoint_folder.empty()) {
    NSA_TRY_ASSIGN(auto files, files_of(plan.checkpoint_folder, true));
    const std::string name = std::filesystem::path(plan.checkpoint_folder).filename().string();
    ground.folders.push_back({0, "checkpoints/" + name, std::move(files)});
  } else if (!spec.origin.checkpoint.empty()) {
    NSA_TRY_ASSIGN(auto files, files_of(run / spec::kOriginFolder, spec.origin.optimizer));
    ground.folders.push_back({0, spec::kOriginFolder, std::move(files)});
  }
  constexpr size_t kMostText = size_t{256} << 10; // two such texts fit into a frame
  for (const char* name : {"run.toml", wire::kPassedEnvironmentName}) {
    auto small = read_file(run / name, kMostText, open);
    if (small) ground.texts[name] = std::move(*small);
    if (!small && small.error().code != ErrorCode::kNotFound)
      return fail(std::move(small).error().within("a file that other nodes need"));
  }
  return ground;
}

} // namespace

// One start, from the first request to the last answer.
struct NodesLauncher::Start {
  control::RunRecord record; // a copy, because the run may be gone when an answer comes
  privilege::AttemptStart start;
  Done<shim::StartedShim> done;
  AttemptKey key;
  std::vector<state::Part> parts;
  UniqueFd listener; // listening socket of rank 0's store, until its shim has it
  Ground ground;
  std::vector<uint64_t> offers;   // open offers
  std::set<size_t> private_parts; // parts on nodes that do not see the run's folder
  uint16_t port = 0;
  nlohmann::json first; // identity of the first part's shim, if that part is on another node
  size_t waiting = 0;
  std::optional<Error> failed; // the first failure
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
  for (const state::Part& part : state::parts_of(run.attempt.slots, run.ranks))
    if (!part.node.empty() && !nodes_.is_ready(part.node))
      return fail(ErrorCode::kUnavailable, "waits for node " + part.node + ", which is not heard",
                  "nsactl node ls; the run continues when nsad runs there again");
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
      [spec = record.spec, plan = shared->start.plan,
       open = privilege::opener(options_.host, control::uid_of(record.row))] {
        return look_for_ground(spec, plan, open);
      },
      [this, shared](Result<Ground> ground) {
        if (!ground) return give_up(shared, std::move(ground).error());
        shared->ground = std::move(*ground);
        prepare_nodes(shared);
      });
}

// Asks all nodes whether they can take part. The node of rank 0 binds the port of its store and
// reports it.
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
  Preparation wanted{build_text(), plan.run_folder, plan.checkpoint_folder, start->ground.data};
  wanted.texts = start->ground.texts;
  if (options_.open_runs) wanted.open_runs = options_.open_runs();
  const std::vector<size_t> others = others_of(*start);
  start->waiting = others.size();
  for (const size_t number : others) {
    wanted.binds_store = number == 0;
    wanted.gpus = gpus_of(plan_of_part(plan, start->parts, number, ""));
    offer_folders(start, start->parts[number].node, wanted);
    nodes_.call(start->parts[number].node, CallKind::kPrepare, start->key, wanted,
                [this, start, number](const Result<nlohmann::json>& answer) {
                  on_prepared(start, number, answer);
                });
  }
}

void NodesLauncher::offer_folders(const std::shared_ptr<Start>& start, const std::string& node,
                                  Preparation& wanted) {
  wanted.offers = start->ground.folders;
  if (options_.offers == nullptr) return;
  for (FolderOffer& offer : wanted.offers) {
    OfferedFolder folder;
    folder.node = node;
    folder.folder = start->start.plan.run_folder + "/" + offer.name;
    folder.files = offer.files;
    folder.open = privilege::opener(options_.host, control::uid_of(start->record.row));
    folder.is_wanted = [this, key = start->key] {
      return !options_.is_wanted || options_.is_wanted(key);
    };
    folder.progress = [this, run = start->key.run, node, name = offer.name](uint64_t here,
                                                                            uint64_t total) {
      if (options_.waits) options_.waits(run, fetching_text(node, name, here, total));
    };
    offer.offer = options_.offers->add(std::move(folder));
    start->offers.push_back(offer.offer);
  }
}

void NodesLauncher::withdraw(Start& start) {
  for (const uint64_t offer : start.offers)
    options_.offers->remove(offer);
  start.offers.clear();
}

void NodesLauncher::on_prepared(const std::shared_ptr<Start>& start, size_t number,
                                const Result<nlohmann::json>& answer) {
  Result<Prepared> prepared =
      answer ? wire::body_as<Prepared>(*answer) : Result<Prepared>(fail(answer.error()));
  if (!prepared && !start->failed) start->failed = prepared.error();
  if (prepared && number == 0) start->port = prepared->port;
  if (prepared && prepared->is_private) {
    start->private_parts.insert(number);
    if (options_.fetched && !start->offers.empty())
      options_.fetched(start->key, start->parts[number].node, prepared->received);
  }
  if (--start->waiting > 0) return;
  withdraw(*start);
  if (options_.waits) options_.waits(start->key.run, "");
  if (start->failed) return give_up(start, *start->failed);
  start_nodes(start);
}

std::string NodesLauncher::meeting_of(const Start& start, size_t number) const {
  if (number == 0) return meeting_at_home(start.port);
  const std::string& first = start.parts.front().node;
  return meeting_elsewhere(first.empty() || !options_.address_of ? "" : options_.address_of(first),
                           start.port);
}

void NodesLauncher::start_nodes(const std::shared_ptr<Start>& start) {
  const std::vector<size_t> others = others_of(*start);
  start->waiting = others.size();
  for (const size_t number : others) {
    wire::LaunchPlan plan =
        plan_of_part(start->start.plan, start->parts, number, meeting_of(*start, number));
    leave_out_node_variables(plan, start->record.spec);
    plan.orphan_seconds = options_.orphan_seconds;
    plan.restart_daemon.clear();
    nodes_.call(start->parts[number].node, CallKind::kStart, start->key,
                {{"plan", plan},
                 {"spec", start->start.spec},
                 {"private", start->private_parts.count(number) != 0}},
                [this, start, number](const Result<nlohmann::json>& answer) {
                  if (!answer && !start->failed) start->failed = answer.error();
                  if (answer && number == 0) start->first = *answer;
                  if (--start->waiting > 0) return;
                  // Something may have been started, so this attempt has ended.
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

// No part is on this node, so the first part's shim represents the attempt.
void NodesLauncher::tell_started(const Start& start) {
  auto identity = wire::body_as<ShimIdentity>(start.first);
  if (!identity) return start.done(fail(std::move(identity).error()));
  shim::StartedShim started;
  started.identity = {identity->boot_id, static_cast<pid_t>(identity->pid),
                      identity->start_time_ticks};
  start.done(std::move(started));
}

// Ends what was started on other nodes. A node that cannot be asked ends it by itself.
void NodesLauncher::give_up(const std::shared_ptr<Start>& start, Error why) {
  start->listener.reset();
  withdraw(*start);
  for (const size_t number : others_of(*start))
    nodes_.call(start->parts[number].node, CallKind::kEnd, start->key, nullptr,
                [](const Result<nlohmann::json>&) {});
  start->done(fail(std::move(why)));
}

} // namespace nsa::parts
