#include "worker/bootstrap/session.h"

#include "common/base/build_info.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/spec/spec_json.h"
#include "common/spec/toggles.h"
#include "common/spec/toml_reader.h"
#include "common/spec/worker_toggles.h"
#include "worker/bootstrap/data_sources.h"
#include "worker/bootstrap/decoding.h"
#include "worker/bootstrap/starting_checkpoint.h"
#include "worker/comm/watched_collectives.h"
#include "worker/faults/fault_hook.h"
#include "worker/link/flight_record_writer.h"
#include "worker/model/kernel_setup.h"
#include "worker/model/model_loss.h"
#include "worker/model/shared_context.h"
#include "worker/process_info/process_info.h"
#include "worker/rules/model_setup.h"
#include "worker/rules/precision.h"
#include "worker/rules/toggle_report.h"
#include "worker/runtime/out_of_memory.h"
#include "worker/telemetry/metrics_log.h"
#include "worker/telemetry/tensorboard_sink.h"
#include "worker/trainer/trainer.h"

#include <future>
#include <malloc.h>
#include <thread>
#include <unistd.h>

namespace nsa::train {

using progress::Phase;
using wire::RankExit;

namespace {

// Seconds that this rank waits for peers beyond nsad's limits, before it gives up by itself.
constexpr double kAfterVerdictSeconds = 30;

std::string build_name() {
  return build_info().version + "+" + build_info().commit;
}

// Returns for example "cuda 13.0, libtorch 2.11.0".
std::string listed(const std::map<std::string, std::string>& values) {
  std::vector<std::string> each;
  for (const auto& [name, value] : values)
    each.push_back(name + " " + value);
  return join(each, ", ");
}

class Session {
public:
  Session(const RankOptions& options, link::Link& link, progress::Page page)
      : o_(options), link_(link), clock_(std::move(page)),
        start_up_(runtime::process_age_seconds()) {}
  RankResult<Finished> run();
  // Waits for the checkpoint that is being written, and flushes the metrics sinks.
  void finish_writing();

private:
  dataset::Check check_of_rank() const;
  void begin_opening_data();
  RankResult<void> open_device();
  RankResult<void> open_data();
  RankResult<void> open_model();
  RankResult<void> resume();
  RankResult<void> meet_peers();
  RankResult<void> open_loader();
  RankResult<void> open_outputs();
  void say_hello();
  manifest::Manifest manifest_base() const;
  const dataset::TokenizerRecord& tokenizer() const { // all data sets have the same one
    return data_.front().dataset->manifest().tokenizer;
  }

  const RankOptions& o_;
  link::Link& link_;
  PhaseClock clock_;
  StartUpTimes start_up_;
  std::map<std::string, std::string> toggles_;
  std::optional<FaultHook> faults_; // set if the run injects a fault into this rank
  std::unique_ptr<runtime::Runtime> runtime_;
  Precision precision_;
  GraphChoice graphs_;
  std::optional<StartingCheckpoint> checkpoint_;
  std::future<Result<std::vector<data::Source>>> opening_data_;
  std::vector<data::Source> data_;
  choice::KernelPlan kernels_;
  std::optional<KernelCheck> kernel_check_;
  std::unique_ptr<model::LanguageModel> model_;
  std::unique_ptr<FlatState> state_;
  std::future<std::shared_ptr<std::byte>> snapshot_memory_; // rank 0 only
  std::unique_ptr<comm::Collectives> collectives_;
  std::optional<FlightRecordWriter> flight_record_writer_;
  std::unique_ptr<data::Loader> loader_;
  std::optional<data::EvaluationSet> evaluation_;
  Decoding decoding_; // rank 0 only
  std::unique_ptr<Checkpointer> checkpointer_;
  std::vector<std::unique_ptr<MetricsSink>> sinks_;
  std::optional<manifest::Manifest> resumed_;
  Trainer::Start start_;
  std::optional<Trainer> trainer_;
};

RankResult<void> Session::open_device() {
  NSA_RANK_TRY_ASSIGN(RankExit::kUsage, toggles_,
                      spec::resolve_toggles(spec::requested_toggles(o_.spec)));
  NSA_RANK_TRY_ASSIGN(RankExit::kUsage, const std::optional<Injection> injection,
                      plan_injection(o_.spec.inject, static_cast<uint64_t>(o_.spec.train.steps),
                                     o_.world, o_.attempt));
  if (injection && injection->rank == o_.rank)
    faults_.emplace(*injection, o_.run_folder, link_, [this] { runtime_->stall_device(); });
  runtime::Request request;
  request.device = o_.spec.parallel.device;
  request.rank = o_.local_rank;
  request.threads = static_cast<int>(o_.spec.train.threads);
  request.deterministic = o_.spec.train.deterministic;
  request.graphs =
      spec::kCudaGraphs.of(toggles_) != spec::Graphs::kOff && o_.without_graphs.empty();
  request.out_of_memory_file = runtime::out_of_memory_file(o_.attempt_folder, o_.rank);
  request.libraries_loaded = [this] { start_up_.passed("libraries"); };
  NSA_RANK_TRY_ASSIGN(RankExit::kUsage, runtime_, runtime::open_runtime(request));
  NSA_RANK_TRY(RankExit::kFailed, runtime_->attach_progress(clock_.page().device_words()));
  NSA_RANK_TRY_ASSIGN(RankExit::kUsage, precision_,
                      choose_precision(o_.spec.precision, runtime_->why_bf16_is_slow()));
  NSA_RANK_TRY_ASSIGN(
      RankExit::kUsage, graphs_,
      choose_graphs(toggles_, o_.spec,
                    o_.without_graphs.empty() ? runtime_->why_no_graphs() : o_.without_graphs));
  if (!graphs_.why_not.empty()) log::info("train", "no CUDA graphs: " + graphs_.why_not);
  if (!precision_.note.empty()) log::warning("train", precision_.note);
  report_memory(o_.rank, "boot", *runtime_, link_);
  return {};
}

// One rank verifies every checksum, because training would not notice a flipped bit. It reads some
// GB/s and warms the page cache for the other ranks.
dataset::Check Session::check_of_rank() const {
  return o_.rank == 0 ? dataset::Check::kChecksums : dataset::Check::kSizes;
}

// Data sets open while the device opens. Both take equally long, and neither needs the other.
void Session::begin_opening_data() {
  std::packaged_task<Result<std::vector<data::Source>>()> open(
      [data = o_.spec.data, check = check_of_rank()] { return open_sources(data, check); });
  opening_data_ = open.get_future();
  std::thread(std::move(open)).detach(); // detached, so an error elsewhere does not wait for it
}

RankResult<void> Session::open_data() {
  NSA_RANK_TRY_ASSIGN(RankExit::kData, data_, opening_data_.get());
  const int64_t vocabulary = tokenizer().vocabulary_size;
  if (vocabulary > o_.spec.model.vocabulary)
    return failed(RankExit::kUsage,
                  {ErrorCode::kInvalidArgument,
                   "the data set has token ids up to " + std::to_string(vocabulary - 1) +
                       ", model.vocabulary is " + std::to_string(o_.spec.model.vocabulary),
                   "set model.vocabulary to at least " + std::to_string(vocabulary)});
  return {};
}

RankResult<void> Session::open_model() {
  NSA_RANK_TRY_ASSIGN(RankExit::kUsage, PlannedModel planned,
                      plan_model(o_.spec, toggles_, runtime_->device(), precision_.bf16));
  kernels_ = std::move(planned.kernels);
  // The model's weights move into the flat state. It holds the initial values, or what resume()
  // loads.
  model_ = std::make_unique<model::LanguageModel>(
      planned.config, runtime_->device(), precision_.bf16 ? at::kBFloat16 : at::kFloat,
      static_cast<uint64_t>(o_.spec.train.seed), model::Weights::kUnset);
  std::vector<Parameter> parameters =
      parameters_of(*model_, /*initial_values=*/!checkpoint_->exists());
  int64_t drawn = 0;
  for (const Parameter& parameter : parameters)
    if (parameter.initial.defined()) drawn += parameter.initial.numel();
  log::info("train", "model", {{"initial_values", std::to_string(drawn)}});
  const auto bucket_bytes = static_cast<size_t>(o_.spec.parallel.bucket_mib * 1024.0 * 1024.0);
  state_ = std::make_unique<FlatState>(std::move(parameters), bucket_bytes, kSyncScalars,
                                       precision_.mode,
                                       shard_of_rank(o_.spec.parallel, o_.rank, o_.world));
  // Pinning gigabytes takes as long as making a communicator, so both happen at the same time.
  if (o_.rank == 0)
    snapshot_memory_ =
        std::async(std::launch::async, [this, bytes = SnapshotMaker::bytes_of(*state_)] {
          return runtime_->allocate_host(bytes);
        });
  ::malloc_trim(0); // no later allocation is as large as the initial values
  report_memory(o_.rank, "model", *runtime_, link_);
  return {};
}

RankResult<void> Session::resume() {
  RankResult<std::optional<Resumed>> loaded = checkpoint_->load(*state_);
  if (!loaded) return tl::unexpected(loaded.error());
  if (!loaded->has_value()) return {};
  Resumed& resumed = **loaded;
  resumed_ = std::move(resumed.manifest);
  start_ = {resumed_->step, resumed_->tokens, resumed.counters.non_finite_streak};
  explain_resume(*resumed_, manifest_base());
  if (start_.step >= static_cast<uint64_t>(o_.spec.train.steps))
    log::info("train", "the checkpoint is at the last step already",
              {{"step", std::to_string(start_.step)}});
  return {};
}

RankResult<void> Session::meet_peers() {
  // A rank that waits for a missing peer must still exist when nsad collects its evidence.
  const spec::HangSection& hang = o_.spec.hang;
  const double limit = hang.start_up_seconds + hang.evidence_seconds + kAfterVerdictSeconds;
  comm::RendezvousAddress address = o_.rendezvous;
  address.limit = from_seconds(limit);
  const Duration collective_limit = from_seconds(o_.spec.parallel.collective_timeout_seconds);
  NSA_RANK_TRY_ASSIGN(RankExit::kPeerLost, collectives_,
                      runtime_->make_collectives(o_.rank, o_.world, address, collective_limit));
  collectives_ = comm::watch(
      std::move(collectives_), clock_,
      [this](progress::DeviceWord word, uint64_t value) { runtime_->mark(word, value); });
  model_->share_context(make_context_group(*collectives_,
                                           static_cast<int>(o_.spec.parallel.context_ranks),
                                           [this] { return clock_.position().step; }));
  flight_record_writer_.emplace(link_, o_.rank, [this] { return collectives_->flight_record(); });
  return {};
}

RankResult<void> Session::open_loader() {
  data::BatchShape shape;
  shape.sequence_length = o_.spec.train.sequence_length;
  shape.micro_batch = o_.spec.train.micro_batch;
  shape.accumulate = o_.spec.train.accumulate;
  // Ranks of one context group read the same sequences.
  shape.rank = o_.rank / static_cast<int>(o_.spec.parallel.context_ranks);
  shape.world = static_cast<int>(o_.spec.data_ranks());

  data::LoaderOptions options;
  options.sources = data_;
  options.shape = shape;
  options.seed = static_cast<uint64_t>(o_.spec.train.seed);
  options.shortest_sequence = o_.spec.restart.shortest_sequence;
  options.check = check_of_rank();
  options.starved_limit = from_seconds(o_.spec.data.starved_seconds);
  options.allocate = [this](size_t bytes) { return runtime_->allocate_host(bytes); };
  if (faults_)
    options.before_batch = [this](int64_t step, int64_t micro_step,
                                  const std::function<bool()>& stopping) {
      if (micro_step == 0) // `step` counts the steps of this attempt from 0
        faults_->stall_loader(start_.step + static_cast<uint64_t>(step) + 1, stopping);
    };
  std::optional<data::DataState> from;
  if (resumed_) {
    from.emplace();
    from->seed = resumed_->data.seed;
    from->epoch = static_cast<int64_t>(resumed_->data.epoch);
    from->index = static_cast<int64_t>(resumed_->data.index);
    from->sequence_length = resumed_->data.sequence_length;
    from->dataset_digest = resumed_->data.dataset_digest;
    for (const manifest::DataSource& source : resumed_->data.sources)
      from->sources.push_back({source.digest, source.weight});
    from->generations = static_cast<int64_t>(resumed_->data.generations);
    from->generations_digest = resumed_->data.generations_digest;
    const bool replaced = o_.replaced_data.contains(from->dataset_digest);
    const std::string digest = data::digest_of(data_);
    if (replaced && from->dataset_digest != digest) {
      log::warning("train", "the new data set is read from its beginning",
                   {{"checkpoint", from->dataset_digest}, {"now", digest}});
      from.reset();
    }
  }
  NSA_RANK_TRY_ASSIGN(RankExit::kData, loader_, data::Loader::open(std::move(options), from));
  if (o_.spec.eval.interval_steps > 0 || o_.spec.eval.at_end) {
    auto set =
        data::EvaluationSet::open(data_, shape, o_.spec.eval.batches * o_.spec.train.micro_batch);
    if (!set) return failed(RankExit::kData, std::move(set).error());
    evaluation_.emplace(std::move(*set));
  }
  if (o_.rank == 0) {
    NSA_RANK_TRY_ASSIGN(RankExit::kData, decoding_,
                        open_decoding(o_.spec, data_, *model_, runtime_->device(), o_.run_folder));
  }
  report_memory(o_.rank, "loader", *runtime_, link_);
  return {};
}

RankResult<void> Session::open_outputs() {
  std::shared_ptr<std::byte> memory;
  if (o_.rank == 0) memory = snapshot_memory_.get();
  NSA_RANK_TRY_ASSIGN(RankExit::kCheckpoint, checkpointer_,
                      Checkpointer::open(o_.run_folder, o_.spec.checkpoint, manifest_base(),
                                         o_.rank, *state_, *runtime_, link_, std::move(memory)));
  if (o_.rank != 0) return {};
  if (o_.spec.metrics.jsonl)
    sinks_.push_back(std::make_unique<MetricsLog>(o_.run_folder / "metrics.jsonl", o_.attempt));
  if (o_.spec.metrics.tensorboard) {
    telemetry::TensorBoardWriter writer(o_.run_folder / "tensorboard", o_.attempt,
                                        static_cast<int64_t>(start_.step) + 1);
    // The run trains even if its file cannot be read. TensorBoard then shows the error instead.
    const auto run_file = read_file(o_.run_folder / "run.toml", spec::kMaxTomlBytes);
    writer.run_file(run_file ? *run_file : run_file.error().what, spec::to_json(o_.spec),
                    static_cast<int64_t>(start_.step));
    sinks_.push_back(std::make_unique<TensorBoardSink>(std::move(writer)));
  }
  return {};
}

manifest::Manifest Session::manifest_base() const {
  manifest::Manifest m;
  m.run_id = o_.run_id;
  m.attempt = o_.attempt;
  m.world_size = o_.world;
  m.threads = static_cast<int>(o_.spec.train.threads);
  m.device = runtime_->device_name();
  m.precision = spec::text_of(o_.spec.precision.mode);
  m.compute = precision_.name();
  m.deterministic = o_.spec.train.deterministic;
  m.shard_update = state_->shard().of > 1;
  m.toggles = toggles_;
  m.spec_digest = spec::digest(o_.spec);
  m.build = build_name();
  m.versions = runtime_->versions();
  return m;
}

void Session::say_hello() {
  wire::RankHello hello;
  hello.rank = o_.rank;
  hello.pid = ::getpid();
  hello.build = build_name();
  hello.versions = runtime_->versions();
  hello.device = runtime_->device_name();
  hello.compute_precision = precision_.name();
  hello.precision_note = precision_.note;
  hello.resumed_from_step = start_.step;
  if (data_.size() == 1)
    hello.bigram_entropy_nats = data_.front().dataset->manifest().text.bigram_entropy_nats;
  link_.send(hello);
  log::info("train", "device opened",
            {{"device", hello.device},
             {"computes_in", hello.compute_precision},
             {"build", hello.build},
             {"versions", listed(hello.versions)}});
}

RankResult<Finished> Session::run() {
  clock_.enter(Phase::kStartUp);
  checkpoint_.emplace(o_);
  begin_opening_data();
  struct Stage {
    const char* name; // key in start_up_seconds
    RankResult<void> (Session::*pass)();
  };
  const auto pass = [this](std::initializer_list<Stage> stages) -> RankResult<void> {
    for (const Stage& stage : stages) {
      if (auto ok = (this->*stage.pass)(); !ok) return ok;
      start_up_.passed(stage.name);
    }
    return {};
  };
  if (auto ok = pass({{"device", &Session::open_device},
                      {"data", &Session::open_data},
                      {"model", &Session::open_model},
                      {"checkpoint", &Session::resume},
                      {"peers", &Session::meet_peers}});
      !ok)
    return tl::unexpected(ok.error());
  say_hello();

  const std::string graphs = graphs_.on                ? "on"
                             : graphs_.why_not.empty() ? "off"
                                                       : "off (" + graphs_.why_not + ")";
  const wire::RankToggles report = report_toggles(o_.rank, toggles_, kernels_, graphs);
  log::info("train", "kernels in effect", {{"parts", listed(report.kernels)}});
  link_.send(report);
  NSA_RANK_TRY(RankExit::kToggleMismatch, check_toggles(report));

  if (auto ok = pass({{"loader", &Session::open_loader}, {"outputs", &Session::open_outputs}}); !ok)
    return tl::unexpected(ok.error());

  std::optional<int64_t> separator;
  if (o_.spec.data.document_mask) separator = tokenizer().separator;
  std::optional<StagedLoss> staged;
  if (graphs_.on) staged = make_staged_loss(*model_, runtime_->device());
  kernel_check_.emplace(make_kernel_check(kernels_));
  trainer_.emplace(TrainerParts{o_.spec,
                                o_.rank,
                                o_.run_folder,
                                *runtime_,
                                *collectives_,
                                link_,
                                clock_,
                                *state_,
                                make_loss(*model_, runtime_->device(), separator),
                                make_token_losses(*model_, runtime_->device(), separator),
                                staged,
                                spec::kCudaGraphs.of(toggles_) == spec::Graphs::kOn,
                                *loader_,
                                evaluation_ ? &*evaluation_ : nullptr,
                                *checkpointer_,
                                sinks_,
                                faults_ ? &*faults_ : nullptr,
                                gates_of(*model_),
                                &start_up_,
                                &*kernel_check_,
                                decoding_,
                                selection_of(*model_)},
                   start_);
  auto finished = trainer_->run();
  if (finished) {
    flight_record_writer_.reset();
    collectives_->shut_down();
    link_.send(wire::RankFinished{o_.rank, finished->step, finished->tokens, finished->reason});
  }
  return finished;
}

void Session::finish_writing() {
  for (auto& sink : sinks_)
    sink->flush();
  if (checkpointer_) (void)checkpointer_->finish();
}

} // namespace

RankResult<Finished> run_rank(const RankOptions& options, link::Link& link, progress::Page page) {
  // After a failure the session is not destroyed. Its destructor frees gigabytes, and meanwhile
  // peers would see closed connections and exit first, so nsad would blame them. A graph capture or
  // a collective under way could also block the destructor or change the exit code.
  auto owned = std::make_unique<Session>(options, link, std::move(page));
  Session& session = *owned.release();
  try {
    auto finished = session.run();
    if (finished)
      owned.reset(&session);
    else
      session.finish_writing();
    return finished;
  } catch (...) {
    session.finish_writing();
    throw;
  }
}

} // namespace nsa::train
