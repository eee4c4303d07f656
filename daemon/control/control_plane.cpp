#include "daemon/control/control_plane.h"

#include "common/base/build_info.h"
#include "common/base/log.h"
#include "daemon/engines/kubernetes.h"
#include "daemon/engines/slurm.h"
#include "daemon/proc/node_readings.h"
#include "daemon/run_metrics/run_loader.h"
#include "daemon/run_metrics/shown_run.h"
#include "daemon/state/xid.h"

#include <algorithm>
#include <malloc.h>
#include <unistd.h>

namespace nsa::control {

namespace {
constexpr Duration kTick = std::chrono::milliseconds(100);
constexpr Duration kSlowTick = std::chrono::seconds(1);
// Time between the shims' own limit and the moment when nsad considers their ranks dead. A node
// notices a cut link later than the head does, and its ranks then need time to die.
constexpr Duration kOrphanSlack = std::chrono::seconds(15);
// These threads verify and delete gigabytes and ask the driver. Their jobs have no time limit.
constexpr net::OffloadLimits kWorkers{6, 3, 6, 4096, Duration::zero()};
// Calls of the host limit their time themselves. The limit for each submitter leaves threads for
// others. The queue is long, because nsad may adopt thousands of runs of one submitter.
constexpr net::OffloadLimits kCalls{8, 4, 8, 100'000, Duration::zero()};
} // namespace

static engines::EngineMap engines_of(const ControlOptions& options) {
  const spec::NodeKubernetesSection& given = options.config.kubernetes;
  return {{spec::EngineName::kSlurm, std::make_shared<engines::Slurm>()},
          {spec::EngineName::kKubernetes,
           std::make_shared<engines::Kubernetes>(engines::KubernetesSettings{
               given.image, given.space, given.claim, options.state_folder, ::getuid()})}};
}

ControlPlane::ControlPlane(net::EventLoop& loop, store::Ledger ledger, store::Telemetry telemetry,
                           ControlOptions options)
    : events_(loop), options_(std::move(options)), ledger_(std::move(ledger)),
      telemetry_(std::move(telemetry)), readers_(loop), workers_(loop, kWorkers),
      calls_(loop, kCalls), clock_(loop),
      slots_(static_cast<int>(options_.config.resources.cpu_slots)),
      offers_(loop, [this](const std::string& node,
                           const wire::Frame& frame) { return nodes_.send(node, frame); }),
      pushes_(workers_, offers_,
              [this](const std::string& node, const wire::Frame& frame) {
                return nodes_.send(node, frame);
              }),
      node_gpus_([this](const std::string& slot, uint64_t number) { on_xid(slot, number); }),
      remote_nodes_(loop, {[this](const std::string& node, const wire::Frame& frame) {
                             return nodes_.send(node, frame);
                           },
                           from_seconds(options_.config.cluster.orphan_seconds) + kOrphanSlack,
                           [this](const AttemptKey& key) { return is_wanted(key); },
                           [this](const std::string& node) { return nodes_.joined_at(node); },
                           [this](const std::string& node) {
                             const auto [offset, round_trip] = nodes_.clock_of(node);
                             return parts::NodeClock{offset, round_trip};
                           },
                           [this](const RunId& id) {
                             const state::Run* run = loop_.find(id);
                             return run == nullptr ? AttemptNumber{0} : run->attempt.number;
                           },
                           [this](const std::string& node, const std::string& why) {
                             nodes_.note_refused(node, why);
                           }}),
      probes_(remote_nodes_, workers_, probe_options()),
      launcher_({options_.host, options_.state_folder, options_.config, options_.program_folder,
                 options_.restart_daemon},
                workers_, calls_),
      nodes_launcher_(launcher_, remote_nodes_, calls_, launcher_options()),
      gpus_(loop, slots_, [this](const gpu::Xid& xid) { on_xid(xid.uuid, xid.number); }),
      provenance_(launcher_, slots_, options_.host, readers_), loop_(clock_, ledger_),
      metrics_(clock_, loop_, connections_, provenance_, &telemetry_),
      queries_({clock_, loop_, metrics_, ledger_, options_.host, readers_, workers_},
               {options_.state_folder, [this] { return status(); },
                [this](const RunId& run) { return jobs_.view_of(run); }}),
      commands_(
          {clock_, loop_, metrics_, ledger_, slots_, nodes_launcher_, connections_,
           [this](ShimListener& listener, ShimConnectionOptions shim) {
             return connect_shim(listener, std::move(shim));
           }},
          {options_.state_folder, options_.config.quota, options_.started,
           [this](const RunId& run, const wire::RankStep& step) { queries_.on_step(run, step); },
           [this](const wire::RunSummary& last) {
             queries_.on_closed(last);
             tell_people(spec::NoticeOf::kEnd, last,
                         last.state.text() + (last.reason.empty() ? "" : ": " + last.reason));
           },
           [this](const state::Run& run) {
             std::vector<RankGpu> gpus = gpus_.gpus_of(run);
             for (RankGpu& gpu : node_gpus_.of_ranks(run.attempt.slots))
               gpus.push_back(std::move(gpu));
             return gpus;
           },
           [this](const RunId& job) { return other_nodes(job); },
           [this](const RunId& run) { return jobs_.how_is(run); }}),
      requests_({clock_, loop_, metrics_, ledger_, slots_, connections_, options_.host, readers_,
                 workers_},
                {options_.state_folder,
                 std::make_shared<WorkerCheck>(launcher_.programs().at("nsa-worker")),
                 options_.shut_down,
                 !options_.config.cluster.address.empty() && !options_.system_mode,
                 [this] { return other_nodes({}); },
                 {[this](spec::EngineName engine) { return jobs_.check(engine); },
                  [this](const spec::RunSpec& spec) { return jobs_.dry_text(spec); }}}),
      quarantine_(clock_, loop_, ledger_,
                  [this](const GpuQuarantine::Entries& entries) {
                    std::map<std::string, std::string> why;
                    for (const auto& [uuid, row] : entries)
                      why[uuid] = row.why;
                    slots_.set_quarantine(std::move(why));
                  }),
      nodes_({loop, clock_, loop_, ledger_, quarantine_},
             {options_.config.cluster, options_.state_folder, proc::host_name(),
              [this](const std::string& node) { hold_runs_back(node); },
              [this] { return slots_.gpu_views(); },
              [this] {
                return node_gpus_.views([this](const auto& slot) { return slots_.owner_of(slot); });
              },
              [this](const std::string& node, const wire::Frame& frame) {
                if (frame.type == static_cast<uint8_t>(parts::Message::kGpus))
                  return node_gpus_.take(node, frame);
                if (frame.type == static_cast<uint8_t>(parts::Message::kAsk))
                  return offers_.take(node, frame);
                if (frame.type == static_cast<uint8_t>(parts::Message::kPushed))
                  return pushes_.take(node, frame);
                remote_nodes_.take(node, frame);
                if (frame.type == static_cast<uint8_t>(parts::Message::kHeld)) note_heard(node);
              },
              [this](const std::string& node) {
                offers_.on_lost(node);
                pushes_.on_lost(node);
                node_gpus_.forget(node);
                remote_nodes_.on_lost(node);
              },
              static_cast<int>(options_.config.resources.cpu_slots),
              [this](const std::string& node, const std::string& path) {
                return pushes_.start(node, path);
              },
              [this](const std::string& node) { return pushes_.last(node); },
              [this](const std::string& node, const wire::NetworkProbeRequest& wanted) {
                return probes_.start(node, wanted);
              },
              [this](const std::string& node) { return probes_.last(node); },
              [this](const std::string& node) { return run_on(node); }}),
      jobs_({clock_, loop_, ledger_, workers_},
            {engines_of(options_),
             [this](const RunId& run) {
               const RunRecord* record = metrics_.find(run);
               return record == nullptr ? nullptr : &record->spec;
             },
             options_.program_folder + "/nsad", options_.state_folder,
             [this] { return nodes_.job_address(); }, [this] { return nodes_.job_token(); },
             [this](const RunId& run) { return static_cast<int>(nodes_.cpu_slots(run).size()); },
             [this](const std::string& node) { nodes_.retire(node); }}),
      hooks_(loop,
             {options_.config.notify.command, options_.config.notify.webhook,
              from_seconds(options_.config.notify.timeout_seconds)},
             [this](const RunId& run, const std::string& what) { note_unheard(run, what); }),
      loop_delay_(kTick, MonotonicTime::now()), started_at_(WallTime::now()) {
  metrics::DaemonSample& counters = metrics_.counters();
  counters.version = build_info().version;
  counters.commit = build_info().commit;
  counters.node = proc::host_name();
  loop_.set_watcher([this](const Committed& done) {
    metrics_.counters()
        .transaction_seconds.try_emplace("append", metrics::request_histogram())
        .first->second.observe(to_seconds(done.took));
    queries_.on_committed(done);
    for (const store::EventRow& event : done.batch.events)
      if (event.kind == wire::EventKind::kHangFound)
        if (const state::Run* run = loop_.find(event.run))
          tell_people(spec::NoticeOf::kHang, metrics_.summary(*run), event.text);
  });
}

// ---- Start --------------------------------------------------------------------------------------

// Closes the run, names it in an event, and leaves its rows unchanged. All other runs continue.
void ControlPlane::set_aside(const store::DamagedRun& damaged) {
  log::error("control", "a run is set aside", {{"run", damaged.run}, {"why", damaged.why}});
  loop_.note(store::note_row(
      clock_.wall().nanoseconds, damaged.run, 0, wire::EventKind::kSetAside, wire::Severity::kError,
      "set aside, since the ledger's rows of it cannot be used: " + damaged.why));
  store::DamagedRun& closed = loop_.batch().damaged_runs.emplace_back(damaged);
  if (const auto label = ledger_.label(damaged.run).value_or(std::nullopt))
    closed.list_row = list_row(damaged_summary(*label, damaged.why));
}

Status ControlPlane::load_open_runs() {
  NSA_TRY_ASSIGN(const auto open, ledger_.open_runs());
  for (const RunId& id : open) {
    if (auto loaded = load_run(ledger_, id, options_.state_folder + "/runs/" + id, loop_, metrics_);
        !loaded) {
      // Data that cannot be read now may be readable later, so only a run with damaged rows is set
      // aside.
      if (loaded.error().code != ErrorCode::kCorrupt || ledger_.damaged())
        return fail(std::move(loaded).error().within("reading run " + id));
      set_aside({id, loaded.error().what});
      continue;
    }
    const state::Run& run = *loop_.find(id);
    if (run.phase == state::RunState::kQueued) continue; // it has released its slots, or will
    if (auto taken = slots_.take_back(id, run.device, run.slots); !taken)
      log::warning("control", "a slot is somebody else's by now",
                   {{"run", id}, {"why", taken.error().what}});
  }
  return {};
}

Status ControlPlane::start() {
  if (options_.config.resources.has_gpus())
    gpus_.start(options_.config.resources, options_.state_folder,
                [this](Done<gpu::Gpus> done) { launcher_.list_gpus(std::move(done)); });
  NSA_TRY(load_open_runs());
  // Must run before any slot is granted. A live attempt keeps its slots, even if the ledger does
  // not know it.
  NSA_TRY(Recovery({loop_, metrics_, ledger_, slots_, options_.host}, options_.state_folder)
              .take_up_live_shims());
  NSA_TRY(quarantine_.start());
  loop_.flush(); // supervisors read in the ledger which messages of their shim are known
  auto boot_id = proc::read_boot_id();
  (void)ledger_.note_node(proc::host_name(), boot_id ? *boot_id : "", build_info().version,
                          started_at_);
  NSA_TRY(nodes_.start());
  NSA_TRY(jobs_.start());
  loop_delay_ = LoopDelay(kTick, MonotonicTime::now());
  tick_timer_ = events_.every(kTick, [this] { tick(); });
  slow_timer_ = events_.every(kSlowTick, [this] { tick_slowly(); });
  commands_.carry_out_pending();
  return {};
}

void ControlPlane::finish_ended_runs(Duration limit) {
  const auto all_closed = [this] {
    const auto& runs = loop_.state().runs;
    return std::none_of(runs.begin(), runs.end(), [](const auto& entry) {
      const state::Run& run = entry.second;
      // A cancelled run ends soon, even if its shim is still being started.
      return has_ended(run.phase) || run.cancel_requested;
    });
  };
  if (all_closed()) return;
  const net::Timer look = events_.every(std::chrono::milliseconds(5), [&] {
    if (all_closed()) events_.stop();
  });
  if (!events_.run_for(limit))
    log::warning("control", "a run that is over still has a shim; the next nsad lets it go");
}

void ControlPlane::say_goodbye() {
  connections_.for_each([](ShimConnection& shim) { shim.say_goodbye(); });
  (void)ledger_.back_up();
}

bool ControlPlane::rescue_gone_ledger() {
  if (!ledger_.gone()) return false;
  if (auto done = ledger_.back_up(); !done)
    log::error("control", "the ledger has gone and was not backed up",
               {{"why", done.error().what}});
  return true;
}

// ---- Ticks --------------------------------------------------------------------------------------

void ControlPlane::tick() {
  // The next nsad restores the ledger's backup and adopts the live attempts.
  if (ledger_.damaged() || ledger_.gone()) return options_.shut_down();
  const MonotonicTime now = MonotonicTime::now();
  metrics_.counters().loop_lag_seconds.observe(to_seconds(loop_delay_.tick(now)));
  ++metrics_.counters().progress_reads;
  connections_.for_each([now](ShimConnection& shim) { shim.observe(now); });
  loop_.flush();
}

void ControlPlane::tick_slowly() {
  constexpr int64_t kReserveAgain = 10, kMinute = 60, kDay = 24 * 3600;
  ++ticks_;
  for (const store::DamagedRun& damaged : ledger_.take_damaged())
    set_aside(damaged);
  loop_.touch_unacknowledged();
  loop_.flush();
  if (!ledger_.reserve().held() && ticks_ % kReserveAgain == 0 && ledger_.reserve().hold())
    log::info("control", "disk space is set aside again");
  commands_.look_for_slots();
  jobs_.tick();
  metrics_.drop_old_samples();
  metrics_.counters().gpus.clear(); // gates read the temperatures
  gpus_.add_samples(metrics_.counters());
  // A list of ten thousand runs leaves megabytes in the allocator. This returns them to the kernel.
  if (ticks_ % kMinute == 0) ::malloc_trim(0);
  if (ticks_ % kDay == 0)
    if (auto done = ledger_.back_up(); !done)
      log::warning("control", "the ledger was not backed up", {{"why", done.error().what}});
}

void ControlPlane::hold_runs_back(const std::string& drained) {
  slots_.hold_back(
      drained.empty() ? "" : "node " + drained + " is drained; nsactl node undrain " + drained);
}

void ControlPlane::on_xid(const std::string& slot, uint64_t number) {
  std::optional<state::Event> fault;
  for (const auto& [id, run] : loop_.state().runs)
    for (size_t r = 0; r < run.attempt.slots.size(); ++r)
      if (run.attempt.slots[r] == slot)
        fault = state::Event{id, run.attempt.number, 0,
                             state::GpuFault{static_cast<Rank>(r), slot, number}};
  if (fault) loop_.submit(*fault);
  // A broken GPU goes into quarantine even if no rank computes on it.
  const state::XidMeaning meaning = state::xid_meaning(number);
  if (meaning.hardware)
    quarantine_.add(slot, "Xid " + std::to_string(number) + ", " + meaning.text);
}

// ---- Notifications ------------------------------------------------------------------------------

void ControlPlane::tell_people(spec::NoticeOf what, const wire::RunSummary& run,
                               const std::string& text) {
  const std::vector<spec::NoticeOf>& of = options_.config.notify.of;
  if (!hooks_.wanted() || std::find(of.begin(), of.end(), what) == of.end()) return;
  hooks_.tell({run.id,
               {{"event", what},
                {"text", text},
                {"at", wire::Time(clock_.wall().nanoseconds)},
                {"node", proc::host_name()},
                {"run", run}}});
}

void ControlPlane::note_unheard(const RunId& run, const std::string& what) {
  loop_.note(store::note_row( // the next tick writes it
      clock_.wall().nanoseconds, run, 0, wire::EventKind::kNotifyFailed, wire::Severity::kWarning,
      "nobody may have been told: " + what));
}

// ---- Readings -----------------------------------------------------------------------------------

nlohmann::json ControlPlane::status() {
  const auto [free, size] = proc::disk_space(options_.state_folder);
  nlohmann::json gpus = nlohmann::json::array();
  const auto known = [](const std::optional<double>& value) {
    return value ? nlohmann::json(*value) : nlohmann::json();
  };
  const std::vector<wire::GpuView> views = slots_.gpu_views(); // same order as the list
  for (size_t i = 0; i < views.size(); ++i) {
    const gpu::Gpu& g = slots_.gpus().list[i];
    gpus.push_back({{"index", g.index},
                    {"uuid", g.uuid},
                    {"name", g.name},
                    {"memory_bytes", g.memory_bytes},
                    {"state", views[i].state},
                    {"used_bytes", g.used_bytes},
                    {"processes", g.processes.size()},
                    {"temperature_celsius", known(g.temperature_celsius)},
                    {"power_watts", known(g.power_watts)},
                    {"utilization_ratio", known(g.utilization_ratio)}});
  }
  const auto visible = GpuWatch::visible_devices();
  return {{"pid", ::getpid()},
          {"version", build_info().version},
          {"commit", build_info().commit},
          {"started_at", wire::Time(started_at_.nanoseconds)},
          {"state_folder", options_.state_folder},
          {"socket", options_.socket},
          {"metrics", metrics_address_},
          {"loop_delay_seconds", loop_delay_.summary()},
          {"stuck_reads", readers_.stuck()},
          {"node", proc::host_name()},
          {"runs", loop_.state().runs.size()},
          {"attempts", connections_.size()},
          {"cpu_slots", slots_.capacity(spec::Device::kCpu)},
          {"cpu_slots_used", slots_.used(spec::Device::kCpu)},
          {"gpus", gpus},
          {"gpus_used", slots_.used(spec::Device::kCuda)},
          {"cuda_visible_devices", visible ? nlohmann::json(*visible) : nlohmann::json()},
          {"ledger", ledger_.path().string()},
          {"ledger_ok", !loop_.ledger_full()},
          {"reserve_held", ledger_.reserve().held()},
          {"disk_free_bytes", free},
          {"disk_size_bytes", size}};
}

metrics::Snapshot ControlPlane::snapshot(const std::map<std::string, metrics::RouteSample>& http) {
  metrics::Snapshot snapshot = metrics_.snapshot(options_.config.metrics.names);
  snapshot.daemon.http = http;
  snapshot.daemon.ledger_wal_bytes = ledger_.wal_bytes();
  snapshot.daemon.ledger_writable = !loop_.ledger_full();
  snapshot.daemon.reserve_held = ledger_.reserve().held();
  const auto add_slots = [&](spec::Device device) {
    const auto used = static_cast<uint64_t>(slots_.used(device));
    snapshot.daemon.slots[text_of(metrics::SlotState::kUsed)] += used;
    snapshot.daemon.slots[text_of(metrics::SlotState::kFree)] +=
        static_cast<uint64_t>(slots_.capacity(device)) - used;
  };
  add_slots(spec::Device::kCpu);
  add_slots(spec::Device::kCuda);
  snapshot.daemon.slots[text_of(metrics::SlotState::kFree)] -=
      static_cast<uint64_t>(slots_.quarantined());
  snapshot.daemon.gpus.clear();
  gpus_.add_samples(snapshot.daemon);
  nodes_.add_samples(snapshot.daemon);
  std::tie(snapshot.daemon.state_free_bytes, snapshot.daemon.state_size_bytes) =
      proc::disk_space(options_.state_folder);
  return snapshot;
}

} // namespace nsa::control
