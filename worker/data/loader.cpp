#include "worker/data/loader.h"

#include "common/dataset/generations.h"
#include "worker/data/batch_builder.h"
#include "worker/data/follow_order.h"
#include "worker/data/mixture_order.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <thread>

namespace nsa::data {
namespace {

// Batches whose buffers are free for reuse. The pool is separate from the loader, because a batch
// may be released after the loader is destroyed.
struct BatchPool {
  std::mutex mutex;
  std::vector<std::unique_ptr<Batch>> free;
};

std::string folder_of(const Source& source) {
  return source.dataset->folder().string();
}

// Describes how the checkpoint's data differs from `sources`.
std::string other_text(const DataState& resume, const std::vector<Source>& sources) {
  const auto now = identities(sources);
  if (resume.sources.size() == now.size())
    for (size_t i = 0; i < now.size(); ++i) {
      const dataset::MixedSource& then = resume.sources[i];
      if (then.digest != now[i].digest)
        return "data set " + then.digest + " as source " + std::to_string(i) + ", " +
               folder_of(sources[i]) + " is " + now[i].digest;
      if (then.weight != now[i].weight)
        return "weight " + std::to_string(then.weight) + " of " + folder_of(sources[i]) +
               ", now it is " + std::to_string(now[i].weight);
    }
  const auto sources_text = [](size_t count) {
    return count == 0 ? std::string() : " of " + std::to_string(count) + " sources";
  };
  return "data set " + resume.dataset_digest + sources_text(resume.sources.size()) + ", " +
         (sources.size() == 1 ? folder_of(sources[0])
                              : std::to_string(sources.size()) + " sources") +
         " is " + digest_of(sources);
}

// The shards that the checkpoint was trained on must still be the first ones.
Status check_generations(const DataState& resume, const dataset::Dataset& data) {
  const auto read = static_cast<size_t>(resume.generations);
  if (resume.epoch > 0 && !data.complete())
    return fail(ErrorCode::kConflict,
                "the checkpoint has read all of the data set once, and " + data.folder().string() +
                    " is not complete",
                "resume the run when the fetch has ended");
  NSA_TRY_ASSIGN(const dataset::Manifest part,
                 dataset::generations({data.folder(), data.manifest(), data.complete()}, read));
  if (part.digest == resume.generations_digest) return {};
  return fail(ErrorCode::kConflict,
              "the checkpoint was trained on other shards: the first " + std::to_string(read) +
                  " of " + data.folder().string() + " have digest " + part.digest + ", not " +
                  resume.generations_digest,
              "bring them back, or begin a new run");
}

Status check_resume(const DataState& resume, const LoaderOptions& options) {
  if (resume.dataset_digest != digest_of(options.sources))
    return fail(ErrorCode::kConflict,
                "the checkpoint was trained on " + other_text(resume, options.sources),
                "train on the data that the run began with, or begin a new run");
  auto differs = [](const std::string& what, auto then, auto now) {
    return fail(ErrorCode::kConflict,
                "the checkpoint was trained with " + what + " " + std::to_string(then) +
                    ", now it is " + std::to_string(now) + ": the order of the text would change",
                "keep it, or begin a new run");
  };
  if (resume.seed != options.seed) return differs("seed", resume.seed, options.seed);
  const bool follows = !options.sources.front().followed.empty();
  if (follows != (resume.generations > 0))
    return differs("data.follow", static_cast<int>(resume.generations > 0),
                   static_cast<int>(follows));
  if (follows) NSA_TRY(check_generations(resume, *options.sources.front().dataset));
  const int64_t shortest = options.shortest_sequence;
  const bool may =
      shortest > 0 && std::min(resume.sequence_length, options.shape.sequence_length) >= shortest;
  if (resume.sequence_length != options.shape.sequence_length && !may)
    return differs("sequence length", resume.sequence_length, options.shape.sequence_length);
  return {};
}

int64_t train_tokens(const Source& source) {
  return source.dataset->tokens(dataset::Split::kTrain).size();
}

// With another sequence length the text has another order. The fraction of the text that was read
// stays the same.
Result<int64_t> first_sequence(const DataState& resume, const LoaderOptions& options,
                               const std::vector<MixtureOrder::Part>& parts) {
  const int64_t index = resume.index * resume.sequence_length / options.shape.sequence_length;
  if (parts.size() > 1) return index;
  if (resume.generations > 0) return resume.epoch * parts[0].samples + resume.index;
  const int64_t then = sample_count(train_tokens(options.sources[0]), resume.sequence_length);
  if (resume.index >= then)
    return fail(ErrorCode::kCorrupt, "the checkpoint stands at sequence " +
                                         std::to_string(resume.index) + " of an epoch of " +
                                         std::to_string(then));
  return resume.epoch * parts[0].samples + std::min(index, parts[0].samples - 1);
}

} // namespace

// Tokens are read through mmap, and every touched page counts as this rank's resident memory. So a
// run's memory would seem to grow to the size of its data set. A page fault also maps some pages
// around it.
constexpr size_t kMostMappedBytes = size_t{8} << 20, kMappedAroundBytes = size_t{64} << 10;

struct Loader::Worker {
  Worker(LoaderOptions given, const std::vector<MixtureOrder::Part>& parts, int64_t first_sequence)
      : options(std::move(given)), sources(options.sources),
        order(parts, options.shape.sequence_length, options.seed),
        epoch(parts.size() == 1 ? parts[0].samples : std::numeric_limits<int64_t>::max()),
        first(first_sequence) {
    if (sources.front().followed.empty()) return;
    following.emplace(options.shape.sequence_length, options.seed);
    take_generations();
  }

  void run();
  std::shared_ptr<Batch> assemble(int64_t step, int64_t micro_step);
  std::shared_ptr<Batch> take_free_batch();
  SequenceAddress address(int64_t sequence) const;

  // For a followed source:
  void take_generations();          // adds the generations that `following` lacks
  Status arrive(int64_t sequences); // waits until so many have arrived, or the loader stops
  bool nap();                       // sleeps until the next look; false: the loader stops
  void tell_generations(int64_t done, DataState& state);

  const LoaderOptions options;
  std::vector<Source> sources; // loader's thread only; a followed source is opened again as it
                               // grows
  const MixtureOrder order;
  const int64_t epoch; // sequences in one pass; a mixture has no such number
  const int64_t first; // the first sequence of this loader
  const std::shared_ptr<BatchPool> pool = std::make_shared<BatchPool>();

  std::mutex mutex;
  std::condition_variable ready, room;
  std::deque<std::shared_ptr<const Batch>> made;
  std::optional<FollowOrder> following; // the loader's thread writes it and `arrived`, under the
                                        // mutex
  dataset::Arrived arrived;
  std::optional<Error> failed; // if set, no batch follows
  bool stopping = false;
  Duration assemble_total{0};

  size_t mapped_bytes = 0; // loader's thread only: upper bound since pages were last released

  // Consumer's thread only.
  int64_t steps_done = 0;
  LoaderStatistics statistics;

  std::thread thread;
};

Result<std::unique_ptr<Loader>> Loader::open(LoaderOptions options,
                                             const std::optional<DataState>& resume) {
  NSA_TRY(check(options.shape));
  if (options.prefetch < 1) return fail(ErrorCode::kInvalidArgument, "prefetch must be at least 1");
  if (options.sources.empty())
    return fail(ErrorCode::kInvalidArgument, "the loader has no data set to read");
  std::vector<MixtureOrder::Part> parts;
  for (const Source& source : options.sources) {
    const int64_t tokens = train_tokens(source);
    parts.push_back({sample_count(tokens, options.shape.sequence_length), source.weight});
    if (parts.back().samples < 1)
      return fail(ErrorCode::kInvalidArgument,
                  "the train split of " + folder_of(source) + " has " + std::to_string(tokens) +
                      " tokens, a sequence needs " +
                      std::to_string(options.shape.sequence_length + 1),
                  "prepare more text, or train with a shorter sequence_length");
    if (source.weight < 1)
      return fail(ErrorCode::kInvalidArgument,
                  "the weight of " + folder_of(source) + " is " + std::to_string(source.weight));
  }
  int64_t first = 0;
  if (resume) {
    NSA_TRY(check_resume(*resume, options));
    NSA_TRY_ASSIGN(first, first_sequence(*resume, options, parts));
  }
  auto worker = std::make_unique<Worker>(std::move(options), parts, first);
  worker->thread = std::thread([w = worker.get()] { w->run(); });
  return std::unique_ptr<Loader>(new Loader(std::move(worker)));
}

Loader::Loader(std::unique_ptr<Worker> worker) : worker_(std::move(worker)) {}

Loader::~Loader() {
  {
    const std::scoped_lock lock(worker_->mutex);
    worker_->stopping = true;
  }
  worker_->room.notify_all();
  worker_->thread.join();
}

void Loader::Worker::run() {
  const auto is_stopping = [this] {
    const std::scoped_lock lock(mutex);
    return stopping;
  };
  for (int64_t step = 0;; ++step) {
    if (following)
      if (auto there = arrive(first + (step + 1) * options.shape.global_batch()); !there) {
        const std::scoped_lock lock(mutex);
        failed = std::move(there).error();
        ready.notify_one();
        return;
      }
    for (int64_t micro_step = 0; micro_step < options.shape.accumulate; ++micro_step) {
      if (options.before_batch) options.before_batch(step, micro_step, is_stopping);
      if (is_stopping()) return;
      const MonotonicTime start = MonotonicTime::now();
      std::shared_ptr<Batch> batch = assemble(step, micro_step);
      const Duration took = MonotonicTime::now() - start;
      std::unique_lock lock(mutex);
      assemble_total += took;
      room.wait(lock, [&] { return stopping || made.size() < size_t(options.prefetch); });
      if (stopping) return;
      made.push_back(std::move(batch));
      ready.notify_one();
    }
  }
}

std::shared_ptr<Batch> Loader::Worker::take_free_batch() {
  std::unique_ptr<Batch> batch;
  {
    const std::scoped_lock lock(pool->mutex);
    if (!pool->free.empty()) {
      batch = std::move(pool->free.back());
      pool->free.pop_back();
    }
  }
  if (!batch)
    batch = std::make_unique<Batch>(
        make_batch(options.shape.micro_batch, options.shape.sequence_length, options.allocate));
  return {batch.release(), [pool = pool](Batch* used) {
            const std::scoped_lock lock(pool->mutex);
            pool->free.emplace_back(used);
          }};
}

std::shared_ptr<Batch> Loader::Worker::assemble(int64_t step, int64_t micro_step) {
  std::shared_ptr<Batch> batch = take_free_batch();
  std::vector<SequenceAddress> addresses;
  for (int64_t row = 0; row < options.shape.micro_batch; ++row)
    addresses.push_back(address(first + step * options.shape.global_batch() +
                                place_in_step(options.shape, micro_step, row)));
  fill_batch(sources, dataset::Split::kTrain, addresses, *batch);
  batch->step = step;
  batch->micro_step = micro_step;
  mapped_bytes += addresses.size() *
                  (kMappedAroundBytes + sizeof(dataset::Token) * size_t(batch->sequence_length));
  if (mapped_bytes > kMostMappedBytes) {
    for (const Source& source : sources)
      source.dataset->let_go();
    mapped_bytes = 0;
  }
  return batch;
}

SequenceAddress Loader::Worker::address(int64_t sequence) const {
  return following ? following->at(sequence) : order.at(sequence);
}

void Loader::Worker::take_generations() {
  const dataset::Dataset& data = *sources.front().dataset;
  const std::scoped_lock lock(mutex);
  size_t number = 0;
  for (const dataset::ShardRecord& shard : data.manifest().shards)
    if (shard.split == dataset::Split::kTrain && number++ >= following->generations())
      following->add(shard.tokens);
  if (data.complete()) following->complete();
  arrived = {data.folder(), data.manifest(), data.complete()};
}

// Until all text has arrived, no epoch has ended.
void Loader::Worker::tell_generations(int64_t done, DataState& state) {
  const std::scoped_lock lock(mutex);
  const int64_t samples = following->samples();
  state.epoch = following->is_complete() ? done / samples : 0;
  state.index = following->is_complete() ? done % samples : done;
  const size_t read = following->read_by(done);
  state.generations = static_cast<int64_t>(read);
  const auto part = dataset::generations(arrived, read);
  if (part) state.generations_digest = part->digest;
}

bool Loader::Worker::nap() {
  std::unique_lock lock(mutex);
  return !room.wait_for(lock, options.look_every, [&] { return stopping; });
}

Status Loader::Worker::arrive(int64_t sequences) {
  Source& source = sources.front();
  MonotonicTime fetched_at = MonotonicTime::now();
  while (!following->has(sequences)) {
    const bool fetched = dataset::is_fetched_now(source.followed);
    NSA_TRY_ASSIGN(source.dataset,
                   dataset::open_arrived(source.followed, options.check, source.dataset.get()));
    take_generations();
    if (following->has(sequences)) break;
    const MonotonicTime now = MonotonicTime::now();
    if (fetched) fetched_at = now;
    if (now - fetched_at >= options.starved_limit)
      return fail(ErrorCode::kUnavailable,
                  "the text of sequence " + std::to_string(sequences - 1) + " is not in " +
                      source.followed.string() + ", and nobody fetches it",
                  "continue the fetch with the same nsactl data fetch, then resume the run");
    if (!nap()) break;
  }
  return {};
}

Status Loader::await_step(const std::function<void()>& waiting) {
  Worker& worker = *worker_;
  std::unique_lock lock(worker.mutex);
  if (!worker.following) return {};
  const auto is_over = [&] { return !worker.made.empty() || worker.failed; };
  // Assembling a batch never takes this long.
  for (Duration patience = worker.options.look_every;
       !worker.ready.wait_for(lock, patience, is_over); patience = std::chrono::seconds(1)) {
    lock.unlock();
    waiting();
    lock.lock();
  }
  if (worker.made.empty()) return fail(*worker.failed);
  return {};
}

std::shared_ptr<const Batch> Loader::next() {
  Worker& worker = *worker_;
  const MonotonicTime start = MonotonicTime::now();
  std::unique_lock lock(worker.mutex);
  const bool waited = worker.made.empty();
  worker.ready.wait(lock, [&] { return !worker.made.empty(); });
  std::shared_ptr<const Batch> batch = std::move(worker.made.front());
  worker.made.pop_front();
  worker.statistics.assemble_total = worker.assemble_total;
  lock.unlock();
  worker.room.notify_one();
  worker.statistics.wait_last = waited ? MonotonicTime::now() - start : Duration{0};
  worker.statistics.wait_total += worker.statistics.wait_last;
  worker.statistics.waits += waited;
  ++worker.statistics.batches;
  if (batch->micro_step == worker.options.shape.accumulate - 1) worker.steps_done = batch->step + 1;
  return batch;
}

DataState Loader::state() const {
  const LoaderOptions& options = worker_->options;
  DataState state;
  state.seed = options.seed;
  state.sequence_length = options.shape.sequence_length;
  state.dataset_digest = digest_of(options.sources);
  if (!options.sources.front().followed.empty()) {
    worker_->tell_generations(sequences_done(), state);
    return state;
  }
  state.epoch = sequences_done() / worker_->epoch;
  state.index = sequences_done() % worker_->epoch;
  if (options.sources.size() > 1) state.sources = identities(options.sources);
  return state;
}

int64_t Loader::sequences_done() const {
  return worker_->first + worker_->steps_done * worker_->options.shape.global_batch();
}

const LoaderStatistics& Loader::statistics() const {
  return worker_->statistics;
}

} // namespace nsa::data
