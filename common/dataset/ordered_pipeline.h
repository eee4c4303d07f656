// One producer, several workers, one consumer. Results come out in the order in which items went
// in, and the number of items in flight is bounded. Results do not depend on the number of workers.
//
// The producer's thread calls push() and close(), the consumer's thread next(); any thread may call
// stop(). The destructor stops and joins the workers; the producer must have returned.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

namespace nsa::dataset {

template <class In, class Out> class OrderedPipeline {
public:
  // At most `in_flight` items are queued, in work or waiting for the consumer. `work` must not
  // throw.
  OrderedPipeline(int threads, int64_t in_flight, std::function<Out(In&&)> work)
      : in_flight_(in_flight), work_(std::move(work)) {
    for (int i = 0; i < threads; ++i)
      workers_.emplace_back([this] { run(); });
  }

  ~OrderedPipeline() { stop(); }

  // Waits for room. Returns false once stopped; the producer must then end.
  bool push(In item) {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return stopped_ || pushed_ - taken_ < in_flight_; });
    if (stopped_) return false;
    todo_.push_back({pushed_++, std::move(item)});
    work_ready_.notify_one();
    return true;
  }

  // Says that the producer will push no more.
  void close() {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
    work_ready_.notify_all();
    result_ready_.notify_all();
  }

  // Returns the next result; nullopt after the last one, after stop(), or if `token` requests a
  // stop.
  std::optional<Out> next(const std::stop_token& token) {
    std::unique_lock lock(mutex_);
    result_ready_.wait(lock, token, [&] {
      return stopped_ || done_.contains(taken_) || (closed_ && taken_ == pushed_);
    });
    if (stopped_ || token.stop_requested() || !done_.contains(taken_)) return std::nullopt;
    Out result = std::move(done_.extract(taken_).mapped());
    ++taken_;
    room_.notify_one();
    return result;
  }

  void stop() {
    const std::scoped_lock lock(mutex_);
    stopped_ = true;
    room_.notify_all();
    work_ready_.notify_all();
    result_ready_.notify_all();
  }

private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      work_ready_.wait(lock, [&] { return stopped_ || closed_ || !todo_.empty(); });
      if (stopped_ || (closed_ && todo_.empty())) return;
      auto [number, item] = std::move(todo_.front());
      todo_.pop_front();
      lock.unlock();
      Out result = work_(std::move(item));
      lock.lock();
      done_.emplace(number, std::move(result));
      result_ready_.notify_one();
    }
  }

  const int64_t in_flight_;
  const std::function<Out(In&&)> work_;
  std::mutex mutex_;
  std::condition_variable room_, work_ready_;
  std::condition_variable_any result_ready_; // waits with a stop token
  std::deque<std::pair<int64_t, In>> todo_;
  std::map<int64_t, Out> done_;
  int64_t pushed_ = 0, taken_ = 0;
  bool closed_ = false, stopped_ = false;
  std::vector<std::jthread> workers_; // last member: joined before the others are destroyed
};

} // namespace nsa::dataset
