#include "daemon/supervision/attempt_supervisor.h"

#include "common/base/log.h"
#include "common/wire/packed.h"
#include "daemon/proc/node_readings.h"
#include "daemon/proc/procfs.h"

#include <algorithm>
#include <csignal>
#include <fcntl.h>

namespace nsa::control {

namespace {
constexpr Duration kConnectRetry = std::chrono::milliseconds(10);
constexpr Duration kLongestRetry = std::chrono::seconds(1);
// A shim that was asked to kill its ranks or to leave, and still runs after this time, is killed.
constexpr Duration kPatience = std::chrono::seconds(30);
constexpr Duration kReconnectPause = std::chrono::milliseconds(100);

std::string name_of_process(int64_t pid) {
  const auto stat = proc::read_stat(static_cast<pid_t>(pid));
  return stat ? stat->name : "name not known";
}
} // namespace

AttemptSupervisor::AttemptSupervisor(net::EventLoop& loop, ShimListener& listener, Reach reach,
                                     ShimConnectionOptions options)
    : loop_(loop), listener_(listener), reach_(std::move(reach)), options_(std::move(options)),
      ranks_(options_.ranks, options_.first_rank, options_.read_process),
      own_hangs_(options_.whole != nullptr
                     ? nullptr
                     : std::make_unique<HangWatch>(listener_, reach_, options_)),
      hangs_(own_hangs_ ? *own_hangs_ : *options_.whole),
      guard_(options_.quotas, options_.ranks, options_.age, MonotonicTime::now(),
             options_.first_rank),
      retry_pause_(kConnectRetry), oom_kills_(proc::read_oom_kills()),
      first_step_done_(options_.first_step_done), alive_(std::make_shared<int>()) {}

void AttemptSupervisor::start() {
  watch_shim();
  if (!ended_) connect();
}

// ---- connection ---------------------------------------------------------------------------------

// Runs `work` with the host and the submitter on another thread. `done` gets the result unless this
// object was destroyed.
template <class Work, class Done>
void AttemptSupervisor::call(const char* what, Work work, Done done) {
  reach_.calls.run(
      {"uid " + std::to_string(options_.submitter), what + (" of run " + options_.key.run)},
      [host = reach_.host, as = options_.submitter, work = std::move(work)] {
        return work(*host, as);
      },
      [alive = std::weak_ptr<void>(alive_), done = std::move(done)](auto&& result) {
        if (!alive.expired()) done(std::forward<decltype(result)>(result));
      });
}

void AttemptSupervisor::connect() {
  retry_timer_.reset();
  call(
      "the shim",
      [folder = options_.folder](privilege::Host& host, uid_t as) {
        return host.connect_shim(as, folder);
      },
      [this](Result<UniqueFd> socket) {
        if (ended_) return;
        // If the shim has ended, the pidfd reports it.
        if (!socket) return retry(retry_pause_);
        greet(std::move(*socket));
      });
}

void AttemptSupervisor::greet(UniqueFd socket) {
  auto client = shim::ShimClient::greet(std::move(socket), options_.token, options_.acknowledged);
  if (!client) return retry(retry_pause_);
  client_.emplace(std::move(*client));
  readable_ = loop_.when_readable(client_->fd(), [this] { on_readable(); });
  flush_writes();
}

void AttemptSupervisor::disconnect() {
  readable_.reset();
  writable_.reset();
  client_.reset();
}

void AttemptSupervisor::retry(Duration delay) {
  retry_pause_ = std::min(retry_pause_ * 5 / 4, kLongestRetry);
  if (!ended_) retry_timer_ = loop_.after(delay, [this] { connect(); });
}

void AttemptSupervisor::flush_writes() {
  if (!client_) return;
  if (client_->wants_write()) (void)client_->on_writable();
  if (!client_->wants_write())
    writable_.reset();
  else if (!writable_)
    writable_ = loop_.when_writable(client_->fd(), [this] { flush_writes(); });
}

void AttemptSupervisor::on_readable() {
  auto received = client_->on_readable();
  if (!received) {
    log::error("control", "the shim's messages cannot be trusted; connecting again",
               {{"run", options_.key.run},
                {"why", received.error().what},
                {"next", received.error().next}});
    disconnect();
    return retry(kReconnectPause);
  }
  uint64_t last = 0;
  for (wire::Message& message : received->messages) {
    handle(message);
    if (message.sequence != 0) last = message.sequence;
  }
  if (last != 0) {
    options_.acknowledged = last;
    listener_.on_dealt_with(options_.key, last);
  }
  if (received->closed) {
    disconnect();
    retry(kReconnectPause);
  } else {
    flush_writes();
  }
}

void AttemptSupervisor::emit(state::EventBody body, uint64_t sequence) {
  listener_.on_event(options_.key, std::move(body), sequence);
}

template <class T> void AttemptSupervisor::pass_on(const nlohmann::json& body, uint64_t sequence) {
  auto value = wire::body_as<T>(body);
  if (value)
    emit(std::move(*value), sequence);
  else
    log::warning("control", "a message was not understood",
                 {{"run", options_.key.run}, {"why", value.error().what}});
}

void AttemptSupervisor::handle_hello(const wire::ShimHello& hello) {
  for (const wire::RankIdentity& r : hello.ranks) {
    ranks_.set_process(r.rank, r.pid);
    ranks_.set_exited(r.rank, !r.running && r.pid != 0);
  }
  if (hello.first_sequence > options_.acknowledged + 1) {
    const uint64_t first = std::exchange(options_.acknowledged, hello.first_sequence - 1) + 1;
    emit(state::MessagesLost{first, hello.first_sequence - 1, hello.ranks});
    for (const wire::RankIdentity& r : hello.ranks) {
      if (r.running || r.pid == 0) continue;
      wire::RankExited exited;
      exited.rank = r.rank;
      exited.pid = r.pid;
      exited.exit_code = r.exit_code;
      exited.signal = r.signal;
      handle_exit(exited, 0);
    }
  }
  if (!options_.adopted) return;
  catch_up_to_ = hello.last_sequence;
  options_.adopted = false;
  emit(state::ShimAdopted{to_seconds(MonotonicTime::now() - options_.daemon_started)});
}

void AttemptSupervisor::handle(wire::Message& message) {
  using wire::MessageType;
  if (message.type == MessageType::kPackedStep) {
    const auto step = wire::unpack<wire::RankStep>(message.packed);
    if (guard_.may_say(step, message.bytes)) listener_.on_step(options_.key, *step);
    return;
  }
  if (!guard_.may_say(message)) return;
  switch (message.type) {
  case MessageType::kShimHello:
    ranks_.watch(client_->take_pages());
    if (!ranks_.have_watermarks())
      log::warning("control", "ranks of an older build: hangs are looked for from the next attempt",
                   {{"run", options_.key.run}});
    retry_pause_ = kConnectRetry;
    if (auto hello = wire::body_as<wire::ShimHello>(message.body)) handle_hello(*hello);
    listener_.on_connected(options_.key);
    break;
  case MessageType::kRankStarted:
    if (auto started = wire::body_as<wire::RankStarted>(message.body))
      ranks_.set_process(started->rank, started->pid);
    pass_on<wire::RankStarted>(message.body, message.sequence);
    break;
  case MessageType::kRankExited:
    if (auto exited = wire::body_as<wire::RankExited>(message.body))
      handle_exit(*exited, message.sequence);
    break;
  case MessageType::kRankMessage: {
    nlohmann::json said = std::move(message.body["body"]); // the guard lets only objects through
    if (auto inner = wire::body_as<wire::RankMessage>(message.body)) {
      inner->body = std::move(said);
      handle_rank_message(*inner, message.sequence);
    }
    break;
  }
  case MessageType::kEvidenceTaken:
    if (auto taken = wire::body_as<wire::EvidenceTaken>(message.body)) handle_evidence(*taken);
    break;
  case MessageType::kLogDropped:
    pass_on<wire::LogDropped>(message.body, message.sequence);
    break;
  case MessageType::kRefused:
    pass_on<wire::Refused>(message.body, message.sequence);
    break;
  case MessageType::kLaunchFailed:
    if (auto failed = wire::body_as<wire::LaunchFailed>(message.body))
      emit(state::AttemptFailedToStart{failed->what, false}, message.sequence);
    break;
  default: // a newer shim sends it; it is skipped
    break;
  }
}

void AttemptSupervisor::handle_rank_message(const wire::RankMessage& message, uint64_t sequence) {
  // A message type of a newer rank is skipped.
  wire::RankMessages::visit(static_cast<wire::MessageType>(message.type),
                            [&]<class T>(std::type_identity<T>) {
                              if constexpr (T::kMessage.event.empty()) {
                                if (auto step = wire::body_as<T>(message.body))
                                  listener_.on_step(options_.key, *step);
                              } else {
                                pass_on<T>(message.body, sequence);
                              }
                            });
}

void AttemptSupervisor::handle_exit(const wire::RankExited& exited, uint64_t sequence) {
  ranks_.set_exited(exited.rank, true);
  if (!released_ && ranks_.all_exited()) patience_timer_.reset();
  if (exited.signal == SIGKILL && !exited.killed_by_shim && !options_.read_process) {
    const uint64_t kills = proc::read_oom_kills();
    if (kills > oom_kills_) emit(state::HostOutOfMemory{kills - oom_kills_});
    oom_kills_ = kills;
  }
  emit(exited, sequence);
}

// ---- requests -----------------------------------------------------------------------------------

template <class Request> void AttemptSupervisor::ask(Request request) {
  if (!client_) return;
  (void)request(*client_);
  flush_writes();
}

void AttemptSupervisor::take_evidence(const std::string& id, double limit_seconds) {
  wire::TakeEvidence request;
  request.id = id;
  request.stack_limit_seconds = std::min(8.0, limit_seconds / 2);
  ask([&](shim::ShimClient& shim) { return shim.take_evidence(request); });
}

void AttemptSupervisor::stop_ranks(bool checkpoint) {
  ask([&](shim::ShimClient& shim) { return shim.stop_ranks(checkpoint); });
}

void AttemptSupervisor::kill_ranks(const std::string& reason) {
  expect_end("to kill its ranks");
  ask([&](shim::ShimClient& shim) { return shim.kill_ranks(reason); });
}

void AttemptSupervisor::checkpoint_ranks() {
  ask([](shim::ShimClient& shim) { return shim.checkpoint_ranks(); });
}

void AttemptSupervisor::acknowledge(uint64_t sequence) {
  ask([&](shim::ShimClient& shim) { return shim.acknowledge(sequence); });
}

void AttemptSupervisor::release() {
  released_ = true;
  if (ended_) return listener_.on_shim_ended(options_.key);
  expect_end("to leave");
  // Without a connection the request is repeated after the next hello.
  ask([](shim::ShimClient& shim) { return shim.release(); });
}

void AttemptSupervisor::say_goodbye() {
  ask([](shim::ShimClient& shim) { return shim.say_goodbye(); });
}

// ---- progress and hangs -------------------------------------------------------------------------

void AttemptSupervisor::observe(MonotonicTime now) {
  for (wire::Refused& refused : guard_.take_due(now))
    emit(std::move(refused));
  if (!ranks_.watching() || ended_ || released_) return;
  ranks_.sample();
  for (const state::RankSample& sample : samples())
    if (!first_step_done_ && sample.device.completed_step > options_.first_step) {
      first_step_done_ = true;
      emit(state::FirstStep{sample.device.completed_step});
    }
  // Hang detection needs watermarks of all ranks.
  if (!watching() || !own_hangs_) return;
  if (const auto verdict = hangs_.observe(samples(), now))
    hangs_.report(*verdict, name_of_process(verdict->tracer));
}

void AttemptSupervisor::handle_evidence(const wire::EvidenceTaken& taken) {
  const auto& verdict = hangs_.verdict();
  state::EvidenceSaved saved = judge_evidence(taken, verdict, listener_.gpus_of(options_.key));
  // The whole adds what other nodes saw.
  if (options_.whole != nullptr) return emit(std::move(saved));
  if (verdict) hangs_.write_verdict(*verdict, saved, samples(), nlohmann::json::array());
  // Somebody attached a debugger after the verdict, so the rank is no longer judged.
  for (const wire::RankEvidence& rank : taken.ranks)
    if (verdict && verdict->kind != state::HangKind::kTraced && taken.id == verdict->id &&
        rank.rank == verdict->rank && rank.traced) {
      // 0: the tracer has gone.
      const int64_t tracer = proc::read_tracer(static_cast<pid_t>(rank.pid));
      return hangs_.give_to_debugger(tracer, name_of_process(tracer));
    }
  // The state machine decides whether anything is killed now. If nothing is killed, the verdict is
  // withdrawn when the rank moves again.
  emit(std::move(saved));
}

// ---- the shim's end -----------------------------------------------------------------------------

void AttemptSupervisor::watch_shim() {
  if (!options_.pidfd) {
    auto found = shim::find_shim(options_.shim);
    if (found) options_.pidfd = std::move(*found);
  }
  if (!options_.pidfd) return on_shim_ended();
  shim_watch_ = loop_.when_readable(options_.pidfd.get(), [this] { on_shim_ended(); });
}

// After a crash between the intent and its record, two shims may have been started for one attempt.
// The folder's lock lets only one live, and started.json names it.
bool AttemptSupervisor::take_over(const shim::StartedAttempt& started) {
  const proc::ProcessIdentity other{started.boot_id, static_cast<pid_t>(started.shim_pid),
                                    started.shim_start_time_ticks};
  if (other == options_.shim) return false;
  auto pidfd = shim::find_shim(other);
  if (!pidfd) return false;
  options_.shim = other;
  options_.pidfd = std::move(*pidfd);
  ended_ = false;
  start();
  return true;
}

void AttemptSupervisor::on_shim_ended() {
  shim_watch_.reset();
  patience_timer_.reset();
  // Reaps the shim if it is a child of nsad.
  if (options_.pidfd) (void)proc::wait_child(options_.pidfd.get());
  options_.pidfd.reset();
  if (client_) on_readable(); // reads its last messages
  ended_ = true;
  retry_timer_.reset();
  disconnect();
  if (released_) return listener_.on_shim_ended(options_.key);
  call(
      "started.json",
      [folder = options_.folder](privilege::Host& host, uid_t as) {
        return host.read_started(as, folder);
      },
      [this](const Result<shim::StartedAttempt>& started) {
        if (released_) return; // on_shim_ended() was called already
        if (!started || !take_over(*started)) sweep();
      });
}

// The ranks' parent has gone. Its remaining processes must not run beside the next attempt.
void AttemptSupervisor::sweep() {
  call(
      "what its shim left behind",
      [folder = options_.folder](privilege::Host& host, uid_t as) {
        return host.end_leftovers(as, folder);
      },
      [this](const Result<int>& left) {
        // Rounds of 20 ms. The limit is for a rank in uninterruptible sleep.
        constexpr int kRounds = 250;
        if (left && *left > 0 && ++sweep_rounds_ < kRounds)
          sweep_timer_ = loop_.after(std::chrono::milliseconds(20), [this] { sweep(); });
        else
          conclude_sweep(left);
      });
}

void AttemptSupervisor::conclude_sweep(const Result<int>& left) {
  if (!left)
    log::warning("control", "what a lost shim left behind could not be ended",
                 {{"run", options_.key.run}, {"why", left.error().what}});
  options_.adopted = false; // there is nothing left to catch up with
  catch_up_to_ = 0;
  const bool clean = left && *left == 0;
  call(
      "the ends of the ranks",
      [folder = options_.folder, ranks = options_.first_rank + options_.ranks](
          privilege::Host& host, uid_t as) { return host.read_exits(as, folder, ranks); },
      [this, clean](const Result<std::vector<wire::RankExited>>& exits) {
        if (exits)
          for (const wire::RankExited& exited : *exits)
            if (exited.rank >= options_.first_rank &&
                exited.rank < options_.first_rank + options_.ranks)
              handle_exit(exited, 0);
        emit(state::ShimLost{clean ? "its process has ended, and its ranks with it"
                                   : "its process has ended, and a rank cannot be killed"});
      });
}

// The shim belongs to its submitter and may not do what it is asked. It is killed after kPatience,
// unless a rank is in uninterruptible sleep.
void AttemptSupervisor::expect_end(const char* asked) {
  if (patience_timer_ || ended_) return;
  patience_timer_ = loop_.after(kPatience, [this, asked] {
    patience_timer_.reset();
    if (ranks_.any_uninterruptible()) return expect_end(asked);
    if (!ended_ && options_.pidfd) kill_shim(asked);
  });
}

void AttemptSupervisor::kill_shim(const char* asked) {
  log::warning("control", "a shim does not do what it is asked; killing it",
               {{"run", options_.key.run}, {"asked", asked}});
  const auto pidfd = std::make_shared<UniqueFd>(::fcntl(options_.pidfd.get(), F_DUPFD_CLOEXEC, 0));
  call(
      "its shim",
      [pidfd](privilege::Host& host, uid_t as) { return host.kill_shim(as, pidfd->get()); },
      [this](const Status& killed) {
        if (!killed)
          log::error("control", "a shim cannot be killed",
                     {{"run", options_.key.run}, {"why", killed.error().what}});
      });
}

} // namespace nsa::control
