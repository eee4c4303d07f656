#include "daemon/api/background.h"

namespace nsa::api {

namespace {
constexpr size_t kMaxWaiting = 16;
}

Background::~Background() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool Background::submit(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  if (jobs_.size() >= kMaxWaiting) return false;
  jobs_.push_back(std::move(job));
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  wake_.notify_one();
  return true;
}

void Background::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (stop_) return;
    const auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
  }
}

} // namespace nsa::api
