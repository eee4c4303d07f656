#include "common/net/offload.h"

#include "common/base/log.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

namespace nsa::net {

namespace {
// Gives a job that is nearly done time to finish, without delaying the daemon's exit for a stuck
// one.
constexpr Duration kEndLimit = std::chrono::milliseconds(200);
} // namespace

// The loop's state of each job without a result yet.
struct Offload::Side {
  struct Pending {
    Deliver deliver;
    Timer limit;
  };
  std::map<uint64_t, Pending> pending;
  uint64_t newest = 0;

  void answer(uint64_t id, Result<std::shared_ptr<void>> result) {
    const auto found = pending.find(id);
    if (found == pending.end()) return; // it already got a time-out error
    const Pending job = std::move(found->second);
    pending.erase(found); // before deliver(), which may start another job
    job.deliver(std::move(result));
  }
};

// State shared with the threads, protected by the mutex.
struct Offload::Shared {
  struct Waiting {
    uint64_t id;
    Job job;
    Work work;
  };
  struct Running {
    Job job;
    MonotonicTime since;
    bool stuck = false;
  };

  std::mutex mutex;
  std::condition_variable wake, ended;
  EventLoop* loop; // null after the destructor
  std::weak_ptr<Side> side;
  OffloadLimits limits;
  std::deque<Waiting> waiting;
  std::map<uint64_t, Running> running;
  size_t threads = 0, idle = 0, stuck = 0;

  size_t running_of(const std::string& owner) const {
    return static_cast<size_t>(std::count_if(running.begin(), running.end(), [&](const auto& r) {
      return r.second.job.owner == owner;
    }));
  }
  size_t stuck_of(const std::string& owner) const {
    return static_cast<size_t>(std::count_if(running.begin(), running.end(), [&](const auto& r) {
      return r.second.stuck && r.second.job.owner == owner;
    }));
  }
  size_t waiting_of(const std::string& owner) const {
    return static_cast<size_t>(std::count_if(waiting.begin(), waiting.end(),
                                             [&](const auto& w) { return w.job.owner == owner; }));
  }

  // Returns the first job whose owner may use another thread.
  std::deque<Waiting>::iterator next() {
    return std::find_if(waiting.begin(), waiting.end(), [this](const Waiting& w) {
      return w.job.owner.empty() || running_of(w.job.owner) < limits.threads_of_owner;
    });
  }

  // Returns why this job is refused, or nullopt.
  std::optional<Error> refusal(const Job& job) const {
    const bool none_left = !job.owner.empty() && stuck_of(job.owner) >= limits.threads_of_owner;
    if (none_left || stuck >= limits.stuck)
      return Error{ErrorCode::kUnavailable,
                   job.what + " is not read while earlier reads hang: " + oldest_stuck(job.owner),
                   "look at the file system that they lie on, and try again"};
    if (running_of(job.owner) + waiting_of(job.owner) >= limits.jobs_of_owner)
      return Error{ErrorCode::kExhausted, "too many reads wait already", "try again"};
    return std::nullopt;
  }

  std::string oldest_stuck(const std::string& owner) const {
    const Running* oldest = nullptr;
    for (const auto& [id, job] : running)
      if (job.stuck &&
          (oldest == nullptr || (job.job.owner == owner && oldest->job.owner != owner)))
        oldest = &job;
    return oldest == nullptr ? "" : oldest->job.what;
  }

  void work();
  static void ensure_thread(const std::shared_ptr<Shared>& self);
};

void Offload::Shared::ensure_thread(const std::shared_ptr<Shared>& self) {
  if (self->idle >= self->waiting.size() || self->threads - self->stuck >= self->limits.threads)
    return;
  try {
    std::thread([self] { self->work(); }).detach();
    ++self->threads;
  } catch (const std::system_error& error) {
    log::error("net", "cannot start a thread", {{"why", error.what()}});
  }
}

void Offload::Shared::work() {
  std::unique_lock lock(mutex);
  while (true) {
    ++idle;
    wake.wait(lock, [this] { return loop == nullptr || next() != waiting.end(); });
    --idle;
    if (loop == nullptr) break;
    const auto chosen = next();
    const uint64_t id = chosen->id;
    Work work = std::move(chosen->work);
    running[id] = {std::move(chosen->job), MonotonicTime::now()};
    waiting.erase(chosen);
    lock.unlock();
    std::shared_ptr<void> result;
    std::string thrown;
    try {
      result = work();
    } catch (const std::exception& error) {
      thrown = error.what();
    }
    work = nullptr; // destroys its captures here, not under the lock
    lock.lock();
    const Running job = std::move(running.at(id));
    running.erase(id);
    if (job.stuck) {
      --stuck;
      log::info("net", "a read that was given up has come back",
                {{"what", job.job.what},
                 {"seconds", std::to_string(to_seconds(MonotonicTime::now() - job.since))}});
    }
    if (loop != nullptr)
      loop->post([weak = side, id, what = job.job.what, result = std::move(result),
                  thrown = std::move(thrown)]() mutable {
        const auto there = weak.lock();
        if (!there) return;
        if (result) return there->answer(id, std::move(result));
        there->answer(id, fail(ErrorCode::kInternal, what + ": " + thrown));
      });
    if (threads - stuck > limits.threads) break; // another thread has replaced this one
  }
  --threads;
  ended.notify_all();
}

Offload::Offload(EventLoop& loop, OffloadLimits limits)
    : shared_(std::make_shared<Shared>()), side_(std::make_shared<Side>()) {
  shared_->loop = &loop;
  shared_->side = side_;
  shared_->limits = limits;
}

Offload::~Offload() {
  std::deque<Shared::Waiting> dropped;
  std::unique_lock lock(shared_->mutex);
  shared_->loop = nullptr;
  dropped.swap(shared_->waiting);
  shared_->wake.notify_all();
  shared_->ended.wait_for(lock, kEndLimit, [this] { return shared_->threads == shared_->stuck; });
}

size_t Offload::stuck() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->stuck;
}

void Offload::start(Job job, Work work, Deliver deliver) {
  const uint64_t id = ++side_->newest;
  const std::lock_guard lock(shared_->mutex);
  EventLoop& loop = *shared_->loop;
  Side::Pending& pending = side_->pending[id];
  pending.deliver = std::move(deliver);
  if (auto refused = shared_->refusal(job)) {
    loop.post([weak = std::weak_ptr(side_), id, error = std::move(*refused)] {
      if (const auto side = weak.lock()) side->answer(id, fail(error));
    });
    return;
  }
  if (shared_->limits.time > Duration::zero())
    pending.limit = loop.after(shared_->limits.time, [shared = shared_, side = side_.get(), id] {
      Error error{ErrorCode::kUnavailable, "", "look at the file system that it lies on"};
      {
        const std::lock_guard inner(shared->mutex);
        const auto waits = std::find_if(shared->waiting.begin(), shared->waiting.end(),
                                        [id](const Shared::Waiting& w) { return w.id == id; });
        const auto runs = shared->running.find(id);
        if (waits != shared->waiting.end()) {
          error.what = waits->job.what + " was not read in time: others were first";
          error.next = "try again";
          shared->waiting.erase(waits);
        } else if (runs != shared->running.end()) {
          error.what = runs->second.job.what + " could not be read in time";
          runs->second.stuck = true;
          ++shared->stuck;
          log::warning("net", "a read has not come back; it is given up",
                       {{"what", runs->second.job.what}, {"stuck", std::to_string(shared->stuck)}});
          if (!shared->waiting.empty()) Shared::ensure_thread(shared);
        } else {
          return; // its result is already posted
        }
      }
      side->answer(id, fail(std::move(error)));
    });
  shared_->waiting.push_back({id, std::move(job), std::move(work)});
  Shared::ensure_thread(shared_);
  shared_->wake.notify_one();
}

} // namespace nsa::net
