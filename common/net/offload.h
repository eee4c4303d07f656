// Runs blocking work on a few threads and returns the results to the loop. It is for reads of large
// files or of files that other users own, and for other waits for a disk.
//
// A read from an unresponsive network file system cannot be cancelled. So a job that exceeds its
// time limit gets an error, its thread is counted as stuck, and a new thread replaces it. The
// number of stuck threads is limited in total and for each owner. Above the limit, that owner's
// jobs are refused.
//
//   run() --> waiting --> running --> done            a thread at a time, first come, first served
//                            |
//                            +--(time limit)--> done(error), stuck --> given up when it returns
//
// All calls and all `done` callbacks are on the loop's thread. Only `work` runs elsewhere, so it
// must hold values and no references. The destructor drops waiting jobs, never calls `done`
// afterwards, and does not wait for stuck threads.
#pragma once

#include "common/base/result.h"
#include "common/net/event_loop.h"

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace nsa::net {

struct OffloadLimits {
  size_t threads = 4;                       // threads that work at the same time
  size_t threads_of_owner = 2;              // threads with one owner's jobs, stuck ones included
  size_t stuck = 8;                         // stuck threads in total
  size_t jobs_of_owner = 64;                // waiting and running jobs
  Duration time = std::chrono::seconds(10); // for each job, including its wait; zero: no limit
};

class Offload {
public:
  struct Job {
    std::string owner; // whose files it reads ("ann"), so that owners do not block each other;
                       // empty: nsad's own, which may use all threads
    std::string what;  // for errors and the log: "the data set in /data/x"
  };

  Offload(EventLoop& loop, OffloadLimits limits = {});
  ~Offload();
  Offload(const Offload&) = delete;
  Offload& operator=(const Offload&) = delete;

  // `work` returns an R. `done` takes a Result<R>; if R is itself a Result<T>, it takes a
  // Result<T>. The error is that of the work, kUnavailable (time limit exceeded, or the owner's
  // reads are stuck) or kExhausted (too many jobs). `done` is called exactly once, never from
  // inside run().
  template <class Work, class Done> void run(Job job, Work work, Done done) {
    using R = std::invoke_result_t<Work>;
    start(
        std::move(job),
        [work = std::move(work)]() mutable -> std::shared_ptr<void> {
          return std::make_shared<R>(work());
        },
        [done = std::move(done)](Result<std::shared_ptr<void>> made) mutable {
          if (!made)
            done(fail(std::move(made).error()));
          else
            done(std::move(*static_cast<R*>(made->get())));
        });
  }

  size_t stuck() const; // number of stuck threads

private:
  using Work = std::function<std::shared_ptr<void>()>;
  using Deliver = std::function<void(Result<std::shared_ptr<void>>)>;
  void start(Job job, Work work, Deliver deliver);

  struct Shared;
  struct Side;
  std::shared_ptr<Shared> shared_; // shared with the threads
  std::shared_ptr<Side> side_;     // loop's thread only
};

} // namespace nsa::net
