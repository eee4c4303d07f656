// The training data of one rank: an endless, exactly resumable stream of micro-batches, assembled
// ahead of time by one thread of its own.
//
//   auto loader = Loader::open(options, resume);          // resume: DataState of a checkpoint
//   while (training)
//     for (int m = 0; m < accumulate; ++m) { auto batch = (*loader)->next(); ... }
//   checkpoint.data = (*loader)->state();
//
// One consumer thread calls next() and state(). The destructor stops the thread and joins it; a
// consumer that sits in next() must have returned. A batch may outlive the loader.
#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"
#include "worker/data/batch.h"
#include "worker/data/sample_order.h"
#include "worker/data/source.h"

#include <functional>
#include <memory>
#include <optional>

namespace nsa::data {

struct LoaderOptions {
  std::vector<Source> sources; // their train splits are read
  BatchShape shape;
  uint64_t seed = 0;
  int prefetch = 2;              // batches made ahead, >= 1
  int64_t shortest_sequence = 0; // a resume may change the length, down to this; 0: it may not
  AllocateBuffer allocate;       // empty: ordinary memory

  // Of a source that is followed: how often to look for new shards, whether rank 0's checksums are
  // computed, and how long to wait for a shard while nobody fetches.
  Duration look_every = std::chrono::milliseconds(250);
  dataset::Check check = dataset::Check::kSizes;
  Duration starved_limit = std::chrono::seconds(60);

  // Called by the loader's thread before it assembles a batch. For fault injection and tests: data
  // that come late are a callback that blocks. `stopping` says when to give up.
  std::function<void(int64_t step, int64_t micro_step, const std::function<bool()>& stopping)>
      before_batch;
};

struct LoaderStatistics {
  int64_t batches = 0;        // handed out
  int64_t waits = 0;          // next() calls that found nothing ready
  Duration wait_total{0};     // time next() spent waiting
  Duration wait_last{0};      // of the last call
  Duration assemble_total{0}; // the loader thread's own time
};

class Loader {
public:
  // A source that is followed stands alone, and has another order (follow_order.h).
  // Refuses: a data set without one sample; a shape out of range; a resume state of other data
  // sets, weights, seed or sequence length (the order would be another one), with both values in
  // the text.
  static Result<std::unique_ptr<Loader>> open(LoaderOptions options,
                                              const std::optional<DataState>& resume = {});
  ~Loader();

  // Before the micro-batches of a step, of a source that is followed: waits until the text of the
  // step has arrived, for all ranks at once. Calls `waiting` about each second. Fails when the text
  // cannot be read, or nobody fetches it any more.
  Status await_step(const std::function<void()>& waiting);

  // The next micro-batch, in the order (step, micro_step). Waits until it is there. The buffers
  // stay valid, and unchanged, for as long as the pointer is held.
  std::shared_ptr<const Batch> next();

  // Where a run that stops now must go on: after the last step whose micro-batches were all handed
  // out. A step that is only begun is repeated from its start.
  DataState state() const;

  // Sequences consumed since the run's very start.
  int64_t sequences_done() const;

  const LoaderStatistics& statistics() const;

private:
  struct Worker;
  explicit Loader(std::unique_ptr<Worker> worker);
  std::unique_ptr<Worker> worker_;
};

} // namespace nsa::data
