// One thread for slow reads that a request asks for (checkpoint verification): jobs run one after
// the other, results go back by EventLoop::post. Destruction waits for the job that is running and
// drops the others.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace nsa::api {

class Background {
public:
  Background() = default;
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // Starts the thread at the first call. Any thread. False: too many jobs wait already.
  bool submit(std::function<void()> job);

private:
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool stop_ = false;
  std::thread thread_;
};

} // namespace nsa::api
