#include "daemon/shim/client/client.h"

#include "common/base/file.h"
#include "common/base/pass_descriptors.h"
#include "common/wire/packed.h"
#include "common/wire/protocol.h"
#include "daemon/proc/cgroup.h"
#include "daemon/proc/sweep.h"
#include "daemon/shim/client/attempt_files.h"

#include <algorithm>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

extern char** environ;

namespace nsa::shim {

NSA_DEFINE_JSON(StartedAttempt, boot_id, shim_pid, shim_start_time_ticks, cgroup, ranks)

namespace {

// More than any node has GPUs. The kernel's limit for one message is 253.
constexpr size_t kMaxPages = 128;
constexpr int kReadsATurn = 32; // reads of 64 KiB

Result<std::string> beside_this_program(const std::string& name) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return fail(ErrorCode::kSystem, "cannot find the folder of this program");
  return (self.parent_path() / name).string();
}

// Reads one of the files that the shim and nsad write for each other.
template <class T> Result<T> read_as(const std::filesystem::path& path) {
  // Enough for the plan of a thousand ranks.
  constexpr JsonLimits kLimits{.bytes = size_t{4} << 20};
  NSA_TRY_ASSIGN(const std::string text, read_file(path, kLimits.bytes));
  return wire::parse_body<T>(text, path.string(), kLimits);
}

bool would_block(int error) {
  return error == EAGAIN || error == EWOULDBLOCK;
}

} // namespace

Result<StartedShim> start_shim(const wire::LaunchPlan& plan, const StartOptions& options) {
  const std::filesystem::path folder = plan.attempt_folder;
  if (::access((folder / kStartedName).c_str(), F_OK) == 0)
    return fail(ErrorCode::kConflict, "attempt " + std::to_string(plan.attempt) + " of run " +
                                          plan.run_id + " has been started before");
  NSA_TRY(make_folder(folder, 0750));
  NSA_TRY(write_file_atomic(folder / kLaunchName, nlohmann::json(plan).dump(), 0600,
                            Survives::kProcessCrash));

  UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) return fail_errno("cannot open /dev/null");
  UniqueFd log(::open((folder / "shim.log").c_str(),
                      O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0640));
  if (!log) return fail_errno("cannot open " + (folder / "shim.log").string());

  proc::LaunchSpec spec;
  std::string program = options.program;
  if (program.empty()) {
    NSA_TRY_ASSIGN(program, beside_this_program("nsa-shim"));
  }
  spec.arguments = {program, "--attempt-folder", folder.string()};
  if (!options.cgroup_root.empty()) {
    spec.arguments.push_back("--cgroup-root");
    spec.arguments.push_back(options.cgroup_root);
  }
  if (options.linger_seconds > 0) {
    spec.arguments.push_back("--linger-seconds");
    spec.arguments.push_back(std::to_string(options.linger_seconds));
  }
  for (char** e = environ; *e != nullptr; ++e)
    spec.environment.emplace_back(*e);
  spec.working_folder = folder.string();
  spec.descriptors = {{null.get(), 0}, {log.get(), 1}, {log.get(), 2}};
  NSA_TRY_ASSIGN(const UniqueFd self, proc::open_pidfd(::getpid()));
  spec.descriptors.push_back({self.get(), kShimNsadFd});
  if (options.store_listener >= 0)
    spec.descriptors.push_back({options.store_listener, kShimStoreFd});
  spec.new_session = true;
  NSA_TRY_ASSIGN(proc::ChildProcess child, proc::launch(spec));
  NSA_TRY_ASSIGN(proc::ProcessIdentity identity, proc::identify(child.pid));
  return StartedShim{std::move(identity), std::move(child.pidfd)};
}

Result<StartedAttempt> read_started(const std::string& attempt_folder) {
  return read_as<StartedAttempt>(std::filesystem::path(attempt_folder) / kStartedName);
}

Result<wire::LaunchPlan> read_launch_plan(const std::string& attempt_folder) {
  return read_as<wire::LaunchPlan>(std::filesystem::path(attempt_folder) / kLaunchName);
}

Result<wire::RankExited> read_exit(const std::string& attempt_folder, Rank rank) {
  return read_as<wire::RankExited>(std::filesystem::path(attempt_folder) / exit_name(rank));
}

Result<int> end_leftovers(const std::string& attempt_folder) {
  NSA_TRY_ASSIGN(const wire::LaunchPlan plan, read_launch_plan(attempt_folder));
  int signalled = 0;
  // Without started.json the shim died while it started ranks. The mark in their environment finds
  // them.
  if (const auto started = read_started(attempt_folder)) {
    const std::filesystem::path path = started->cgroup;
    if (!path.empty() && std::filesystem::exists(path)) {
      NSA_TRY_ASSIGN(proc::Cgroup cgroup,
                     proc::Cgroup::open(path.parent_path(), path.filename().string()));
      NSA_TRY_ASSIGN(const auto members, cgroup.processes());
      signalled += static_cast<int>(members.size());
      NSA_TRY(cgroup.kill());
      // Dying processes keep the folder. It is empty and harmless afterwards.
      [[maybe_unused]] const auto removed = cgroup.remove();
    }
    for (const auto& rank : started->ranks) {
      const auto pidfd = proc::open_identified(
          {started->boot_id, static_cast<pid_t>(rank.pid), rank.start_time_ticks});
      if (pidfd && proc::send_signal(pidfd->get(), SIGKILL)) ++signalled;
    }
  }
  return signalled + proc::kill_marked(part_mark(plan));
}

Result<UniqueFd> connect_socket(const std::string& attempt_folder) {
  UniqueFd folder(::open(attempt_folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return fail_errno("cannot open " + attempt_folder);
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return fail_errno("cannot make a socket");
  const sockaddr_un address = socket_address(folder.get());
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
    return socket;
  if (errno == ENOENT || errno == ECONNREFUSED || would_block(errno))
    return fail(ErrorCode::kUnavailable, "no shim listens in " + attempt_folder);
  return fail_errno("cannot connect to the shim in " + attempt_folder);
}

Result<ShimClient> ShimClient::greet(UniqueFd socket, const std::string& token,
                                     uint64_t acknowledged_sequence) {
  ShimClient client(std::move(socket), token, acknowledged_sequence);
  wire::DaemonHello hello;
  hello.protocol = wire::kProtocol;
  hello.token = token;
  hello.acknowledged_sequence = acknowledged_sequence;
  hello.step_layout = wire::layout_of<wire::RankStep>();
  NSA_TRY(client.send(wire::MessageType::kDaemonHello, hello));
  return client;
}

template <class T> Status ShimClient::send(wire::MessageType type, const T& value) {
  NSA_TRY_ASSIGN(std::string bytes, wire::encode(type, value));
  outgoing_ += bytes;
  return on_writable();
}

Status ShimClient::on_writable() {
  while (!outgoing_.empty()) {
    const ssize_t put = ::send(socket_.get(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && would_block(errno)) return {};
    // The end of a shim is detected by reading, after its last messages.
    if (put < 0) {
      outgoing_.clear();
      return {};
    }
    outgoing_.erase(0, static_cast<size_t>(put));
  }
  return {};
}

// Bounds the reads, because a shim may send without end. The next turn reads the rest.
Result<bool> ShimClient::receive() {
  char bytes[1 << 16];
  for (int reads = 0; reads < kReadsATurn; ++reads) {
    ReceivedBytes got = receive_with_descriptors(socket_.get(), bytes, kMaxPages);
    if (got.count < 0 && would_block(errno)) return true;
    if (got.count <= 0) return false;
    std::move(got.descriptors.begin(), got.descriptors.end(), std::back_inserter(received_fds_));
    if (got.dropped || received_fds_.size() > kMaxPages)
      return fail(ErrorCode::kCorrupt, "the shim sent more descriptors than fit");
    decoder_.feed({bytes, static_cast<size_t>(got.count)});
    const bool is_short = static_cast<size_t>(got.count) < sizeof bytes;
    if (is_short && got.descriptors.empty()) return true; // the queue is empty
  }
  return true;
}

Status ShimClient::check(const wire::Message& message) {
  if (message.type == wire::MessageType::kShimHello) {
    NSA_TRY_ASSIGN(wire::ShimHello hello, wire::body_as<wire::ShimHello>(message.body));
    if (hello.token != token_)
      return fail(ErrorCode::kPermission, "what listens there is not the shim of this attempt");
    NSA_TRY(wire::check_protocol(hello.protocol, "the shim (" + hello.build + ")",
                                 "start the nsad of that build, or end the run's ranks: nsactl "
                                 "cancel " +
                                     hello.run_id));
    if (received_fds_.size() != hello.ranks.size())
      return fail(ErrorCode::kCorrupt, "the shim sent " + std::to_string(received_fds_.size()) +
                                           " progress pages for " +
                                           std::to_string(hello.ranks.size()) + " ranks");
    for (auto& fd : received_fds_) {
      NSA_TRY_ASSIGN(progress::Page page, progress::Page::open(std::move(fd), false));
      pages_.push_back(std::move(page));
    }
    received_fds_.clear();
    greeted_ = true;
    // The shim forgets only acknowledged messages. If this ledger lacks them, an earlier ledger had
    // them and was lost.
    last_sequence_ = std::max(last_sequence_, std::max<uint64_t>(hello.first_sequence, 1) - 1);
    return {};
  }
  if (!greeted_) return fail(ErrorCode::kCorrupt, "the shim spoke before its hello");
  if (message.sequence != last_sequence_ + 1)
    return fail(ErrorCode::kCorrupt, "message " + std::to_string(message.sequence) +
                                         " from the shim where " +
                                         std::to_string(last_sequence_ + 1) + " was due");
  last_sequence_ = message.sequence;
  return {};
}

Result<ShimClient::Received> ShimClient::on_readable() {
  Received received;
  NSA_TRY_ASSIGN(const bool open, receive());
  received.closed = !open;
  while (true) {
    NSA_TRY_ASSIGN(auto frame, decoder_.next());
    if (!frame) return received;
    NSA_TRY_ASSIGN(wire::Message message, wire::decode_message(*frame));
    NSA_TRY(check(message));
    received.messages.push_back(std::move(message));
  }
}

Status ShimClient::acknowledge(uint64_t sequence) {
  return send(wire::MessageType::kAcknowledge, wire::Acknowledge{sequence});
}
Status ShimClient::stop_ranks(bool checkpoint) {
  return send(wire::MessageType::kStopRanks, wire::StopRanks{checkpoint});
}
Status ShimClient::kill_ranks(const std::string& reason) {
  return send(wire::MessageType::kKillRanks, wire::KillRanks{reason});
}
Status ShimClient::take_evidence(const wire::TakeEvidence& request) {
  return send(wire::MessageType::kTakeEvidence, request);
}
Status ShimClient::checkpoint_ranks() {
  return send(wire::MessageType::kCheckpointRanks, wire::CheckpointRanks{});
}
Status ShimClient::release() {
  return send(wire::MessageType::kRelease, wire::Release{});
}
Status ShimClient::say_goodbye() {
  return send(wire::MessageType::kDaemonGoodbye, wire::DaemonGoodbye{});
}

} // namespace nsa::shim
