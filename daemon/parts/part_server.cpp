#include "daemon/parts/part_server.h"

#include "common/base/log.h"
#include "common/base/pass_descriptors.h"
#include "common/base/tcp.h"
#include "common/dataset/manifest.h"
#include "common/manifest/manifest.h"
#include "daemon/parts/meeting.h"
#include "daemon/parts/network_fault.h"
#include "daemon/parts/private_run.h"
#include "daemon/parts/probe_end.h"
#include "daemon/parts/pushed_data.h"
#include "daemon/plan/plan.h"
#include "daemon/supervision/live_shims.h"
#include "daemon/supervision/rank_watch.h"

#include <algorithm>
#include <csignal>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace nsa::parts {

namespace {

// The same pace as JointAttempt::observe at the head.
constexpr Duration kProgressInterval = std::chrono::milliseconds(200);
constexpr net::OffloadLimits kCalls{4, 4, 8, 1000, Duration::zero()};
constexpr net::OffloadLimits kOneAtATime{1, 1, 8, 1000, Duration::zero()};

// When this returns, nothing of the shim's attempt runs any more. Blocking.
void end_part(const std::string& folder, const control::LiveShim* shim) {
  if (shim != nullptr)
    if (const auto pidfd = proc::open_identified(shim->identity)) {
      (void)proc::send_signal(pidfd->get(), SIGKILL);
      constexpr int kLimit = 5000; // milliseconds
      pollfd ended{pidfd->get(), POLLIN, 0};
      (void)::poll(&ended, 1, kLimit);
    }
  // Rounds of 20 ms. The limit is for a rank in an uninterruptible sleep.
  constexpr int kRounds = 100;
  for (int i = 0; i < kRounds; ++i) {
    const auto left = shim::end_leftovers(folder);
    if (!left || *left == 0) return;
    ::usleep(20'000);
  }
}

// Ends the parts of the run before `attempt`. A newer attempt is left alone and its number
// returned: this nsad may be starting it now.
AttemptNumber end_older_parts(const std::string& state, const RunId& run, AttemptNumber attempt) {
  const std::vector<control::LiveShim> shims = control::find_live_shims(state);
  for (const control::LiveShim& shim : shims)
    if (shim.run == run && shim.attempt > attempt) return shim.attempt;
  for (const control::LiveShim& shim : shims)
    if (shim.run == run && shim.attempt < attempt) end_part(shim.folder, &shim);
  return 0;
}

struct Looked {            // findings before a part is started
  AttemptNumber newer = 0; // a newer attempt that is here
  gpu::Gpus gpus;
  bool sees_run_folder = false;
};

// Whether a part of this run can be started here, apart from its folder.
Status check(const Preparation& wanted, const std::string& worker) {
  if (wanted.build != build_text())
    return fail(ErrorCode::kConflict, "it has build " + build_text() + ", the head " + wanted.build,
                "install one build on all nodes");
  if (::access(worker.c_str(), X_OK) != 0)
    return fail(ErrorCode::kNotFound, "the trainer " + worker + " is not there",
                "build nsa-worker, or name it in nsad.toml (programs.worker)");
  for (const auto& [path, digest] : wanted.data) {
    const auto data = dataset::read_manifest(path);
    if (!data) return fail(Error(data.error()).within("the data set"));
    if (data->digest != digest)
      return fail(ErrorCode::kConflict,
                  "the data set in " + path + " is another one than on the head",
                  "copy the head's data set there: nsactl data push NODE " + path);
  }
  return {};
}

} // namespace

PartServer::PartServer(net::EventLoop& loop, Options options)
    : loop_(loop), options_(std::move(options)), calls_(loop, kCalls), fetching_(loop, kOneAtATime),
      fetching_data_(loop, kOneAtATime),
      fetches_(loop, [this](const wire::Frame& frame) { return options_.send(frame); }),
      host_(std::make_shared<privilege::DirectHost>()),
      gpus_(loop, {options_.config.resources, options_.state_folder,
                   [this](const wire::Frame& frame) { return options_.send(frame); }}) {
  for (const control::LiveShim& shim : control::find_live_shims(options_.state_folder))
    if (auto pidfd = proc::open_identified(shim.identity))
      watch({shim.run, shim.attempt}, std::move(*pidfd));
  progress_timer_ = loop_.every(kProgressInterval, [this] { tell_progress(); });
}

void PartServer::look_at_gpus(const control::GpuWatch::ListGpus& list,
                              std::function<void(const std::vector<std::string>& names)> listed) {
  gpus_.start(list, std::move(listed));
  for (const auto& [key, part] : parts_)
    if (const auto plan = shim::read_launch_plan(folder_of(key)))
      gpus_.take_back(key.first, gpus_of(*plan));
}

AttemptNumber PartServer::newer_than(const PartRef& part) const {
  AttemptNumber newest = part.attempt;
  for (const auto& [key, held] : parts_)
    if (key.first == part.run) newest = std::max(newest, key.second);
  return newest > part.attempt ? newest : 0;
}

void PartServer::refuse_older(const Call& call, AttemptNumber newer) {
  log::warning("parts", "the head asks for an attempt behind which a newer one is here",
               {{"run", call.part.run},
                {"attempt", std::to_string(call.part.attempt)},
                {"newer", std::to_string(newer)}});
  answer(call.id,
         fail(ErrorCode::kConflict,
              "it has ranks of attempt " + std::to_string(newer) + " of run " + call.part.run +
                  ", which is newer than attempt " + std::to_string(call.part.attempt)),
         newer);
}

// Releases the GPUs once no part of the run is here or about to start.
void PartServer::release_gpus(const RunId& run) {
  const bool is_here =
      std::ranges::any_of(parts_, [&](const auto& entry) { return entry.first.first == run; });
  if (!is_here && leases_.count(run) == 0) gpus_.release(run);
}

std::string PartServer::folder_of(const Key& part) const {
  return plan::attempt_folder(options_.state_folder + "/runs/" + part.first, part.second);
}

void PartServer::on_ready() {
  Held held;
  for (const auto& [key, part] : parts_)
    held.parts.push_back({key.first, key.second});
  (void)options_.send(frame_of(Message::kHeld, held));
  gpus_.tell();
}

void PartServer::on_cut() {
  ++cuts_;
  streams_.clear(); // shims keep what the head has not acknowledged
  fetches_.on_cut();
  stores_.erase(RunId()); // the measurement has failed, so its store is not needed
  for (const RunId& run : std::exchange(leases_, {}))
    release_gpus(run);
}

// ---- calls ------------------------------------------------------------------------------------

void PartServer::take(const wire::Frame& frame) {
  switch (static_cast<Message>(frame.type)) {
  case Message::kCall: {
    const auto call = cluster::read_frame<Call>(frame);
    if (!call)
      return log::warning("parts", "the head's call is not understood",
                          {{"why", call.error().what}});
    const bool of_probe = call->what == CallKind::kBind || call->what == CallKind::kProbe;
    if (!of_probe && (!is_run_id(call->part.run) || call->part.attempt < 1))
      return answer(call->id, fail(ErrorCode::kInvalidArgument, "that is no attempt of a run"));
    return take_call(*call);
  }
  case Message::kBytes:
  case Message::kClosed: {
    const auto read = read_stream_frame(frame);
    if (!read) return;
    if (frame.type == static_cast<uint8_t>(Message::kClosed)) return close(read->stream, false);
    return take_bytes(read->stream, read->bytes);
  }
  case Message::kPiece:
  case Message::kNoPiece:
    return fetches_.take(frame);
  case Message::kPush: {
    const auto push = cluster::read_frame<Push>(frame);
    if (push) return fetch_data(*push);
    return log::warning("parts", "the head's call is not understood", {{"why", push.error().what}});
  }
  default:
    return;
  }
}

void PartServer::answer(uint64_t id, Result<nlohmann::json> result, AttemptNumber newer) {
  Answer answer;
  answer.id = id;
  answer.newer = newer;
  answer.ok = result.has_value();
  if (result) {
    answer.body = std::move(*result);
  } else {
    answer.code = static_cast<int>(result.error().code);
    answer.what = result.error().what;
    answer.next = result.error().next;
  }
  // If the link is cut, the head asks again.
  (void)options_.send(frame_of(Message::kAnswer, answer));
}

template <class Work> void PartServer::run(uint64_t id, const char* what, Work work) {
  calls_.run({"", what}, std::move(work),
             [this, id](Result<nlohmann::json> result) { answer(id, std::move(result)); });
}

void PartServer::take_call(const Call& call) {
  const Key key{call.part.run, call.part.attempt};
  const std::string folder = folder_of(key), state = options_.state_folder;
  if (leaving_ && (call.what == CallKind::kPrepare || call.what == CallKind::kStart))
    return answer(call.id, fail(ErrorCode::kUnavailable, "its job ends"));
  if (const AttemptNumber newer = newer_than(call.part);
      newer > 0 && (call.what == CallKind::kPrepare || call.what == CallKind::kStart))
    return refuse_older(call, newer);
  switch (call.what) {
  case CallKind::kPrepare: {
    const auto wanted = wire::body_as<Preparation>(call.body);
    if (!wanted) return answer(call.id, fail(wanted.error()));
    return prepare(call, *wanted);
  }
  case CallKind::kStart:
    return start(call);
  case CallKind::kOpen:
    return open(call);
  case CallKind::kLeftovers:
    return run(call.id, "what a shim left behind", [folder]() -> Result<nlohmann::json> {
      NSA_TRY_ASSIGN(const int left, shim::end_leftovers(folder));
      return nlohmann::json(left);
    });
  case CallKind::kExits:
    return run(call.id, "the ends of ranks",
               [folder, ranks = call.body.value("ranks", 0)]() -> Result<nlohmann::json> {
                 auto exits = nlohmann::json::array();
                 for (Rank rank = 0; rank < std::min(ranks, 4096); ++rank)
                   if (const auto exited = shim::read_exit(folder, rank)) exits.push_back(*exited);
                 return exits;
               });
  case CallKind::kEnd:
    stores_.erase(key.first);
    leases_.erase(key.first);
    release_gpus(key.first);
    return run(call.id, "the end of a part", [folder, state, key]() -> Result<nlohmann::json> {
      for (const control::LiveShim& shim : control::find_live_shims(state))
        if (shim.run == key.first && shim.attempt == key.second) end_part(folder, &shim);
      return nlohmann::json(true);
    });
  case CallKind::kBind:
    return answer(call.id, bind_store({}));
  case CallKind::kProbe:
    return probe(call);
  case CallKind::kLinks:
    return run(call.id, "the connections of ranks", [folder]() -> Result<nlohmann::json> {
      NSA_TRY_ASSIGN(const shim::StartedAttempt started, shim::read_started(folder));
      return nlohmann::json(read_links(started.ranks));
    });
  }
}

void PartServer::probe(const Call& call) {
  auto order = wire::body_as<ProbeOrder>(call.body);
  if (!order) return answer(call.id, fail(order.error()));
  order->meeting = with_name_of_head(order->meeting, options_.head);
  const auto store = std::make_shared<UniqueFd>();
  if (order->rank == 0) *store = std::move(stores_[{}]);
  if (order->gpu.empty()) return run_probe(call.id, *order, store);
  calls_.run(
      {"", "the GPUs"}, [] { return gpu::list_gpus(); },
      [this, id = call.id, order = *order, store](Result<gpu::Gpus> seen) {
        if (!seen) return answer(id, fail(std::move(seen).error()));
        if (auto leased = gpus_.lease(kProbeLease, {order.gpu}, std::move(*seen)); !leased)
          return answer(id, fail(std::move(leased).error()));
        run_probe(id, order, store);
      });
}

void PartServer::run_probe(uint64_t id, const ProbeOrder& order,
                           const std::shared_ptr<UniqueFd>& store) {
  calls_.run(
      {"", "a probe of the network"},
      [order, store, worker = worker()] { return run_probe_end(worker, order, *store); },
      [this, id](const Result<wire::NetworkFigures>& figures) {
        gpus_.release(kProbeLease);
        answer(id, figures ? Result<nlohmann::json>(*figures) : fail(figures.error()));
      });
}

std::string PartServer::worker() const {
  const std::string& named = options_.config.programs.worker;
  return named.empty() ? options_.program_folder + "/nsa-worker" : named;
}

void PartServer::prepare(const Call& call, const Preparation& wanted) {
  calls_.run(
      {"", "a preparation"},
      [wanted, worker = worker(), state = options_.state_folder, run = call.part.run,
       attempt = call.part.attempt]() -> Result<Looked> {
        Looked looked;
        looked.newer = end_older_parts(state, run, attempt);
        if (looked.newer > 0) return looked;
        NSA_TRY(check(wanted, worker));
        if (!wanted.gpus.empty()) {
          NSA_TRY_ASSIGN(looked.gpus, gpu::list_gpus());
        }
        NSA_TRY_ASSIGN(looked.sees_run_folder, sees_run_folder(wanted));
        return looked;
      },
      [this, call, wanted, cuts = cuts_](Result<Looked> looked) {
        if (cuts != cuts_) return; // nobody waits for the answer any more, so take no lease
        if (!looked) return answer(call.id, fail(std::move(looked).error()));
        if (looked->newer > 0) return refuse_older(call, looked->newer);
        const RunId& run = call.part.run;
        if (auto leased = gpus_.lease(run, wanted.gpus, std::move(looked->gpus)); !leased)
          return answer(call.id, fail(std::move(leased).error()));
        if (!wanted.gpus.empty()) leases_.insert(run);
        if (!looked->sees_run_folder) return fetch(call, wanted);
        answer(call.id, wanted.binds_store ? bind_store(call.part.run) : Prepared{});
      });
}

// This node shares no file system with its head.
void PartServer::fetch(const Call& call, Preparation wanted) {
  if (wanted.binds_store)
    return answer(call.id,
                  fail(ErrorCode::kNotFound,
                       "it does not see the run's folder " + wanted.run_folder +
                           ", or may not write there, and rank 0 writes its checkpoints there",
                       "mount the head's state folder under the same path, or let the head's "
                       "node take part in the run"));
  std::vector<std::shared_ptr<transfer::Source>> sources;
  for (const FolderOffer& offer : wanted.offers)
    sources.push_back(fetches_.open(offer.offer));
  fetching_.run(
      {"", "the files of a run"},
      [wanted = std::move(wanted), sources, state = options_.state_folder, run = call.part.run] {
        return fill_private_folder(state, run, wanted, sources);
      },
      [this, id = call.id](Result<transfer::Received> received) {
        if (!received) return answer(id, fail(std::move(received).error()));
        answer(id, Prepared{0, true, *received});
      });
}

void PartServer::fetch_data(const Push& push) {
  fetching_data_.run(
      {"", "a data set"},
      [push, source = fetches_.open(push.offer)] { return fill_data_folder(push, *source); },
      [this, offer = push.offer](const Result<transfer::Received>& received) {
        Pushed pushed{offer, received.has_value(), "", "", {}};
        if (received) {
          pushed.received = *received;
        } else {
          pushed.what = received.error().what;
          pushed.next = received.error().next;
        }
        // If the link is cut, the head asks again.
        (void)options_.send(frame_of(Message::kPushed, pushed));
      });
}

// Binds the store of the next attempt, so that its port is known before anything is started.
Result<nlohmann::json> PartServer::bind_store(const RunId& run) {
  NSA_TRY_ASSIGN(UniqueFd listener, listen_tcp(0));
  NSA_TRY_ASSIGN(const uint16_t port, port_of(listener.get()));
  stores_[run] = std::move(listener);
  return nlohmann::json(Prepared{port});
}

void PartServer::start(const Call& call) {
  const Key key{call.part.run, call.part.attempt};
  auto plan = wire::body_as<wire::LaunchPlan>(call.body.value("plan", nlohmann::json()));
  if (!plan) return answer(call.id, fail(plan.error()));
  privilege::AttemptStart start;
  start.plan = std::move(*plan);
  start.spec = call.body.value("spec", "");
  start.options.program = options_.config.programs.shim;
  start.options.cgroup_root = options_.config.supervision.cgroup_root;
  start.plan.attempt_folder = folder_of(key);
  if (call.body.value("private", false))
    use_private_folder(start.plan, private_folder(options_.state_folder, key.first));
  const auto own = host_->node_environment();
  start.plan.rendezvous = with_name_of_head(start.plan.rendezvous, options_.head);
  for (wire::RankLaunch& rank : start.plan.ranks) {
    if (rank.arguments.empty())
      return answer(call.id, fail(ErrorCode::kInvalidArgument, "a rank has no command"));
    rank.arguments[0] = worker();
    replace_value(rank.arguments, "--attempt-folder", start.plan.attempt_folder);
    replace_value(rank.arguments, "--spec", start.plan.attempt_folder + "/spec.json");
    replace_value(rank.arguments, "--rendezvous", start.plan.rendezvous);
    // The head has removed its own variables. Variables that are already set come from the run's
    // toggles.
    for (const std::string_view name : plan::kNodeVariables)
      if (const auto found = own.find(std::string(name)); found != own.end())
        rank.environment.insert(*found);
  }
  const auto store = std::make_shared<UniqueFd>();
  if (!start.plan.ranks.empty() && start.plan.ranks.front().rank == 0) {
    *store = std::move(stores_[key.first]);
    start.options.store_listener = store->get();
  }
  stores_.erase(key.first);
  const auto shared = std::make_shared<privilege::AttemptStart>(std::move(start));
  calls_.run(
      {"", "the start of a part"},
      [host = host_, shared] { return host->start_attempt(0, std::move(*shared)); },
      [this, key, store, id = call.id,
       gpus = gpus_of(shared->plan)](Result<shim::StartedShim> started) {
        store->reset(); // the shim has it
        leases_.erase(key.first);
        if (started && started->pidfd) watch(key, std::move(started->pidfd));
        release_gpus(key.first); // takes effect if no part was started
        if (!started) return answer(id, fail(std::move(started).error()));
        const ShimIdentity shim{started->identity.boot_id, started->identity.pid,
                                started->identity.start_time_ticks};
        // Leases the GPUs again, because the link may have been cut meanwhile.
        gpus_.take_back(key.first, gpus);
        gpus_.set_shim(key.first, shim);
        answer(id, nlohmann::json(shim));
      });
}

void PartServer::stop_ranks() {
  leaving_ = true;
  signal_shims(SIGTERM);
}

void PartServer::kill_ranks() {
  leaving_ = true;
  signal_shims(SIGKILL);
}

void PartServer::signal_shims(int signal) {
  for (const auto& [key, part] : parts_)
    if (auto sent = proc::send_signal(part.pidfd.get(), signal); !sent)
      log::warning("parts", "a shim takes no signal",
                   {{"run", key.first}, {"why", sent.error().what}});
}

void PartServer::watch(const Key& key, UniqueFd pidfd) {
  Part& part = parts_[key];
  part.pidfd = std::move(pidfd);
  part.ended = loop_.when_readable(part.pidfd.get(), [this, key] {
    // A copy, because `key` is destroyed with the watch.
    const Key ended = key; // NOLINT(performance-unnecessary-copy-initialization)
    // Reaps the shim if it is a child of nsad.
    (void)proc::wait_child(parts_.at(ended).pidfd.get());
    parts_.erase(ended);
    release_gpus(ended.first);
    (void)options_.send(frame_of(Message::kEnded, Ended{{ended.first, ended.second}}));
    if (options_.part_ended) options_.part_ended();
  });
}

} // namespace nsa::parts
