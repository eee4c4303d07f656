#include "daemon/shim/rank_process.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "daemon/proc/procfs.h"
#include "daemon/shim/client/attempt_files.h"

#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace nsa::shim {

namespace {

using namespace std::chrono_literals;

constexpr size_t kReadBytes = 64 * 1024;
constexpr int kReadsATurn = 4; // a limit, so that one flooding rank does not starve the others
constexpr int kPipeBytes = 1 << 20;
// More than a pipe holds. The limit is for a grandchild that continues to write.
constexpr int kReadsAtEnd = 64;
constexpr auto kPartialDelay = 500ms; // a line without an end is shown after this delay
constexpr auto kReportDelay = 1s;     // between reports of dropped log bytes
constexpr size_t kMaxQueued = 64 * 1024;

// One buffer for the whole process is enough: there is one thread, and nothing stays in it.
char read_buffer[kReadBytes];

} // namespace

RankProcess::RankProcess(EventLoop& loop, const wire::LaunchPlan& plan,
                         const wire::RankLaunch& launch, Events events)
    : loop_(loop), plan_(plan), launch_(launch), events_(std::move(events)),
      log_(launch.log_path, plan.log_max_bytes, plan.log_files),
      quota_(plan.quotas, MonotonicTime::now()) {}

RankProcess::~RankProcess() {
  if (flush_timer_) loop_.cancel(*flush_timer_);
  if (report_timer_) loop_.cancel(*report_timer_);
  for (const UniqueFd* fd : {&out_.fd, &err_.fd, &link_})
    if (fd->valid()) loop_.unwatch(fd->get());
}

Status RankProcess::prepare() {
  NSA_TRY_ASSIGN(progress::Page page, progress::Page::create(launch_.rank, plan_.attempt));
  page_ = std::move(page);
  return make_folder(std::filesystem::path(launch_.log_path).parent_path(), 0750);
}

Status RankProcess::start(int store_fd, int cgroup_fd,
                          const std::map<std::string, std::string>& passed) {
  int out[2], err[2], link[2];
  if (::pipe2(out, O_CLOEXEC) != 0) return fail_errno("cannot make a log pipe");
  out_.fd.reset(out[0]);
  UniqueFd child_out(out[1]);
  if (::pipe2(err, O_CLOEXEC) != 0) return fail_errno("cannot make a log pipe");
  err_.fd.reset(err[0]);
  UniqueFd child_err(err[1]);
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, link) != 0)
    return fail_errno("cannot make a rank's link");
  link_.reset(link[0]);
  UniqueFd child_link(link[1]);
  // Our ends must not block. The rank decides about its own ends (a worker sets its link itself).
  for (const UniqueFd* fd : {&out_.fd, &err_.fd, &link_})
    if (::fcntl(fd->get(), F_SETFL, O_NONBLOCK) != 0)
      return fail_errno("cannot make a descriptor non-blocking");
  // A larger pipe absorbs output while the disk stalls for seconds during a checkpoint flush. The
  // kernel refuses the size beyond a user's share of pipe memory; then the default of 64 KiB
  // remains.
  for (const UniqueFd* fd : {&out_.fd, &err_.fd})
    ::fcntl(fd->get(), F_SETPIPE_SZ, kPipeBytes);
  UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null) return fail_errno("cannot open /dev/null");

  proc::LaunchSpec spec;
  spec.arguments = launch_.arguments;
  for (const auto& [name, value] : launch_.environment)
    spec.environment.push_back(name + "=" + value);
  for (const auto& [name, value] : passed)
    if (launch_.environment.count(name) == 0) spec.environment.push_back(name + "=" + value);
  spec.environment.push_back(attempt_mark(plan_.token));
  spec.environment.push_back(part_mark(plan_));
  spec.working_folder = launch_.working_folder;
  spec.descriptors = {{null.get(), 0},
                      {child_out.get(), 1},
                      {child_err.get(), 2},
                      {child_link.get(), wire::kRankLinkFd},
                      {page_->fd(), wire::kRankPageFd}};
  if (store_fd >= 0) spec.descriptors.push_back({store_fd, wire::kRankStoreFd});
  spec.new_process_group = true;
  // Ranks without a parent would hold their GPUs unsupervised. The shim has one thread, so the
  // signal comes when the shim dies and not before.
  spec.parent_death_signal = SIGKILL;
  spec.traceable_by_parent = true;
  // Under memory pressure a rank dies before the shim, nsad and the login shell.
  spec.oom_score_adjust = 500;
  spec.cgroup_fd = cgroup_fd;
  auto child = proc::launch(spec);
  if (!child)
    return fail(std::move(child).error().within("starting rank " + std::to_string(launch_.rank)));
  child_ = std::move(*child);
  if (const auto stat = proc::read_stat(child_.pid)) start_time_ticks_ = stat->start_time_ticks;
  return watch();
}

Status RankProcess::watch() {
  for (Pipe* pipe : {&out_, &err_})
    NSA_TRY(loop_.watch(pipe->fd.get(), EPOLLIN,
                        [this, pipe](uint32_t) { read_pipe(*pipe, kReadsATurn); }));
  return loop_.watch(link_.get(), EPOLLIN, [this](uint32_t events) {
    if ((events & EPOLLOUT) != 0) write_link();
    if ((events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) read_link();
  });
}

wire::RankIdentity RankProcess::identity() const {
  wire::RankIdentity identity;
  identity.rank = launch_.rank;
  identity.pid = child_.pid;
  identity.start_time_ticks = start_time_ticks_;
  identity.running = running();
  if (exit_) {
    identity.exit_code = exit_->exit_code;
    identity.signal = exit_->signal;
  }
  return identity;
}

void RankProcess::kill() {
  if (!running()) return;
  killed_ = true;
  // The process is not reaped yet, so neither its pid nor its group can have been reused.
  ::kill(-child_.pid, SIGKILL);
  [[maybe_unused]] const auto gone = proc::send_signal(child_.pidfd.get(), SIGKILL);
}

wire::RankExited RankProcess::reap() {
  // This must precede the reaping: the zombie still reserves the group's number.
  ::kill(-child_.pid, SIGKILL);
  for (Pipe* pipe : {&out_, &err_})
    if (*pipe) read_pipe(*pipe, kReadsAtEnd);
  log_.flush_partial(WallTime::now());
  report_dropped();
  if (link_) read_link();
  if (link_) close_link({});
  wire::RankExited exited;
  exited.rank = launch_.rank;
  exited.pid = child_.pid;
  exited.monotonic_ns = MonotonicTime::now().nanoseconds;
  exited.killed_by_shim = killed_;
  if (const auto status = proc::wait_child(child_.pidfd.get()); status && *status) {
    exited.exit_code = (*status)->exit_code;
    exited.signal = (*status)->signal;
    exited.core_dumped = (*status)->core_dumped;
    exited.user_seconds = (*status)->user_seconds;
    exited.system_seconds = (*status)->system_seconds;
    exited.max_resident_bytes = (*status)->max_resident_bytes;
  }
  exit_ = exited;
  return exited;
}

void RankProcess::read_pipe(Pipe& pipe, int max_reads) {
  const WallTime now = WallTime::now();
  for (int i = 0; i < max_reads && pipe; ++i) {
    const ssize_t got = ::read(pipe.fd.get(), read_buffer, kReadBytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0) {
      close_pipe(pipe);
      break;
    }
    const auto bytes = static_cast<size_t>(got);
    if (quota_.take_log(bytes, MonotonicTime::now())) {
      log_.feed(pipe.stream, {read_buffer, bytes}, now);
    } else {
      log_.skip(bytes, quota_.why_no_log(), now);
      refuse("log bytes", bytes, quota_.why_no_log());
    }
  }
  schedule_flush();
  if (!report_timer_)
    if (auto dropped = log_.take_dropped(); dropped.bytes > 0) {
      events_.on_dropped(launch_.rank, std::move(dropped));
      report_timer_ = loop_.after(kReportDelay, [this] {
        report_timer_.reset();
        report_dropped();
      });
    }
}

void RankProcess::refuse(const std::string& what, uint64_t count, const std::string& why) {
  events_.on_refused(launch_.rank, what, count, why);
}

void RankProcess::report_dropped() {
  if (auto dropped = log_.take_dropped(); dropped.bytes > 0)
    events_.on_dropped(launch_.rank, std::move(dropped));
}

void RankProcess::close_pipe(Pipe& pipe) {
  loop_.unwatch(pipe.fd.get());
  pipe.fd.reset();
  if (pipes_closed()) log_.flush_partial(WallTime::now());
}

void RankProcess::schedule_flush() {
  if (flush_timer_ || !log_.has_partial()) return;
  flush_timer_ = loop_.after(kPartialDelay, [this] {
    flush_timer_.reset();
    log_.flush_partial(WallTime::now());
  });
}

void RankProcess::read_link() {
  bool ended = false;
  for (int i = 0; i < kReadsATurn * 4 && !ended; ++i) {
    const ssize_t got = ::read(link_.get(), read_buffer, kReadBytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    ended = got <= 0;
    if (!ended) decoder_.feed({read_buffer, static_cast<size_t>(got)});
  }
  const MonotonicTime now = MonotonicTime::now();
  while (true) {
    auto frame = decoder_.next();
    if (!frame) return close_link(frame.error().what);
    if (!*frame) break;
    // The quota is checked before the message is parsed, so that a flood costs as little as
    // possible.
    const auto type = static_cast<wire::MessageType>((*frame)->type);
    if (!quota_.take_message(type, (*frame)->body.size(), now)) {
      refuse(RankQuota::class_of(type), 1, quota_.why_not(type));
      continue;
    }
    auto message = wire::decode_message(**frame, wire::kMaxRankDepth);
    if (message)
      events_.on_message(launch_.rank, std::move(*message));
    else // the frame itself is whole, so the next frame begins where expected
      refuse("malformed frames", 1, message.error().what);
  }
  if (ended) close_link({});
}

void RankProcess::close_link(const std::string& why) {
  if (!why.empty())
    log::warning("shim", "closing the link of a rank",
                 {{"rank", std::to_string(launch_.rank)}, {"why", why}});
  loop_.unwatch(link_.get());
  link_.reset();
  outgoing_.clear();
}

void RankProcess::send(const std::string& frame) {
  if (!link_ || outgoing_.size() > kMaxQueued) return;
  outgoing_ += frame;
  write_link();
}

void RankProcess::write_link() {
  while (!outgoing_.empty()) {
    const ssize_t put = ::send(link_.get(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    // The peer has gone; the read side handles it.
    if (put < 0 && errno != EAGAIN) outgoing_.clear();
    if (put <= 0) break;
    outgoing_.erase(0, static_cast<size_t>(put));
  }
  const uint32_t wanted = outgoing_.empty() ? 0 : static_cast<uint32_t>(EPOLLOUT);
  [[maybe_unused]] const auto changed = loop_.change(link_.get(), EPOLLIN | wanted);
}

} // namespace nsa::shim
