#include "daemon/shim/shim.h"

#include "common/base/build_info.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/local_socket.h"
#include "common/base/log.h"
#include "common/wire/packed.h"
#include "daemon/proc/process.h"
#include "daemon/proc/sweep.h"
#include "daemon/shim/client/attempt_files.h"
#include "daemon/shim/client/client.h"

#include <algorithm>
#include <csignal>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace nsa::shim {

namespace {

using namespace std::chrono_literals;
using wire::MessageType;

// Time for nsad to connect after it has started this shim.
constexpr Duration kFirstConnection = 10s;
// Grace after a lost connection: a service manager may restart nsad sooner.
constexpr Duration kReconnection = 300ms;
constexpr size_t kMaxPassed = 1 << 20; // size of the file; a process cannot take more variables
constexpr Duration kFirstSweepPause = 20ms, kLongestSweepPause = 1s;

std::string to_text(const nlohmann::json& body) {
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Reads the values of the variables that the submitter passes on. They are stored only in this
// file, so without it the attempt would differ from what was submitted.
Result<std::map<std::string, std::string>> read_passed_environment(const wire::LaunchPlan& plan) {
  std::map<std::string, std::string> passed;
  if (plan.passed_environment.empty()) return passed;
  const std::string path = plan.run_folder + "/" + wire::kPassedEnvironmentName;
  const auto text = read_file(path, kMaxPassed);
  const auto values = text ? parse_json(*text, path, {kMaxPassed, 2}) : fail(text.error());
  if (!values || !values->is_object())
    return fail(ErrorCode::kNotFound,
                (values ? path + " is no object" : values.error().what) +
                    ": the variables of run.pass_environment are lost; submit the run again");
  for (const std::string& name : plan.passed_environment)
    if (const auto value = values->find(name); value != values->end() && value->is_string())
      passed[name] = value->get<std::string>();
  return passed;
}

// Empty if the ranks do not use NCCL.
std::string nccl_ras_address(const wire::LaunchPlan& plan) {
  const auto& environment = plan.ranks.front().environment;
  const auto found = environment.find("NCCL_RAS_ADDR");
  return found == environment.end() ? "" : found->second;
}

// The packed form of a step report. Other messages, and reports that nsad refuses, have none.
std::optional<std::string> pack_step(Rank rank, const wire::Message& message) {
  if (message.type != MessageType::kRankStep) return std::nullopt;
  const auto step = wire::body_as<wire::RankStep>(message.body);
  if (!step || step->rank != rank) return std::nullopt;
  return wire::pack(*step);
}

} // namespace

Result<std::unique_ptr<Shim>> Shim::open(const std::string& attempt_folder, ShimOptions options) {
  const std::filesystem::path path = attempt_folder;
  UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return fail_errno("cannot open " + attempt_folder);
  UniqueFd lock(::openat(folder.get(), kLockName, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return fail_errno("cannot open " + (path / kLockName).string());
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
    return fail(ErrorCode::kConflict, "another shim looks after " + attempt_folder);
  if (::faccessat(folder.get(), kStartedName, F_OK, 0) == 0)
    return fail(ErrorCode::kConflict, "the ranks of " + attempt_folder + " were started before",
                "start a new attempt; an attempt runs once");
  NSA_TRY_ASSIGN(wire::LaunchPlan plan, read_launch_plan(attempt_folder));
  if (plan.ranks.empty() || plan.token.empty())
    return fail(ErrorCode::kInvalidArgument,
                (path / kLaunchName).string() + " names no ranks, or no token");
  NSA_TRY_ASSIGN(EventLoop loop, EventLoop::create());
  plan.attempt_folder = attempt_folder;
  return std::unique_ptr<Shim>(new Shim(std::move(plan), std::move(folder), std::move(lock),
                                        std::move(loop), std::move(options)));
}

Shim::Shim(wire::LaunchPlan plan, UniqueFd folder, UniqueFd lock, EventLoop loop,
           ShimOptions options)
    : plan_(std::move(plan)), folder_path_(plan_.attempt_folder), folder_(std::move(folder)),
      lock_(std::move(lock)), loop_(std::move(loop)), options_(std::move(options)),
      outbox_(folder_path_ / kSpillName),
      link_(loop_, outbox_, plan_.token,
            {[this] { return make_hello(); },
             [this] {
               std::vector<int> fds;
               for (const auto& rank : ranks_)
                 fds.push_back(rank.page_fd());
               return fds;
             },
             [this] { on_greeted(); },
             [this](const wire::Message& message) { on_request(message); },
             [this] { await_nsad(); }, [this] { restart_.absent(kReconnection); }}),
      restart_(loop_, plan_.restart_daemon),
      evidence_(
          loop_, folder_path_ / kEvidenceFolder, nccl_ras_address(plan_),
          [this] { return identities(); },
          [this](const std::filesystem::path& folder) {
            send_to_ranks(MessageType::kCollectivesRequest,
                          wire::CollectivesRequest{folder.string()});
          },
          [this](std::string body) { tell_text(MessageType::kEvidenceTaken, std::move(body)); }) {}

Status Shim::run(UniqueFd nsad) {
  nsad_ = std::move(nsad);
  NSA_TRY(watch_signals());
  NSA_TRY(proc::become_subreaper());
  open_cgroup();
  for (const auto& launch : plan_.ranks) {
    ranks_.emplace_back(
        loop_, plan_, launch,
        RankProcess::Events{
            [this](Rank rank, const wire::Message& message) { on_rank_message(rank, message); },
            [this](Rank rank, const RankLog::Dropped& dropped) { on_log_dropped(rank, dropped); },
            [this](Rank rank, const std::string& what, uint64_t count, const std::string& why) {
              refusals_.note(rank, what, count, why);
              tell_refusals(false);
            }});
    NSA_TRY(ranks_.back().prepare());
  }
  NSA_TRY(link_.listen(folder_.get()));
  if (auto started = start_ranks(); !started) {
    log::error("shim", "the ranks could not be started", {{"why", started.error().what}});
    tell(MessageType::kLaunchFailed, wire::LaunchFailed{started.error().what});
    kill_ranks("launch failed");
  }
  if (auto written = write_started(); !written)
    log::error("shim", "cannot write started.json", {{"why", written.error().what}});
  restart_.absent(kFirstConnection);
  await_nsad();
  watch_nsad();
  finish_if_done();
  return loop_.run();
}

Status Shim::watch_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  sigaddset(&set, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  for (const int ignored : {SIGPIPE, SIGHUP, SIGINT})
    ::signal(ignored, SIG_IGN);
  signals_.reset(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!signals_) return fail_errno("cannot watch for signals");
  return loop_.watch(signals_.get(), EPOLLIN, [this](uint32_t) { on_signals(); });
}

// If nsad dies before it has connected, this notices at once and not after kFirstConnection.
void Shim::watch_nsad() {
  if (!nsad_) return;
  const auto on_end = [this](uint32_t) {
    loop_.unwatch(nsad_.get());
    nsad_.reset();
    if (!link_.connected()) restart_.died();
  };
  if (!loop_.watch(nsad_.get(), EPOLLIN, on_end)) nsad_.reset();
}

void Shim::open_cgroup() {
  if (options_.cgroup_root == "none") return;
  std::optional<std::filesystem::path> root;
  if (options_.cgroup_root.empty())
    root = proc::Cgroup::find_writable_root();
  else
    root = options_.cgroup_root;
  if (!root) return; // process groups and the sweep do the work
  auto cgroup = proc::Cgroup::open(*root, cgroup_name(plan_));
  if (!cgroup) return log::warning("shim", "goes without a cgroup", {{"why", cgroup.error().what}});
  cgroup_ = std::move(*cgroup);
  const wire::AttemptLimits& limits = plan_.limits;
  if (auto limited = cgroup_->limit(limits.processes, limits.memory_bytes); !limited)
    log::warning("shim", "goes without limits", {{"why", limited.error().what}});
}

// Opens the store's socket, in a folder that only this user may enter. It goes to rank 0, and the
// shim keeps no copy. So when rank 0 dies, a connecting rank learns at once that nobody listens.
Result<UniqueFd> Shim::open_rendezvous() {
  constexpr std::string_view kUnix = "unix:", kTcp = "tcp:";
  constexpr int kBacklog = 1024;
  if (plan_.rendezvous.empty()) return UniqueFd();
  if (plan_.rendezvous.starts_with(kTcp)) return std::move(options_.store_listener);
  if (!plan_.rendezvous.starts_with(kUnix))
    return fail(ErrorCode::kUnsupported, "this shim knows no rendezvous " + plan_.rendezvous);
  const std::string folder = plan_.rendezvous.substr(kUnix.size());
  NSA_TRY(make_folder(folder, 0700));
  return listen_in_folder(folder, wire::kStoreSocketName, SOCK_SEQPACKET, kBacklog);
}

Status Shim::start_ranks() {
  NSA_TRY_ASSIGN(const UniqueFd store, open_rendezvous());
  NSA_TRY_ASSIGN(const auto passed, read_passed_environment(plan_));
  for (auto& rank : ranks_) {
    NSA_TRY(rank.start(rank.rank() == 0 ? store.get() : -1, cgroup_ ? cgroup_->fd() : -1, passed));
    const auto identity = rank.identity();
    tell(MessageType::kRankStarted,
         wire::RankStarted{rank.rank(), identity.pid, identity.start_time_ticks});
  }
  return {};
}

Status Shim::write_started() {
  StartedAttempt started;
  NSA_TRY_ASSIGN(auto self, proc::identify(::getpid()));
  started.boot_id = self.boot_id;
  started.shim_pid = self.pid;
  started.shim_start_time_ticks = self.start_time_ticks;
  if (cgroup_) started.cgroup = cgroup_->path().string();
  started.ranks = identities();
  return write_file_atomic(folder_path_ / kStartedName, to_text(started), 0640,
                           Survives::kProcessCrash);
}

void Shim::on_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo != SIGTERM) continue;
    log::info("shim", "asked to end by a signal: stopping the ranks",
              {{"pid", std::to_string(info.ssi_pid)}});
    send_to_ranks(MessageType::kStopRequest, wire::StopRequest{true});
  }
  on_children_ended();
}

// Signals of several children may be merged into one, so check until there is none.
void Shim::on_children_ended() {
  while (const auto pid = proc::next_ended_child()) {
    const auto rank = std::find_if(ranks_.begin(), ranks_.end(), [&](const RankProcess& r) {
      return r.running() && r.pid() == *pid;
    });
    if (rank != ranks_.end())
      on_rank_ended(*rank);
    else if (evidence_.pid() == *pid)
      evidence_.on_child_ended();
    else
      proc::reap_child(*pid); // an orphan that was reparented to the shim
  }
  finish_if_done();
}

void Shim::on_rank_ended(RankProcess& rank) {
  const wire::RankExited exited = rank.reap();
  tell_refusals(true);
  tell(MessageType::kRankExited, exited);
  // For an nsad that finds no shim. It need not survive a machine crash, which ends the attempt
  // anyway. So it never waits for the disk, which would delay the handling of other ranks' ends.
  if (auto written = write_file_atomic(folder_path_ / exit_name(rank.rank()), to_text(exited), 0640,
                                       Survives::kProcessCrash);
      !written)
    log::error("shim", "cannot record the end of a rank",
               {{"rank", std::to_string(rank.rank())}, {"why", written.error().what}});
}

void Shim::on_rank_message(Rank rank, const wire::Message& message) {
  if (auto packed = pack_step(rank, message)) {
    outbox_.push_droppable(rank, MessageType::kPackedStep, std::move(*packed));
    return link_.flush();
  }
  const nlohmann::json body = {
      {"rank", rank}, {"type", static_cast<uint8_t>(message.type)}, {"body", message.body}};
  const wire::RankMessageInfo* known = wire::rank_message(message.type);
  if (known != nullptr && known->delivery == wire::Delivery::kMayDrop)
    outbox_.push_droppable(rank, MessageType::kRankMessage, to_text(body));
  else
    outbox_.push(MessageType::kRankMessage, to_text(body));
  link_.flush();
}

// While nsad is away, one sum for each rank is kept, so that a disk that stays full for days does
// not fill the outbox.
void Shim::on_log_dropped(Rank rank, const RankLog::Dropped& dropped) {
  RankLog::Dropped& sum = unsaid_drops_[rank];
  sum.bytes += dropped.bytes;
  sum.why = dropped.why;
  if (link_.connected()) on_connected();
}

// New refusals are reported at once, continued ones after a minute.
void Shim::tell_refusals(bool all) {
  const MonotonicTime now = MonotonicTime::now();
  for (const wire::Refused& refused : all ? refusals_.take_all(now) : refusals_.take_due(now))
    tell(MessageType::kRefused, refused);
  if (!refusals_.waits() || refusals_timer_) return;
  refusals_timer_ = loop_.after(Refusals::kPause, [this] {
    refusals_timer_.reset();
    tell_refusals(false);
  });
}

void Shim::on_greeted() {
  restart_.present();
  await_nsad();
}

// A head that cannot reach this node starts the next attempt without it after this time. So the
// ranks must have ended by then, whatever else of this node still lives. An open connection proves
// nothing, because the agent that holds it may be frozen. The head sends a message at least every
// four seconds.
void Shim::await_nsad() {
  if (plan_.orphan_seconds <= 0) return;
  if (orphan_timer_) loop_.cancel(*orphan_timer_);
  orphan_timer_ = loop_.after(from_seconds(plan_.orphan_seconds), [this] {
    orphan_timer_.reset();
    log::warning("shim", "no nsad has asked for the ranks; ending them",
                 {{"seconds", std::to_string(plan_.orphan_seconds)}});
    kill_ranks("no nsad has asked for them");
  });
}

void Shim::on_connected() {
  restart_.present();
  for (const auto& [rank, dropped] : std::exchange(unsaid_drops_, {}))
    tell(MessageType::kLogDropped, wire::LogDropped{rank, dropped.bytes, dropped.why});
}

template <class T> void Shim::tell(MessageType type, const T& value) {
  tell_text(type, to_text(nlohmann::json(value)));
}

void Shim::tell_text(MessageType type, std::string body) {
  outbox_.push(type, std::move(body));
  link_.flush();
}

void Shim::on_request(const wire::Message& message) {
  switch (message.type) {
  case MessageType::kStopRanks:
    if (auto stop = wire::body_as<wire::StopRanks>(message.body))
      send_to_ranks(MessageType::kStopRequest, wire::StopRequest{stop->checkpoint});
    return;
  case MessageType::kCheckpointRanks:
    // Rank 0 asks the others for it along with the gradients. If the shim asked each rank
    // separately, the ranks would act in different steps, and each of these steps would get a
    // checkpoint.
    if (const auto frame = wire::encode(MessageType::kCheckpointRequest, wire::CheckpointRequest{}))
      ranks_.front().send(*frame);
    return;
  case MessageType::kKillRanks:
    if (auto kill = wire::body_as<wire::KillRanks>(message.body)) kill_ranks(kill->reason);
    return;
  case MessageType::kTakeEvidence:
    if (auto request = wire::body_as<wire::TakeEvidence>(message.body))
      evidence_.request(std::move(*request));
    return;
  case MessageType::kRelease:
    released_ = true;
    return finish_if_done();
  case MessageType::kDaemonGoodbye:
    return restart_.goodbye();
  default: // a newer nsad sent it; it gets no answer and judges by what the ranks do
    log::warning("shim", "skipped an unknown request",
                 {{"type", std::to_string(static_cast<int>(message.type))}});
  }
}

void Shim::send_to_ranks(MessageType type, const nlohmann::json& body) {
  const auto frame = wire::encode_message({type, 0, body});
  if (!frame) return;
  for (auto& rank : ranks_)
    rank.send(*frame);
}

void Shim::kill_ranks(const std::string& reason) {
  log::info("shim", "killing the ranks", {{"reason", reason}});
  for (auto& rank : ranks_)
    rank.kill();
  sweep();
}

// Kills everything below the shim except a running evidence helper, until nothing is left.
void Shim::sweep() {
  if (cgroup_)
    if (auto killed = cgroup_->kill(); !killed)
      log::error("shim", "cannot kill the cgroup", {{"why", killed.error().what}});
  std::set<pid_t> spared;
  if (evidence_.busy()) spared.insert(evidence_.pid());
  const int left = proc::kill_descendants(spared);
  if (left == 0) sweep_pause_ = kFirstSweepPause;
  if (left > 0 && !sweep_timer_) {
    // A process in an uninterruptible sleep dies when it wakes, so the pauses grow.
    const Duration pause =
        std::exchange(sweep_pause_, std::min(sweep_pause_ * 2, kLongestSweepPause));
    sweep_timer_ = loop_.after(pause, [this] {
      sweep_timer_.reset();
      if (any_running()) return; // the end of a rank calls this again
      sweep();
      finish_if_done();
    });
  }
}

bool Shim::any_running() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& r) { return r.running(); });
}

void Shim::finish_if_done() {
  if (any_running()) return;
  if (!sweep_timer_) sweep();
  if (!lingering_) {
    lingering_ = true;
    loop_.after(options_.linger, [this] {
      log::warning("shim", "nsad has not come back to release the attempt; ending");
      loop_.stop();
    });
  }
  if (!released_ || sweep_timer_ || evidence_.busy()) return;
  if (cgroup_)
    if (auto removed = cgroup_->remove(); !removed)
      log::warning("shim", "cannot remove the cgroup", {{"why", removed.error().what}});
  ::unlinkat(folder_.get(), kSocketName, 0);
  loop_.stop();
}

std::vector<wire::RankIdentity> Shim::identities() const {
  std::vector<wire::RankIdentity> all;
  for (const auto& rank : ranks_)
    all.push_back(rank.identity());
  return all;
}

wire::ShimHello Shim::make_hello() const {
  wire::ShimHello hello;
  hello.run_id = plan_.run_id;
  hello.attempt = plan_.attempt;
  hello.token = plan_.token;
  hello.build = build_info().version + "+" + build_info().commit;
  if (const auto self = proc::identify(::getpid())) {
    hello.boot_id = self->boot_id;
    hello.pid = self->pid;
    hello.start_time_ticks = self->start_time_ticks;
  }
  hello.ranks = identities();
  hello.first_sequence = outbox_.first_sequence();
  hello.last_sequence = outbox_.last_sequence();
  hello.lost_messages = outbox_.lost();
  return hello;
}

} // namespace nsa::shim
