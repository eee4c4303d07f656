// Blocking work off the loop: a few threads do it, and the result comes back to the loop. For reads
// of files that somebody else owns or that are large, and for whatever else may wait for a disk.
//
// A read from a dead network file system cannot be cancelled. So a job that is not done in time is
// answered with an error while its thread stays behind, and a new thread takes that one's place.
// How many may stay behind is bounded, in all and for each owner: past it, that owner's jobs are
// refused.
//
//   run() --> waiting --> running --> done            a thread at a time, first come, first served
//                            |
//                            +--(time limit)--> done(error), stuck --> given up when it returns
//
// All calls and all `done` callbacks belong to the loop's thread; only `work` runs elsewhere, so it
// takes values and no references. Destruction forgets what waits, never calls `done` again, and
// leaves alone a thread that does not return.
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
  size_t threads = 4;                       // that work at a time
  size_t threads_of_owner = 2;              // of one owner's jobs, those that hang among them
  size_t stuck = 8;                         // that may stay behind, in all
  size_t jobs_of_owner = 64;                // waiting and running
  Duration time = std::chrono::seconds(10); // of a job, its wait included; zero: none
};

class Offload {
public:
  struct Job {
    std::string owner; // whose files it touches ("ann"): one owner's never keep off another's
                       // empty: nsad's own, as many as there are threads
    std::string what;  // for errors and the log: "the data set in /data/x"
  };

  Offload(EventLoop& loop, OffloadLimits limits = {});
  ~Offload();
  Offload(const Offload&) = delete;
  Offload& operator=(const Offload&) = delete;

  // `work` gives an R. `done` takes a Result<R>; if R is itself a Result<T>, a Result<T>. Its error
  // is that of the work, kUnavailable (not done in time, or the owner's reads are stuck) or
  // kExhausted (too many jobs). `done` is called exactly once, never from inside run().
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

  size_t stuck() const; // threads that have not come back

private:
  using Work = std::function<std::shared_ptr<void>()>;
  using Deliver = std::function<void(Result<std::shared_ptr<void>>)>;
  void start(Job job, Work work, Deliver deliver);

  struct Shared;
  struct Side;
  std::shared_ptr<Shared> shared_; // with the threads
  std::shared_ptr<Side> side_;     // the loop's own
};

} // namespace nsa::net
