#include "daemon/parts/part_server.h"

#include "common/base/log.h"
#include "common/base/pass_descriptors.h"
#include "common/base/tcp.h"
#include "common/dataset/manifest.h"
#include "common/manifest/manifest.h"
#include "daemon/parts/meeting.h"
#include "daemon/parts/private_run.h"
#include "daemon/parts/probe_end.h"
#include "daemon/parts/pushed_data.h"
#include "daemon/plan/plan.h"
#include "daemon/proc/node_readings.h"
#include "daemon/proc/procfs.h"
#include "daemon/supervision/live_shims.h"

#include <algorithm>
#include <csignal>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace nsa::parts {

namespace {

constexpr Duration kPagesInterval = std::chrono::milliseconds(100);
// Of pages that have not changed: the head looks for hangs while it has heard of them for a second.
constexpr Duration kStillInterval = std::chrono::milliseconds(400);
constexpr Duration kResume = std::chrono::milliseconds(20);
constexpr size_t kMostQueued = size_t{1} << 20; // the shim keeps the rest
constexpr size_t kReadBytes = 64 * 1024, kMostPages = 128;
constexpr net::OffloadLimits kCalls{4, 4, 8, 1000, Duration::zero()};
constexpr net::OffloadLimits kOneAtATime{1, 1, 8, 1000, Duration::zero()};

// Nothing of the shim's attempt runs any more when this returns. Blocking.
void end_part(const std::string& folder, const control::LiveShim* shim) {
  if (shim != nullptr)
    if (const auto pidfd = proc::open_identified(shim->identity)) {
      (void)proc::send_signal(pidfd->get(), SIGKILL);
      constexpr int kLimit = 5000; // ms
      pollfd ended{pidfd->get(), POLLIN, 0};
      (void)::poll(&ended, 1, kLimit);
    }
  constexpr int kRounds = 100; // of 20 ms: a rank in an uninterruptible sleep is not waited for
  for (int i = 0; i < kRounds; ++i) {
    const auto left = shim::end_leftovers(folder);
    if (!left || *left == 0) return;
    ::usleep(20'000);
  }
}

// Those of the run, but for `spared`.
void end_parts_of(const std::string& state, const RunId& run, AttemptNumber spared) {
  for (const control::LiveShim& shim : control::find_live_shims(state))
    if (shim.run == run && shim.attempt != spared) end_part(shim.folder, &shim);
}

// Whether a part of this run can be started here, its folder apart.
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
      host_(std::make_shared<privilege::DirectHost>()) {
  for (const control::LiveShim& shim : control::find_live_shims(options_.state_folder))
    if (auto pidfd = proc::open_identified(shim.identity))
      watch({shim.run, shim.attempt}, std::move(*pidfd));
  pages_timer_ = loop_.every(kPagesInterval, [this] {
    for (auto& [id, stream] : streams_)
      send_pages(id, stream);
  });
}

std::string PartServer::folder_of(const Key& part) const {
  return plan::attempt_folder(options_.state_folder + "/runs/" + part.first, part.second);
}

void PartServer::on_ready() {
  Held held;
  for (const auto& [key, part] : parts_)
    held.parts.push_back({key.first, key.second});
  (void)options_.send(frame_of(Message::kHeld, held));
}

void PartServer::on_cut() {
  streams_.clear(); // shims keep what the head has not acknowledged
  fetches_.on_cut();
  stores_.erase(RunId()); // nobody comes to measure any more
}

// ---- calls
// ------------------------------------------------------------------------------------

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

void PartServer::answer(uint64_t id, Result<nlohmann::json> result) {
  Answer answer;
  answer.id = id;
  answer.ok = result.has_value();
  if (result) {
    answer.body = std::move(*result);
  } else {
    answer.code = static_cast<int>(result.error().code);
    answer.what = result.error().what;
    answer.next = result.error().next;
  }
  (void)options_.send(frame_of(Message::kAnswer, answer)); // a cut link: the head asks again
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
    return run(call.id, "the end of a part", [folder, state, key]() -> Result<nlohmann::json> {
      for (const control::LiveShim& shim : control::find_live_shims(state))
        if (shim.run == key.first && shim.attempt == key.second) end_part(folder, &shim);
      return nlohmann::json(true);
    });
  case CallKind::kBind:
    return answer(call.id, bind_store({}));
  case CallKind::kProbe:
    return probe(call);
  }
}

void PartServer::probe(const Call& call) {
  auto order = wire::body_as<ProbeOrder>(call.body);
  if (!order) return answer(call.id, fail(order.error()));
  order->meeting = with_name_of_head(order->meeting, options_.head);
  const auto store = std::make_shared<UniqueFd>();
  if (order->rank == 0) *store = std::move(stores_[{}]);
  run(call.id, "a probe of the network",
      [order = *order, store, worker = worker()]() -> Result<nlohmann::json> {
        NSA_TRY_ASSIGN(const wire::NetworkFigures figures, run_probe_end(worker, order, *store));
        return nlohmann::json(figures);
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
       attempt = call.part.attempt]() -> Result<bool> {
        end_parts_of(state, run, attempt);
        NSA_TRY(check(wanted, worker));
        return sees_run_folder(wanted);
      },
      [this, call, wanted](Result<bool> sees) {
        if (!sees) return answer(call.id, fail(std::move(sees).error()));
        if (!*sees) return fetch(call, wanted);
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
        (void)options_.send(frame_of(Message::kPushed, pushed)); // a cut link: it is asked again
      });
}

// Where the ranks of the next attempt meet; its port is told before anything is started.
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
    for (const std::string_view name : plan::kNodeVariables) {
      rank.environment.erase(std::string(name));
      if (const auto found = own.find(std::string(name)); found != own.end())
        rank.environment.insert(*found);
    }
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
      [this, key, store, id = call.id](Result<shim::StartedShim> started) {
        store->reset(); // the shim has it
        if (!started) return answer(id, fail(std::move(started).error()));
        if (started->pidfd) watch(key, std::move(started->pidfd));
        const proc::ProcessIdentity& shim = started->identity;
        answer(id, nlohmann::json(ShimIdentity{shim.boot_id, shim.pid, shim.start_time_ticks}));
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
    // `key` goes with the watch.
    const Key ended = key; // NOLINT(performance-unnecessary-copy-initialization)
    (void)proc::wait_child(parts_.at(ended).pidfd.get()); // a child of ours is reaped
    parts_.erase(ended);
    (void)options_.send(frame_of(Message::kEnded, Ended{{ended.first, ended.second}}));
    if (options_.part_ended) options_.part_ended();
  });
}

// ---- connections to shims
// -----------------------------------------------------------------------

void PartServer::open(const Call& call) {
  const Key key{call.part.run, call.part.attempt};
  auto socket = shim::connect_socket(folder_of(key));
  if (!socket) return answer(call.id, fail(std::move(socket).error()));
  const auto id = call.body.value("stream", uint64_t{0});
  answer(call.id, nlohmann::json(true));
  Stream& stream = streams_[id];
  stream.part = key;
  stream.socket = std::move(*socket);
  stream.readable = loop_.when_readable(stream.socket.get(), [this, id] { read(id); });
}

void PartServer::close(uint64_t id, bool tell) {
  if (streams_.erase(id) > 0 && tell) (void)options_.send(stream_frame(Message::kClosed, id));
}

void PartServer::take_bytes(uint64_t id, std::string_view bytes) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  found->second.outgoing += bytes;
  write(id);
}

void PartServer::write(uint64_t id) {
  Stream& stream = streams_.at(id);
  while (!stream.outgoing.empty()) {
    const ssize_t put = ::send(stream.socket.get(), stream.outgoing.data(), stream.outgoing.size(),
                               MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno != EAGAIN) return; // gone: reading tells, after its last words
    if (put <= 0) break;
    stream.outgoing.erase(0, static_cast<size_t>(put));
  }
  if (stream.outgoing.empty())
    stream.writable.reset();
  else if (!stream.writable)
    stream.writable = loop_.when_writable(stream.socket.get(), [this, id] { write(id); });
}

void PartServer::read(uint64_t id) {
  Stream& stream = streams_.at(id);
  // A slow link must not fill our memory: what is not read waits in the shim, and on its disk.
  if (options_.queued_bytes() > kMostQueued) {
    stream.readable.reset();
    stream.resume = loop_.after(kResume, [this, id] {
      const auto found = streams_.find(id);
      if (found == streams_.end()) return;
      found->second.readable =
          loop_.when_readable(found->second.socket.get(), [this, id] { read(id); });
    });
    return;
  }
  char bytes[kReadBytes];
  ReceivedBytes got = receive_with_descriptors(stream.socket.get(), {bytes, sizeof bytes},
                                               kMostPages, MSG_DONTWAIT);
  if (got.count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got.count <= 0) return close(id, true);
  for (UniqueFd& fd : got.descriptors) {
    auto page = progress::Page::open(std::move(fd), false);
    if (!page) return close(id, true);
    stream.pages.push_back(std::move(*page));
    stream.sent.emplace_back();
  }
  if (!got.descriptors.empty()) {
    if (const auto started = shim::read_started(folder_of(stream.part)))
      for (const wire::RankIdentity& rank : started->ranks)
        stream.pids.push_back(rank.pid);
    send_pages(id, stream); // before the hello that says how many there are
  }
  if (!options_.send(stream_frame(Message::kBytes, id, {bytes, static_cast<size_t>(got.count)})))
    close(id, false);
}

void PartServer::send_pages(uint64_t id, Stream& stream) {
  if (stream.pages.empty() || options_.queued_bytes() > kMostQueued) return;
  std::vector<std::string> pages(stream.pages.size(), std::string(progress::kPageBytes, '\0'));
  for (size_t i = 0; i < pages.size(); ++i)
    if (::pread(stream.pages[i].fd(), pages[i].data(), pages[i].size(), 0) !=
        ssize_t(pages[i].size()))
      return;
  const MonotonicTime now = MonotonicTime::now();
  if (pages == stream.sent && now - stream.sent_at < kStillInterval) return;
  stream.sent_at = now;
  std::string body;
  for (size_t i = 0; i < pages.size(); ++i) {
    PageRecord record;
    record.rank = stream.pages[i].rank();
    record.monotonic_ns = now.nanoseconds;
    record.has_page = pages[i] != stream.sent[i];
    // Who stands still is looked into, as on the head's own node.
    if (!record.has_page && i < stream.pids.size())
      if (const auto stat = proc::read_stat(static_cast<pid_t>(stream.pids[i]))) {
        record.state = stat->state;
        record.cpu_seconds = proc::ticks_to_seconds(stat->user_ticks + stat->system_ticks);
        record.run_delay_seconds = proc::read_run_delay_seconds(stream.pids[i]);
        record.tracer = proc::read_tracer(static_cast<pid_t>(stream.pids[i]));
      }
    body.append(reinterpret_cast<const char*>(&record), sizeof record);
    if (record.has_page) body += pages[i];
  }
  stream.sent = std::move(pages);
  (void)options_.send(stream_frame(Message::kPages, id, body));
}

} // namespace nsa::parts
