// Loader gives the training data of one rank: an endless, exactly resumable stream of
// micro-batches. Its own thread assembles them ahead of time.
//
//   auto loader = Loader::open(options, resume);          // resume: DataState of a checkpoint
//   while (training)
//     for (int m = 0; m < accumulate; ++m) { auto batch = (*loader)->next(); ... }
//   checkpoint.data = (*loader)->state();
//
// One consumer thread calls next() and state(). The destructor stops the loader's thread and joins
// it; no call of next() may be running. A batch may outlive the loader.
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
  std::vector<Source> sources; // the loader reads their train splits
  BatchShape shape;
  uint64_t seed = 0;
  int prefetch = 2;              // number of batches made ahead, >= 1
  int64_t shortest_sequence = 0; // a resume may shorten sequences down to this; 0: it may not
                                 // change them
  AllocateBuffer allocate;       // empty: ordinary memory

  // For a followed source. The values say how often to look for new shards, whether to verify
  // checksums (rank 0 does), and how long to wait if no fetch runs.
  Duration look_every = std::chrono::milliseconds(250);
  dataset::Check check = dataset::Check::kSizes;
  Duration starved_limit = std::chrono::seconds(60);

  // The loader's thread calls it before it assembles a batch. For fault injection and tests: it
  // simulates late data by blocking. It must return once `stopping` returns true.
  std::function<void(int64_t step, int64_t micro_step, const std::function<bool()>& stopping)>
      before_batch;
};

struct LoaderStatistics {
  int64_t batches = 0;        // handed out
  int64_t waits = 0;          // calls of next() that found no batch ready
  Duration wait_total{0};     // time next() spent waiting
  Duration wait_last{0};      // waiting time of the last call
  Duration assemble_total{0}; // time of the loader's thread
};

class Loader {
public:
  // A followed source must be the only one, and has another order (follow_order.h). Fails for a
  // data set without one sample, and for a shape out of range. Also fails for a resume state of
  // other data sets, weights, seed or sequence length, because the order would differ. The error
  // names both values.
  static Result<std::unique_ptr<Loader>> open(LoaderOptions options,
                                              const std::optional<DataState>& resume = {});
  ~Loader();

  // Call it before the micro-batches of a step. For a followed source, it waits until the text of
  // the step has arrived for all ranks, and calls `waiting` about once a second. Fails if the text
  // cannot be read, or if nobody fetches it any more.
  Status await_step(const std::function<void()>& waiting);

  // Returns the next micro-batch, in the order (step, micro_step), and waits until it is ready. The
  // buffers stay valid and unchanged while the pointer is held.
  std::shared_ptr<const Batch> next();

  // Returns where a run that stops now must resume: after the last step whose micro-batches were
  // all handed out. A step that has only begun is repeated from its start.
  DataState state() const;

  // Returns the number of sequences consumed since the start of the run.
  int64_t sequences_done() const;

  const LoaderStatistics& statistics() const;

private:
  struct Worker;
  explicit Loader(std::unique_ptr<Worker> worker);
  std::unique_ptr<Worker> worker_;
};

} // namespace nsa::data
