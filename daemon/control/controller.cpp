#include "daemon/control/controller.h"

#include "common/base/build_info.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/dataset/manifest.h"
#include "common/spec/spec_json.h"
#include "common/spec/toggles.h"
#include "daemon/control/node_readings.h"
#include "daemon/control/provenance.h"

#include <filesystem>
#include <malloc.h>

namespace nsa::control {

namespace {
constexpr Duration kTick = std::chrono::milliseconds(100);
constexpr Duration kSlowTick = std::chrono::seconds(1);
constexpr Duration kEndedSampleKept = std::chrono::minutes(15);
constexpr Duration kGpuInterval = std::chrono::seconds(5); // between readings of their health
// Verifying and deleting gigabytes, and the driver: as long as it takes, beside each other.
constexpr net::OffloadLimits kWorkers{6, 3, 6, 4096, Duration::zero()};
// Calls of the host limit their time themselves. One submitter's, however slow, leave threads for
// others; and to adopt thousands of runs of one submitter is no abuse.
constexpr net::OffloadLimits kSupervision{8, 4, 8, 100'000, Duration::zero()};
} // namespace

Controller::Controller(net::EventLoop& loop, store::Ledger ledger, store::Telemetry telemetry,
                       ControllerOptions options)
    : loop_(loop), ledger_(std::move(ledger)), telemetry_(std::move(telemetry)),
      options_(std::move(options)),
      launcher_({options_.config, options_.program_folder, options_.restart_daemon}),
      worker_check_(std::make_shared<WorkerCheck>(launcher_.programs().at("nsa-worker"))),
      slots_(static_cast<int>(options_.config.resources.cpu_slots)),
      random_(std::random_device{}()), loop_delay_(kTick, MonotonicTime::now()),
      daemon_started_(options_.started), started_at_(WallTime::now()), readers_(loop),
      workers_(loop, kWorkers), supervision_(loop, kSupervision) {
  daemon_counters_.version = build_info().version;
  daemon_counters_.commit = build_info().commit;
  daemon_counters_.node = host_name();
}

Controller::~Controller() = default;

std::string Controller::run_folder(const RunId& run) const {
  return options_.state_folder + "/runs/" + run;
}

// ---- start
// ----------------------------------------------------------------------------------------

// A run as the ledger has it; nothing here changes by that.
Result<Controller::StoredRun> Controller::read_run(const RunId& id) {
  NSA_TRY_ASSIGN(auto stored, ledger_.run(id));
  if (!stored) return fail(ErrorCode::kNotFound, "no run " + id);
  if (!stored->damage.empty()) return fail(ErrorCode::kCorrupt, stored->damage);
  RunRecord record;
  record.row = std::move(stored->row);
  record.folder = run_folder(id);
  record.last = stored->progress.summary;
  auto spec = spec::from_json(record.row.spec);
  // A spec written by an older nsad may lack nothing but must not stop the others from being
  // adopted.
  if (!spec) return fail(std::move(spec.error()).within("the stored spec of run " + id));
  record.spec = std::move(*spec);
  state::State state;
  state.next_order = state_.next_order; // places in the queue are given in the order of loading
  NSA_TRY_ASSIGN(const auto events, ledger_.replayable(id));
  for (const store::EventRow& row : events) {
    auto body = state::body_from_json(row.view.kind, row.view.detail);
    if (!body)
      return fail(
          std::move(body).error().within("ledger.db, event " + std::to_string(row.view.sequence)));
    // A closed run leaves the state; for a resume it is wanted as it was.
    if (std::holds_alternative<state::RunClosed>(*body)) continue;
    state::Applied applied =
        state::apply(std::move(state), {id, row.view.attempt, row.shim_sequence, std::move(*body)},
                     WallTime{row.view.at});
    state = std::move(applied.state);
  }
  const auto run = state.runs.find(id);
  if (run == state.runs.end())
    return fail(ErrorCode::kCorrupt, "the events of run " + id + " do not give its state");
  NSA_TRY_ASSIGN(const auto attempts, ledger_.attempts(id));
  for (const wire::AttemptView& a : attempts)
    record.reached_step = std::max(record.reached_step, a.last_step);
  if (!attempts.empty() && attempts.back().attempt == run->second.attempt.number) {
    record.provenance = attempts.back().provenance;
    record.of_attempt = attempts.back().attempt;
    NSA_TRY_ASSIGN(const auto ranks, ledger_.ranks(id, record.of_attempt));
    for (const wire::RankView& r : ranks) {
      record.ranks[r.rank].device = r.device;
      record.ranks[r.rank].compute_precision = r.compute_precision;
    }
  }
  recall(record, stored->progress.memory);
  for (const double loss : record.last.loss_trend)
    record.trend.add(loss);
  return StoredRun{std::move(run->second), std::move(record), state.next_order};
}

Status Controller::load_run(const RunId& id) {
  NSA_TRY_ASSIGN(StoredRun stored, read_run(id));
  state_.next_order = stored.next_order;
  state_.runs[id] = std::move(stored.run);
  records_[id] = std::move(stored.record);
  return {};
}

// Closed, named in an event, and left as it is stored; everything else goes on.
void Controller::set_aside(const store::DamagedRun& damaged) {
  log::error("control", "a run is set aside", {{"run", damaged.run}, {"why", damaged.why}});
  store::EventRow row;
  row.view.at = WallTime::now().nanoseconds;
  row.view.run = damaged.run;
  row.view.rank = -1;
  row.view.kind = "set_aside";
  row.view.severity = "error";
  row.view.text = "set aside, since the ledger's rows of it cannot be used: " + damaged.why;
  batch_.events.push_back(std::move(row));
  batch_.damaged_runs.push_back(damaged);
}

Status Controller::start() {
  if (options_.config.resources.gpus == spec::NodeGpus::kAll) {
    auto locks = gpu::HostLocks::open(
        options_.config.resources.gpu_locks, options_.state_folder, [](const gpu::Holder& h) {
          return proc::open_identified({h.boot_id, static_cast<pid_t>(h.pid), h.start_time_ticks})
              .has_value();
        });
    // Only a run that asks for a GPU needs them; the reason is told then.
    if (locks)
      slots_.use_gpus(std::move(*locks));
    else
      log::warning("control", "GPUs are not used", {{"why", locks.error().what}});
    slots_.exclude_gpus(options_.config.resources.exclude_gpus);
    slots_.expect_gpus();
    workers_.run(
        {"", "the list of GPUs"}, [] { return gpu::list_gpus(); },
        [this](Result<gpu::Gpus> gpus) {
          if (!gpus)
            log::error("control", "the GPUs cannot be listed", {{"why", gpus.error().what}});
          slots_.set_gpus(std::move(gpus).value_or(gpu::Gpus{}));
          if (!slots_.gpus().list.empty()) watch_gpus();
        });
  }
  NSA_TRY_ASSIGN(const auto open, ledger_.open_runs());
  for (const RunId& id : open) {
    if (auto loaded = load_run(id); !loaded) {
      set_aside({id, loaded.error().what});
      continue;
    }
    const state::Run& run = state_.runs.at(id);
    if (auto taken = slots_.take_back(id, run.device, run.slots); !taken)
      log::warning("control", "a slot is somebody else's by now",
                   {{"run", id}, {"why", taken.error().what}});
  }
  // Before any slot is granted: who lives holds his, also when the ledger has forgotten him.
  recover_live_shims();
  flush(); // a supervisor reads in the ledger which messages of its shim are known
  auto boot_id = proc::read_boot_id();
  (void)ledger_.note_node(host_name(), boot_id ? *boot_id : "", build_info().version, started_at_);
  loop_delay_ = LoopDelay(kTick, MonotonicTime::now());
  tick_timer_ = loop_.every(kTick, [this] { tick(); });
  slow_timer_ = loop_.every(kSlowTick, [this] { tick_slowly(); });
  // Attempts that are alive come first: their ranks must not wait behind a checkpoint's check.
  std::vector<state::Command> pending = state::pending_commands(state_);
  std::stable_partition(pending.begin(), pending.end(), [](const state::Command& c) {
    return c.kind == state::CommandKind::kSupervise;
  });
  for (const state::Command& command : pending)
    carry_out(command);
  flush();
  return {};
}

void Controller::finish_ended_runs(Duration limit) {
  const auto all_closed = [this] {
    return std::none_of(state_.runs.begin(), state_.runs.end(), [](const auto& entry) {
      const state::Run& run = entry.second;
      const bool dying = run.cancel_requested && run.attempt.phase == state::AttemptPhase::kKilling;
      return has_ended(run.phase) || dying;
    });
  };
  if (all_closed()) return;
  const net::Timer look = loop_.every(std::chrono::milliseconds(5), [&] {
    if (all_closed()) loop_.stop();
  });
  if (!loop_.run_for(limit))
    log::warning("control", "a run that is over still has a shim; the next nsad lets it go");
}

void Controller::say_goodbye() {
  for (auto& [key, supervisor] : supervisors_)
    supervisor->say_goodbye();
  (void)ledger_.back_up();
}

// ---- events -------------------------------------------------------------------------------------

void Controller::handle(state::Event event) {
  const WallTime now = WallTime::now();
  state::Applied applied = state::apply(std::move(state_), event, now);
  state_ = std::move(applied.state);
  if (applied.ignored) return;
  state::Description description = state::describe(event);
  store::EventRow row;
  row.view.at = now.nanoseconds;
  row.view.run = event.run;
  row.view.attempt = event.attempt;
  row.view.rank = state::event_rank(event.body);
  row.view.kind = state::event_kind(event.body);
  row.view.severity = description.severity;
  row.view.text = description.text;
  row.view.detail = state::body_to_json(event.body);
  row.replay = true;
  row.shim_sequence = event.shim_sequence;
  batch_.events.push_back(std::move(row));
  project(event);
  for (state::Note& note : applied.notes) {
    if (const auto record = records_.find(note.run); record != records_.end())
      note_counters(record->second.counters, note);
    store::EventRow extra;
    extra.view = {0,         now.nanoseconds, note.run,  note.attempt, note.rank,
                  note.kind, note.severity,   note.text, note.detail};
    batch_.events.push_back(std::move(extra));
  }
  touch(event.run);
  commands_.insert(commands_.end(), applied.commands.begin(), applied.commands.end());
}

void Controller::note_counters(metrics::RunSample& c, const state::Note& note) {
  if (note.kind == "restarting") ++c.restarts[note.detail.value("class", "unknown")];
  if (note.kind == "checkpoint_failed") ++c.checkpoint_failures["write"];
  if (note.kind == "checkpoint_rejected") ++c.checkpoint_failures["verify"];
  if (note.kind == "recovered")
    c.recovery_seconds.try_emplace("restore", metrics::recovery_histogram())
        .first->second.observe(note.detail.value("recover_seconds", 0.0));
}

// Rows beside the event that questions are answered from.
void Controller::project(const state::Event& event) {
  const auto found = records_.find(event.run);
  if (found == records_.end()) return;
  RunRecord& record = found->second;
  if (const auto* granted = std::get_if<state::SlotsGranted>(&event.body)) {
    for (const std::string& slot : granted->slots)
      batch_.leases.push_back({slot, event.run, WallTime::now().nanoseconds});
  } else if (const auto* chosen = std::get_if<state::CheckpointChosen>(&event.body)) {
    for (const state::RejectedCheckpoint& r : chosen->rejected)
      batch_.checkpoint_states.push_back({event.run, r.step, r.folder, "corrupt", r.problem});
    if (chosen->step > 0)
      batch_.checkpoint_states.push_back({event.run, chosen->step, chosen->folder, "verified", ""});
    const state::Run& run = state_.runs.at(event.run);
    if (record.reached_step > chosen->step && run.attempt.number > 1)
      record.counters.lost_steps += record.reached_step - chosen->step;
    record.reached_step = chosen->step;
    record.last.step = chosen->step;
    record.of_attempt = run.attempt.number;
    record.ranks.clear();
    record.exchange = {};
    project_provenance(record);
    record.learned = {};
    record.divergence_told = false;
    record.last.tokens_per_second = 0;
  } else if (const auto* recovered = std::get_if<state::RunRecovered>(&event.body)) {
    for (const std::string& slot : recovered->slots)
      batch_.leases.push_back({slot, event.run, WallTime::now().nanoseconds});
    record.of_attempt = event.attempt;
    record.reached_step = std::max(record.reached_step, recovered->best_step);
    record.last.step = recovered->first_step;
  } else if (std::holds_alternative<state::AttemptPrepared>(event.body)) {
    for (store::ToggleRow& row : requested_toggles(record, event.attempt))
      batch_.toggles.push_back(std::move(row));
  }
  note_event(record, event.body, WallTime::now());
  project_rank_event(event, record);
}

// An attempt runs with what lies on the disk as it begins.
void Controller::project_provenance(RunRecord& record) {
  nlohmann::json now = begin_provenance(record, launcher_.programs());
  now["driver"] = slots_.gpus().driver;
  for (const gpu::GpuLink& link : slots_.gpus().links)
    now["topology"]["gpu_links"].push_back({{"from", link.from},
                                            {"to", link.to},
                                            {"nvlink", link.nvlink},
                                            {"peer_to_peer", link.peer_to_peer},
                                            {"path", link.path}});
  const nlohmann::json changed = changed_programs(record.provenance, now);
  record.provenance = std::move(now);
  note_dataset(record);
  if (changed.empty()) return;
  std::string names;
  for (const auto& [name, ids] : changed.items())
    names += (names.empty() ? "" : ", ") + name;
  store::EventRow row;
  row.view = {0,
              WallTime::now().nanoseconds,
              record.row.id,
              record.of_attempt,
              -1,
              "programs_changed",
              "warning",
              "rebuilt since the last attempt: " + names,
              changed};
  batch_.events.push_back(std::move(row));
}

// The digest of the data set as the attempt begins. The file is the submitter's.
void Controller::note_dataset(const RunRecord& record) {
  const std::string folder = record.spec.data.path;
  readers_.run(
      {record.row.user, "the data set in " + folder},
      [folder, open = privilege::opener(options_.host, uid_of(record.row))] {
        return dataset::read_manifest(folder, open);
      },
      [this, run = record.row.id,
       attempt = record.of_attempt](const Result<dataset::Manifest>& manifest) {
        const auto found = records_.find(run);
        if (!manifest || found == records_.end() || found->second.of_attempt != attempt) return;
        found->second.provenance["dataset_digest"] = manifest->digest;
        touch(run);
      });
}

void Controller::project_rank_event(const state::Event& event, RunRecord& record) {
  if (const auto* hello = std::get_if<wire::RankHello>(&event.body)) {
    RankInfo& info = record.ranks[hello->rank];
    info.device = hello->device;
    info.compute_precision = hello->compute_precision;
    note_hello(record.provenance, *hello);
  } else if (const auto* toggles = std::get_if<wire::RankToggles>(&event.body)) {
    if (toggles->rank == 0) {
      for (const wire::EffectiveToggle& t : toggles->toggles)
        if (spec::find_toggle(t.name) != nullptr)
          batch_.toggles.push_back(
              {event.run, {event.attempt, t.name, t.requested, t.effective, "default"}});
      if (record.provenance.is_object()) record.provenance["kernels"] = toggles->kernels;
    }
  } else if (const auto* e = std::get_if<wire::RankEvaluation>(&event.body)) {
    telemetry_.add(event.run, event.attempt, *e);
  } else if (const auto* c = std::get_if<wire::RankCheckpoint>(&event.body);
             c && c->error.empty()) {
    wire::CheckpointView view;
    view.run = event.run;
    view.step = c->step;
    view.tokens = c->tokens;
    view.bytes = c->bytes;
    view.attempt = event.attempt;
    view.folder = c->folder;
    view.state = "unverified";
    view.finite = c->finite;
    view.written_at = WallTime::now().nanoseconds;
    batch_.checkpoints.push_back(std::move(view));
  }
}

void Controller::add_dirty_rows() {
  for (const RunId& id : dirty_) {
    const auto run = state_.runs.find(id);
    const auto record = records_.find(id);
    if (run == state_.runs.end() || record == records_.end()) continue;
    batch_.progress.push_back({summary_of(run->second, record->second), hangs_json(run->second),
                               true, memory_of(record->second, supervisor_of(run->second))});
    if (run->second.attempt.number == 0) continue;
    batch_.attempts.push_back(
        {id, attempt_view(run->second, record->second), run->second.attempt.token});
    for (size_t r = 0; r < run->second.attempt.ranks.size(); ++r) {
      const state::RankState& rank = run->second.attempt.ranks[r];
      if (!rank.started && !rank.exited) continue;
      batch_.ranks.push_back({id, run->second.attempt.number,
                              rank_view(run->second, record->second, static_cast<Rank>(r), nullptr),
                              rank.start_time_ticks});
    }
  }
}

bool Controller::write() {
  note_queue();
  add_dirty_rows();
  for (const auto& [key, sequence] : unacknowledged_)
    batch_.shim_sequences.emplace_back(key.run, key.attempt, sequence);
  const MonotonicTime began = MonotonicTime::now();
  if (auto written = ledger_.commit(batch_); !written) {
    // Nothing is done that is not written. Ranks train on; tried again every second.
    if (!ledger_full_)
      log::error("control", "the ledger cannot be written; waiting",
                 {{"why", written.error().what}});
    ledger_full_ = true;
    if (ledger_.damaged()) options_.shut_down();
    batch_.progress.clear(); // made anew from dirty_
    batch_.attempts.clear();
    batch_.ranks.clear();
    batch_.shim_sequences.clear();
    return false;
  }
  daemon_counters_.transaction_seconds.try_emplace("append", metrics::request_histogram())
      .first->second.observe(to_seconds(MonotonicTime::now() - began));
  if (ledger_full_) log::info("control", "the ledger is written again");
  ledger_full_ = false;
  const store::Batch done = std::exchange(batch_, {});
  const std::set<RunId> changed = std::exchange(dirty_, {});
  for (const auto& [key, sequence] : std::exchange(unacknowledged_, {}))
    if (const auto s = supervisors_.find(key); s != supervisors_.end())
      s->second->acknowledge(sequence);
  publish_batch(done, changed);
  return true;
}

void Controller::flush() {
  if (flushing_) return; // what commands cause is taken up by the loop below
  flushing_ = true;
  while (!batch_.empty() || !commands_.empty() || !dirty_.empty()) {
    if (!write()) break;
    for (const state::Command& command : std::exchange(commands_, {}))
      carry_out(command);
  }
  flushing_ = false;
}

// ---- what supervisors tell
// ------------------------------------------------------------------------

void Controller::on_event(const AttemptKey& key, state::EventBody body, uint64_t sequence) {
  handle({key.run, key.attempt, sequence, std::move(body)});
}

void Controller::on_step(const AttemptKey& key, const wire::RankStep& step) {
  const auto record = records_.find(key.run);
  if (record == records_.end()) return;
  note_step(record->second, step);
  telemetry_.add(key.run, key.attempt, step);
  if (step.rank != 0) return;
  tell_divergence(state_.runs.at(key.run), record->second);
  wire::FollowLine line;
  line.type = "step";
  line.data = step;
  publish(key.run, line);
}

void Controller::on_dealt_with(const AttemptKey& key, uint64_t sequence) {
  unacknowledged_[key] = sequence;
  // Step metrics alone are no reason for a commit: the slow tick writes how far we are.
  if (!batch_.events.empty() || !commands_.empty()) flush();
}

void Controller::on_connected(const AttemptKey& key) {
  flush();
  // The shim may not have heard what was asked while there was no connection.
  for (const state::Command& c : state::pending_commands(state_))
    if (c.run == key.run && c.attempt == key.attempt && c.kind != state::CommandKind::kArmTimer &&
        c.kind != state::CommandKind::kSupervise)
      carry_out(c);
}

void Controller::on_shim_ended(const AttemptKey& key) {
  handle({key.run, key.attempt, 0, state::ShimReleased{}});
  // Its supervisor is the caller: it goes away when it has returned.
  loop_.post([this, key] {
    supervisors_.erase(key);
    flush();
  });
}

// ---- GPUs
// -----------------------------------------------------------------------------------------

void Controller::watch_gpus() {
  gpu::Monitor::Events events;
  events.sample = [this](gpu::Gpus gpus) {
    loop_.post([this, gpus = std::move(gpus)]() mutable { slots_.set_gpus(std::move(gpus)); });
  };
  events.xid = [this](gpu::Xid xid) { loop_.post([this, xid] { on_xid(xid); }); };
  gpu_monitor_ = std::make_unique<gpu::Monitor>(std::move(events), kGpuInterval);
}

void Controller::on_xid(const gpu::Xid& xid) {
  ++xids_[xid.uuid][xid.number];
  log::warning("control", "the driver reports an error on a GPU",
               {{"gpu", xid.uuid}, {"xid", std::to_string(xid.number)}});
  for (const auto& [id, run] : state_.runs)
    for (size_t r = 0; r < run.slots.size(); ++r)
      if (run.slots[r] == xid.uuid)
        return submit_event({id, run.attempt.number, 0,
                             state::GpuFault{static_cast<Rank>(r), xid.uuid, xid.number}});
}

std::vector<RankGpu> Controller::gpus_of(const AttemptKey& key) {
  std::vector<RankGpu> gpus;
  const state::Run* run = find_open(key.run);
  if (run == nullptr) return gpus;
  for (size_t r = 0; r < run->slots.size(); ++r)
    for (const gpu::Gpu& g : slots_.gpus().list) {
      if (g.uuid != run->slots[r]) continue;
      RankGpu& mine = gpus.emplace_back(RankGpu{static_cast<Rank>(r), g, {}});
      if (const auto found = xids_.find(g.uuid); found != xids_.end())
        for (const auto& [number, count] : found->second)
          mine.xids.push_back(number);
    }
  return gpus;
}

// ---- ticks
// ----------------------------------------------------------------------------------------

void Controller::tick() {
  const MonotonicTime now = MonotonicTime::now();
  daemon_counters_.loop_lag_seconds.observe(to_seconds(loop_delay_.tick(now)));
  ++daemon_counters_.progress_reads;
  for (auto& [key, supervisor] : supervisors_)
    supervisor->observe(now);
  flush();
}

void Controller::tick_slowly() {
  if (ledger_.damaged()) return options_.shut_down(); // as a query has found
  ++ticks_;
  for (const store::DamagedRun& damaged : ledger_.take_damaged())
    set_aside(damaged);
  if (!unacknowledged_.empty())
    for (const auto& [key, sequence] : unacknowledged_)
      touch(key.run);
  flush();
  if (!ledger_.reserve().held() && ticks_ % 10 == 0 && ledger_.reserve().hold())
    log::info("control", "disk space is set aside again");
  for (const state::Command& c : state::pending_commands(state_))
    if (c.kind == state::CommandKind::kAcquireSlots) carry_out(c);
  const MonotonicTime now = MonotonicTime::now();
  std::erase_if(ended_samples_,
                [&](const auto& entry) { return now - entry.second.at > kEndedSampleKept; });
  constexpr int64_t kMinute = 60, kDay = 24 * 3600;
  // A list of ten thousand runs leaves megabytes behind that only the allocator still wants.
  if (ticks_ % kMinute == 0) ::malloc_trim(0);
  if (ticks_ % kDay == 0)
    if (auto done = ledger_.back_up(); !done)
      log::warning("control", "the ledger was not backed up", {{"why", done.error().what}});
}

} // namespace nsa::control
