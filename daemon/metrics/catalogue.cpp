#include "daemon/metrics/catalogue.h"

#include "common/progress/phase.h"
#include "common/wire/exit_code.h"
#include "daemon/metrics/process.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <span>

namespace nsa::metrics {

namespace {

// ---- closed lists of label values
// ----------------------------------------------------------------- Each value gets a series from
// the start: increase() over a counter misses the step from "no series" to 1. A value outside its
// list counts as "other", so that labels stay bounded.
constexpr auto kFirstEnd = static_cast<size_t>(wire::RunState::kCompleted);
// No run that has samples is damaged: its rows cannot be read.
constexpr auto kStates =
    std::span(kChoiceNames<wire::RunState>).first<static_cast<size_t>(wire::RunState::kDamaged)>();
constexpr auto kEndStates = kStates.subspan<kFirstEnd>();
constexpr std::array<std::string_view, 2> kRecoveryPhases = {"detect", "restore"};
constexpr std::array<std::string_view, 6> kRunPhases = {"train",      "data-wait", "checkpoint",
                                                        "evaluation", "restart",   "idle"};
constexpr std::array<std::string_view, 2> kCheckpointFailures = {"write", "verify"};
constexpr std::array<std::string_view, 3> kBranches = {"compressed", "selected", "sliding"};
constexpr std::array<std::string_view, 2> kSlotStates = {"free", "used"};

template <class List, class Map>
void by_word(Samples& samples, const Labels& labels, const char* label, const List& words,
             const Map& counts) {
  double other = 0;
  for (const auto& [word, count] : counts)
    if (std::find(words.begin(), words.end(), word) == words.end())
      other += static_cast<double>(count);
  for (const std::string_view word : words) {
    const auto found = counts.find(std::string(word));
    Labels all = labels;
    all.emplace_back(label, word);
    samples.value(std::move(all), found == counts.end() ? 0 : static_cast<double>(found->second));
  }
  if (other == 0) return;
  Labels all = labels;
  all.emplace_back(label, "other");
  samples.value(std::move(all), other);
}

// A rank says the names of its phases: those that nobody knows are one series, however many.
std::map<std::string, double> known_phases(const std::map<std::string, double>& told) {
  std::map<std::string, double> known;
  for (const auto& [phase, seconds] : told) {
    const bool listed = std::any_of(progress::kPhases.begin(), progress::kPhases.end(),
                                    [&](const auto& info) { return info.name == phase; });
    known[listed ? phase : "other"] += seconds;
  }
  return known;
}

struct Gate {
  int layer = 0;
  std::string_view branch;
  double mean = 0;
};
// "3/selected" -> layer 3. Of deep models every second layer, or every third, ...: curves of at
// most kMostLayers layers are told apart by nobody, and each has three series.
std::vector<Gate> known_gates(const std::map<std::string, double>& told) {
  constexpr int kMostLayers = 64, kDeepest = 100'000;
  std::vector<Gate> gates;
  int layers = 0;
  for (const auto& [key, mean] : told) {
    int layer = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), layer);
    const std::string_view rest(end, static_cast<size_t>(key.data() + key.size() - end));
    for (const std::string_view branch : kBranches)
      if (error == std::errc{} && layer >= 0 && layer < kDeepest &&
          rest == "/" + std::string(branch)) {
        gates.push_back({layer, branch, mean});
        layers = std::max(layers, layer + 1);
      }
  }
  const int stride = (layers + kMostLayers - 1) / kMostLayers;
  std::erase_if(gates, [&](const Gate& gate) { return gate.layer % stride != 0; });
  return gates;
}

// ---- readers
// --------------------------------------------------------------------------------------
Labels of(const RunSample& run) {
  return {{"run_id", run.id}};
}
Labels of(const RunSample& run, const RankSample& rank) {
  return {{"run_id", run.id}, {"rank", std::to_string(rank.rank)}};
}
double number(uint64_t value) {
  return static_cast<double>(value);
}
double number(WallTime time) {
  return time.seconds();
}

// A reader of one field of every run (rank): optional fields are left out while they are empty.
template <auto Field> void run_value(const Snapshot& snapshot, Samples& samples) {
  for (const RunSample& run : snapshot.runs) {
    const auto& field = run.*Field;
    if constexpr (requires { field.has_value(); }) {
      if (!field) continue;
      if constexpr (requires { field->nanoseconds; })
        samples.value(of(run), number(*field));
      else
        samples.value(of(run), *field);
    } else if constexpr (requires { field.nanoseconds; }) {
      if (field.nanoseconds != 0) samples.value(of(run), number(field));
    } else {
      samples.value(of(run), static_cast<double>(field));
    }
  }
}

template <auto Field> void rank_value(const Snapshot& snapshot, Samples& samples) {
  for (const RunSample& run : snapshot.runs)
    for (const RankSample& rank : run.ranks) {
      const auto& field = rank.*Field;
      if constexpr (requires { field.has_value(); }) {
        if (field) samples.value(of(run, rank), *field);
      } else if constexpr (requires { field.nanoseconds; }) {
        if (field.nanoseconds != 0) samples.value(of(run, rank), number(field));
      } else {
        samples.value(of(run, rank), static_cast<double>(field));
      }
    }
}

void step_skew(const Snapshot& snapshot, Samples& samples) {
  for (const RunSample& run : snapshot.runs) {
    std::vector<double> seconds;
    for (const RankSample& rank : run.ranks)
      if (rank.own_step_seconds > 0) seconds.push_back(rank.own_step_seconds);
    if (seconds.empty()) continue;
    std::sort(seconds.begin(), seconds.end());
    samples.value(of(run), seconds.back() / seconds[(seconds.size() - 1) / 2]);
  }
}

Labels of(const Snapshot& snapshot, const GpuSample& gpu) {
  return {{"node", snapshot.daemon.node}, {"gpu", std::to_string(gpu.index)}};
}

// Of every node that has joined this head.
template <auto Field> void node_value(const Snapshot& snapshot, Samples& samples) {
  for (const NodeSample& node : snapshot.daemon.nodes) {
    const auto& field = node.*Field;
    if constexpr (requires { field.has_value(); }) {
      if (field) samples.value({{"node", node.node}}, *field);
    } else if constexpr (requires { field.nanoseconds; }) {
      samples.value({{"node", node.node}}, number(field));
    } else {
      samples.value({{"node", node.node}}, field);
    }
  }
}

// Of every GPU of the node: {node, gpu} and one figure; what it does not tell is left out.
template <auto Field> void gpu_value(const Snapshot& snapshot, Samples& samples) {
  for (const GpuSample& gpu : snapshot.daemon.gpus) {
    const auto& field = gpu.*Field;
    if constexpr (requires { field.has_value(); }) {
      if (field) samples.value(of(snapshot, gpu), *field);
    } else {
      samples.value(of(snapshot, gpu), static_cast<double>(field));
    }
  }
}

using S = const Snapshot&;

std::vector<Row> run_rows() {
  using enum Type;
  return {
      // ---- runs ---------------------------------------------------------------------------------
      {"nsa_run_info",
       kGauge,
       "run_id, name, user, model, attention, spec_digest, commit",
       "Always 1; joins a run's names to its other series by run_id. `name` and `user` only where "
       "`metrics.names` of nsad.toml asks for them.",
       [](S s, Samples& out) {
         for (const RunSample& r : s.runs)
           out.value({{"run_id", r.id},
                      {"name", r.name},
                      {"user", r.user},
                      {"model", r.model},
                      {"attention", r.attention},
                      {"spec_digest", r.spec_digest},
                      {"commit", r.commit}},
                     1);
       },
       {},
       kQueryOnly},
      {"nsa_run_kernel_info",
       kGauge,
       "run_id, part, kernel",
       "Always 1; which kernel computes each part of the model, by the plan of the newest attempt. "
       "The rank's log has the reasons.",
       [](S s, Samples& out) {
         for (const RunSample& r : s.runs)
           for (const auto& [part, kernel] : r.kernels)
             out.value({{"run_id", r.id}, {"part", part}, {"kernel", kernel}}, 1);
       },
       {},
       kQueryOnly},
      {"nsa_run_state", kGauge, "run_id, state", "1 for the state that the run is in, else 0.",
       [](S s, Samples& out) {
         for (const RunSample& r : s.runs)
           for (const std::string_view state : kStates)
             out.value({{"run_id", r.id}, {"state", std::string(state)}}, r.state.view() == state);
       }},
      {"nsa_run_submit_timestamp_seconds",
       kGauge,
       "run_id",
       "When the run was submitted.",
       run_value<&RunSample::submitted>,
       {},
       kQueryOnly},
      {"nsa_run_start_timestamp_seconds",
       kGauge,
       "run_id",
       "When its first attempt started.",
       run_value<&RunSample::started>,
       {},
       kQueryOnly},
      {"nsa_run_eta_timestamp_seconds", kGauge, "run_id",
       "When the run will end at the present rate; absent while the rate is unknown.",
       run_value<&RunSample::eta>},
      {"nsa_run_planned_steps", kGauge, "run_id", "Optimizer updates that the run file asks for.",
       run_value<&RunSample::planned_steps>},
      {"nsa_run_attempt", kGauge, "run_id", "Number of the newest attempt, from 1.",
       run_value<&RunSample::attempt>},
      {"nsa_run_restarts_total",
       kCounter,
       "run_id, reason",
       "Restarts by class of failure (docs/runbook.md).",
       [](S s, Samples& out) {
         for (const RunSample& r : s.runs)
           by_word(out, of(r), "reason", kChoiceNames<wire::FailureClass>, r.restarts);
       },
       {"restarts", &RunSample::restarts}},
      {"nsa_run_rungs",
       kGauge,
       "run_id",
       "Rungs of the run's ladder that are in effect; 0: as the run file says.",
       run_value<&RunSample::rungs>,
       {},
       kQueryOnly},
      {"nsa_run_hangs_total",
       kCounter,
       "run_id",
       "Hangs found.",
       run_value<&RunSample::hangs>,
       {"hangs", &RunSample::hangs}},
      {"nsa_run_lost_steps_total",
       kCounter,
       "run_id",
       "Updates that had to be computed again after restarts.",
       run_value<&RunSample::lost_steps>,
       {"lost_steps", &RunSample::lost_steps}},
      {"nsa_run_recovery_duration_seconds",
       kHistogram,
       "run_id, phase",
       "Durations of hangs: detect, from the last progress to the verdict; restore, from the "
       "verdict to the next step.",
       [](S s, Samples& out) {
         static const Histogram none = recovery_histogram();
         for (const RunSample& r : s.runs)
           for (const std::string_view phase : kRecoveryPhases) {
             const auto found = r.recovery_seconds.find(std::string(phase));
             out.histogram({{"run_id", r.id}, {"phase", std::string(phase)}},
                           found == r.recovery_seconds.end() ? none : found->second);
           }
       },
       {"recovery_seconds", &RunSample::recovery_seconds}},
      {"nsa_run_phase_seconds_total",
       kCounter,
       "run_id, phase",
       "Wall time of the run by activity; goodput is train divided by the sum.",
       [](S s, Samples& out) {
         for (const RunSample& r : s.runs)
           by_word(out, of(r), "phase", kRunPhases, r.phase_seconds);
       },
       {"phase_seconds", &RunSample::phase_seconds}},

      // ---- training -----------------------------------------------------------------------------
      {"nsa_train_step", kGauge, "run_id", "Last completed update; it decreases at a restart.",
       run_value<&RunSample::step>},
      {"nsa_train_steps_total",
       kCounter,
       "run_id",
       "Updates computed, repeated ones included.",
       run_value<&RunSample::steps>,
       {"steps", &RunSample::steps},
       kQueryOnly},
      {"nsa_train_tokens_total",
       kCounter,
       "run_id",
       "Tokens trained on over all ranks, repeated ones included.",
       run_value<&RunSample::tokens>,
       {"tokens", &RunSample::tokens}},
      {"nsa_eval_loss", kGauge, "run_id, split", "Loss of the last evaluation, nats a token.",
       [](S s, Samples& out) {
         for (const RunSample& r : s.runs)
           if (r.heldout_loss) out.value({{"run_id", r.id}, {"split", "heldout"}}, *r.heldout_loss);
       }},
      {"nsa_train_tokens_per_second", kGauge, "run_id",
       "Rate over the last steps, as the ranks measure it; rate(nsa_train_tokens_total) is the "
       "average.",
       run_value<&RunSample::tokens_per_second>},
      {"nsa_train_nonfinite_steps_total",
       kCounter,
       "run_id",
       "Updates whose loss or gradient was not finite.",
       run_value<&RunSample::nonfinite_steps>,
       {"nonfinite_steps", &RunSample::nonfinite_steps}},
      {"nsa_train_exposed_communication_seconds_total",
       kCounter,
       "run_id",
       "Time for moving gradients and weights while nothing was left to compute: from each record, "
       "the shortest wait of any rank.",
       run_value<&RunSample::exposed_communication_seconds>,
       {"exposed_communication_seconds", &RunSample::exposed_communication_seconds}},
      {"nsa_train_flops_total",
       kCounter,
       "run_id",
       "Floating-point operations of the model, from its sizes; recomputation is not counted.",
       run_value<&RunSample::flops>,
       {"flops", &RunSample::flops}},
      {"nsa_train_mfu_ratio", kGauge, "run_id",
       "Model FLOPs a second over the GPUs' dense BF16 rate; absent on a CPU and on GPUs whose "
       "rate is not known.",
       run_value<&RunSample::mfu_ratio>},
      {"nsa_data_batches_total",
       kCounter,
       "run_id",
       "Micro-batches computed, over all ranks.",
       run_value<&RunSample::batches>,
       {"batches", &RunSample::batches}},
  };
}

std::vector<Row> step_rows() {
  std::vector<Row> rows;
  for (size_t i = 0; i < wire::kStepMetrics.size(); ++i) {
    const wire::Metric& metric = wire::kStepMetrics[i].metric;
    if (metric.prometheus.empty()) continue;
    const bool sum = metric.over == wire::OverRecords::kSum;
    rows.push_back({metric.prometheus,
                    sum ? Type::kCounter : Type::kGauge,
                    "run_id",
                    metric.meaning,
                    [i](S s, Samples& out) {
                      for (const RunSample& run : s.runs)
                        if (const auto& value = run.figures.at(i)) out.value(of(run), *value);
                    },
                    {},
                    metric.on_dashboard});
  }
  return rows;
}

std::vector<Row> rank_and_checkpoint_rows() {
  using enum Type;
  return {
      // ---- ranks --------------------------------------------------------------------------------
      {"nsa_rank_info",
       kGauge,
       "run_id, rank, node, gpu, gpu_uuid",
       "Always 1; where a rank runs.",
       [](S s, Samples& out) {
         for (const RunSample& r : s.runs)
           for (const RankSample& k : r.ranks) {
             Labels labels = of(r, k);
             labels.emplace_back("node", k.node);
             labels.emplace_back("gpu", k.gpu);
             labels.emplace_back("gpu_uuid", k.gpu_uuid);
             out.value(std::move(labels), 1);
           }
       },
       {},
       kQueryOnly},
      {"nsa_rank_up", kGauge, "run_id, rank", "1 while the rank's process lives.",
       rank_value<&RankSample::up>},
      {"nsa_rank_step", kGauge, "run_id, rank", "Last completed update of the rank.",
       rank_value<&RankSample::step>},
      {"nsa_rank_last_progress_timestamp_seconds", kGauge, "run_id, rank",
       "When its progress page last moved.", rank_value<&RankSample::last_progress>},
      {"nsa_rank_step_duration_seconds", kHistogram, "run_id, rank", "Time of completed updates.",
       [](S s, Samples& out) {
         for (const RunSample& r : s.runs)
           for (const RankSample& k : r.ranks)
             out.histogram(of(r, k), k.step_seconds);
       }},
      {"nsa_rank_phase_seconds_total", kCounter, "run_id, rank, phase",
       "Time by phase, as the rank reports it (forward, backward, all-reduce, ...).",
       [](S s, Samples& out) {
         for (const RunSample& r : s.runs)
           for (const RankSample& k : r.ranks)
             for (const auto& [phase, seconds] : known_phases(k.phase_seconds)) {
               Labels labels = of(r, k);
               labels.emplace_back("phase", phase);
               out.value(std::move(labels), seconds);
             }
       }},
      {"nsa_rank_perf_score_ratio", kGauge, "run_id, rank",
       "Step time of the fastest rank divided by this rank's, each without its wait for the "
       "others; below 0.75 the rank is a straggler.",
       rank_value<&RankSample::perf_score_ratio>},
      {"nsa_run_step_skew_ratio", kGauge, "run_id",
       "Step time of the slowest rank divided by the median rank's, each without its wait for the "
       "others; 1: all ranks are equally fast.",
       step_skew},
      {"nsa_rank_exposed_communication_seconds_total", kCounter, "run_id, rank",
       "Time that the rank's device waited for other ranks while nothing was left to compute; the "
       "slowest rank waits least.",
       rank_value<&RankSample::exposed_communication_seconds>},
      {"nsa_rank_memory_resident_bytes", kGauge, "run_id, rank", "Resident memory of the process.",
       rank_value<&RankSample::resident_bytes>},
      {"nsa_rank_memory_allocated_bytes", kGauge, "run_id, rank",
       "Device memory in tensors; 0 on a CPU.", rank_value<&RankSample::allocated_bytes>},
      {"nsa_rank_memory_reserved_bytes", kGauge, "run_id, rank",
       "Device memory that the allocator holds; 0 on a CPU.",
       rank_value<&RankSample::reserved_bytes>},
      {"nsa_rank_memory_peak_bytes", kGauge, "run_id, rank",
       "Highest device memory in tensors; 0 on a CPU.", rank_value<&RankSample::peak_bytes>},

      // ---- attention ----------------------------------------------------------------------------
      {"nsa_attention_gate_mean_ratio", kGauge, "run_id, layer, branch",
       "Mean gate of a branch (compressed, selected, sliding), sampled sparsely; of deep models at "
       "most 64 layers.",
       [](S s, Samples& out) {
         for (const RunSample& r : s.runs)
           for (const Gate& gate : known_gates(r.gates))
             out.value({{"run_id", r.id},
                        {"layer", std::to_string(gate.layer)},
                        {"branch", std::string(gate.branch)}},
                       gate.mean);
       }},

      {"nsa_run_failing_gates",
       kGauge,
       "run_id, metric, action",
       "Gates of the run file whose newest verdict is a failure, by what they look at and what "
       "they do.",
       [](S s, Samples& out) {
         for (const RunSample& r : s.runs)
           for (const auto& [which, count] : r.failing_gates)
             out.value({{"run_id", r.id}, {"metric", which.first}, {"action", which.second}},
                       number(count));
       },
       {},
       kQueryOnly},

      // ---- checkpoints --------------------------------------------------------------------------
      {"nsa_checkpoint_last_success_timestamp_seconds",
       kGauge,
       "run_id",
       "When the newest checkpoint was committed.",
       run_value<&RunSample::checkpoint_last_success>,
       {"checkpoint_last_success", &RunSample::checkpoint_last_success}},
      {"nsa_checkpoint_last_step",
       kGauge,
       "run_id",
       "Step of the newest checkpoint.",
       run_value<&RunSample::checkpoint_last_step>,
       {"checkpoint_last_step", &RunSample::checkpoint_last_step}},
      {"nsa_checkpoint_interval_steps",
       kGauge,
       "run_id",
       "Steps between checkpoints; 0: only at the end and on stop.",
       run_value<&RunSample::checkpoint_interval_steps>,
       {},
       kQueryOnly},
      {"nsa_checkpoint_size_bytes",
       kGauge,
       "run_id",
       "Size of the newest checkpoint.",
       run_value<&RunSample::checkpoint_bytes>,
       {"checkpoint_bytes", &RunSample::checkpoint_bytes}},
      {"nsa_checkpoint_verified_total",
       kCounter,
       "run_id",
       "Checkpoints that were read back completely after they were written.",
       run_value<&RunSample::checkpoints_verified>,
       {"checkpoints_verified", &RunSample::checkpoints_verified}},
      {"nsa_checkpoint_write_duration_seconds",
       kHistogram,
       "run_id",
       "Writing in the background, fsync included.",
       [](S s, Samples& out) {
         for (const RunSample& r : s.runs)
           out.histogram(of(r), r.checkpoint_write_seconds);
       },
       {"checkpoint_write_seconds", &RunSample::checkpoint_write_seconds}},
      {"nsa_checkpoint_blocked_seconds_total",
       kCounter,
       "run_id",
       "Time that training waited for checkpoints.",
       run_value<&RunSample::checkpoint_blocked_seconds>,
       {"checkpoint_blocked_seconds", &RunSample::checkpoint_blocked_seconds}},
      {"nsa_checkpoint_failures_total",
       kCounter,
       "run_id, reason",
       "Checkpoints that could not be written, or were found damaged.",
       [](S s, Samples& out) {
         for (const RunSample& r : s.runs)
           by_word(out, of(r), "reason", kCheckpointFailures, r.checkpoint_failures);
       },
       {"checkpoint_failures", &RunSample::checkpoint_failures}},

  };
}

std::vector<Row> daemon_rows() {
  using enum Type;
  return {
      {"nsad_build_info",
       kGauge,
       "version, commit, node",
       "Always 1; which nsad this is.",
       [](S s, Samples& out) {
         out.value(
             {{"version", s.daemon.version}, {"commit", s.daemon.commit}, {"node", s.daemon.node}},
             1);
       },
       {},
       kQueryOnly},
      {"nsa_runs", kGauge, "state", "Runs by state, as the ledger has them.",
       [](S s, Samples& out) { by_word(out, {}, "state", kStates, s.daemon.runs); }},
      {"nsa_runs_finished_total", kCounter, "result", "Runs that ended, by result.",
       [](S s, Samples& out) { by_word(out, {}, "result", kEndStates, s.daemon.runs_finished); }},
      {"nsa_node_slots", kGauge, "state", "CPU slots or GPUs of this node: free, used.",
       [](S s, Samples& out) { by_word(out, {}, "state", kSlotStates, s.daemon.slots); }},
      {"nsa_storage_free_bytes", kGauge, "", "Free space where nsad keeps its state.",
       [](S s, Samples& out) { out.value({}, number(s.daemon.state_free_bytes)); }},
      {"nsa_storage_size_bytes", kGauge, "", "Size of that file system.",
       [](S s, Samples& out) { out.value({}, number(s.daemon.state_size_bytes)); }},
      {"nsa_gpu_info",
       kGauge,
       "node, gpu, uuid, model, driver",
       "Always 1; a GPU of this node.",
       [](S s, Samples& out) {
         for (const GpuSample& g : s.daemon.gpus)
           out.value({{"node", s.daemon.node},
                      {"gpu", std::to_string(g.index)},
                      {"uuid", g.uuid},
                      {"model", g.model},
                      {"driver", s.daemon.driver}},
                     1);
       },
       {},
       kQueryOnly},
      {"nsa_gpu_memory_total_bytes", kGauge, "node, gpu", "Memory of a GPU.",
       gpu_value<&GpuSample::memory_bytes>},
      {"nsa_gpu_memory_used_bytes", kGauge, "node, gpu", "Memory in use on a GPU, by any process.",
       gpu_value<&GpuSample::used_bytes>},
      {"nsa_gpu_utilization_ratio", kGauge, "node, gpu",
       "Share of the driver's last sample period in which a kernel ran on a GPU.",
       gpu_value<&GpuSample::utilization_ratio>},
      {"nsa_gpu_temperature_celsius", kGauge, "node, gpu", "Temperature of a GPU.",
       gpu_value<&GpuSample::temperature_celsius>},
      {"nsa_gpu_power_watts", kGauge, "node, gpu", "Power that a GPU draws.",
       gpu_value<&GpuSample::power_watts>},
      {"nsa_gpu_sm_clock_hertz", kGauge, "node, gpu", "Clock of a GPU's multiprocessors.",
       gpu_value<&GpuSample::sm_clock_hertz>},
      {"nsa_gpu_ecc_errors_total", kCounter, "node, gpu, type",
       "Memory errors of a GPU since its driver was loaded: corrected, uncorrected.",
       [](S s, Samples& out) {
         for (const GpuSample& g : s.daemon.gpus)
           for (const auto& [type, count] : g.ecc_errors) {
             Labels labels = of(s, g);
             labels.emplace_back("type", type);
             out.value(std::move(labels), number(count));
           }
       }},
      {"nsa_gpu_xid_errors_total", kCounter, "node, gpu, xid",
       "Errors that the driver reported on a GPU since nsad was started, by Xid.",
       [](S s, Samples& out) {
         for (const GpuSample& g : s.daemon.gpus)
           for (const auto& [xid, count] : g.xid_errors) {
             Labels labels = of(s, g);
             labels.emplace_back("xid", std::to_string(xid));
             out.value(std::move(labels), number(count));
           }
       }},
      {"nsa_gpu_quarantined", kGauge, "node, gpu",
       "1 if a GPU is in quarantine: no run gets it until nsactl gpu release.",
       [](S s, Samples& out) {
         for (const GpuSample& g : s.daemon.gpus)
           out.value(of(s, g), g.is_quarantined ? 1 : 0);
       }},
      {"nsa_gpu_processes", kGauge, "node, gpu",
       "Processes of any user that computed on a GPU when nsad last looked.",
       gpu_value<&GpuSample::processes>},
      {"nsad_http_requests_total", kCounter, "route, code", "Requests to the API and /metrics.",
       [](S s, Samples& out) {
         for (const auto& [route, sample] : s.daemon.http)
           for (const auto& [code, count] : sample.requests)
             out.value({{"route", route}, {"code", std::to_string(code)}}, number(count));
       }},
      {"nsad_http_request_duration_seconds",
       kHistogram,
       "route",
       "Time until the answer's header is sent; followed streams continue after it.",
       [](S s, Samples& out) {
         for (const auto& [route, sample] : s.daemon.http)
           out.histogram({{"route", route}}, sample.seconds);
       },
       {},
       kQueryOnly},
      {"nsad_progress_reads_total",
       kCounter,
       "",
       "How often nsad has read the progress pages of all ranks.",
       [](S s, Samples& out) { out.value({}, number(s.daemon.progress_reads)); },
       {},
       kQueryOnly},
      {"nsad_event_loop_lag_seconds", kHistogram, "",
       "How late the daemon's timer fires; hang limits grow by as much.",
       [](S s, Samples& out) { out.histogram({}, s.daemon.loop_lag_seconds); }},
      {"nsad_sqlite_transaction_duration_seconds", kHistogram, "op",
       "Time of ledger transactions (append, query) and of telemetry batches (batch).",
       [](S s, Samples& out) {
         for (const auto& [op, histogram] : s.daemon.transaction_seconds)
           out.histogram({{"op", op}}, histogram);
       }},
      {"nsad_ledger_writable", kGauge, "",
       "1 while the ledger takes what nsad writes; 0: the disk is full or refuses, and nothing new "
       "is begun.",
       [](S s, Samples& out) { out.value({}, s.daemon.ledger_writable); }},
      {"nsad_reserve_held", kGauge, "",
       "1 while nsad holds the space that it keeps for its records on a full disk.",
       [](S s, Samples& out) { out.value({}, s.daemon.reserve_held); }},
      {"nsad_sqlite_wal_bytes",
       kGauge,
       "",
       "Size of the ledger's write-ahead log.",
       [](S s, Samples& out) { out.value({}, number(s.daemon.ledger_wal_bytes)); },
       {},
       kQueryOnly},
  };
}

std::vector<Row> node_rows() {
  using enum Type;
  return {
      {"nsa_node_up", kGauge, "node",
       "Of each node that has joined this head: 1 while the head hears it.",
       node_value<&NodeSample::up>},
      {"nsa_node_clock_offset_seconds", kGauge, "node",
       "The head's clock minus the node's, by the newest heartbeat; absent while it is not heard.",
       node_value<&NodeSample::clock_offset_seconds>},
      {"nsa_node_round_trip_seconds",
       kGauge,
       "node",
       "Time of a heartbeat and its answer; absent while the node is not heard.",
       node_value<&NodeSample::round_trip_seconds>,
       {},
       kQueryOnly},
      {"nsa_node_certificate_expiry_timestamp_seconds",
       kGauge,
       "node",
       "When the node's newest certificate ends; connected nodes renew it before.",
       node_value<&NodeSample::certificate_expires>,
       {},
       kQueryOnly},
      {"nsa_node_refusals_total",
       kCounter,
       "",
       "Calls to the port for nodes that were refused, since nsad was started.",
       [](S s, Samples& out) { out.value({}, static_cast<double>(s.daemon.node_refusals)); },
       {},
       kQueryOnly},
  };
}

} // namespace

const std::vector<Row>& catalogue() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> all;
    for (std::vector<Row>& part : std::array{run_rows(), step_rows(), rank_and_checkpoint_rows(),
                                             daemon_rows(), node_rows()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return rows;
}

std::string catalogue_markdown() {
  static constexpr std::array<const char*, 3> kTypes = {"gauge", "counter", "histogram"};
  std::string table = "| metric | type | labels | meaning |\n|---|---|---|---|\n";
  std::string text = "Query only, for joins, alerts or a look behind a panel:";
  size_t line = text.size();
  const char* separator = " ";
  for (const std::vector<Row>* rows : {&catalogue(), &process_catalogue()})
    for (const Row& row : *rows) {
      table += "| `" + std::string(row.name) + "` | " + kTypes[static_cast<size_t>(row.type)] +
               " | " + std::string(row.labels) + " | " + std::string(row.meaning) + " |\n";
      if (row.on_dashboard) continue;
      text += separator;
      line += row.name.size() + 4;
      if (line > 118) {
        text.back() = '\n';
        line = row.name.size() + 3;
      }
      text += "`" + std::string(row.name) + "`";
      separator = ", ";
    }
  return text + ".\n\n" + table;
}

std::string step_metrics_markdown() {
  static constexpr std::array kUnits = {"", "nats", "tokens", "tokens/s", "steps", "s", "bytes"};
  static constexpr std::array kOver = {"", "newest", "sum"};
  std::string text = "| key | unit | of a run | TensorBoard | Prometheus | meaning |\n"
                     "|---|---|---|---|---|---|\n";
  const auto code = [](std::string_view name) {
    return name.empty() ? std::string() : "`" + std::string(name) + "`";
  };
  for (const auto& row : wire::kStepMetrics) {
    const wire::Metric& m = row.metric;
    text += "| `" + std::string(row.name) + "` | " + kUnits[static_cast<size_t>(m.unit)] + " | " +
            kOver[static_cast<size_t>(m.over)] + " | " + code(m.tensorboard) + " | " +
            code(m.prometheus) + " | " + std::string(m.meaning) + " |\n";
  }
  return text;
}

} // namespace nsa::metrics
