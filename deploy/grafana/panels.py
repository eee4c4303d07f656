"""Contents of the four dashboards, with every panel as data. generate.py writes Grafana's JSON from it.
tests/e2e/prometheus sends each query to a real Prometheus and compares the answer with `shows`.

A panel has a description, a unit, the values for a warning and an error, and a section of docs/runbook.md or another
page that says what to do.
"""
from dataclasses import dataclass, field

NODE = '{job=~"$job",instance=~"$instance"}'
RUN = '{job=~"$job",instance=~"$instance",run_id=~"$run_id"}'
RANK = '{job=~"$job",instance=~"$instance",run_id=~"$run_id",rank=~"$rank"}'
RATE = "[$__rate_interval]"


@dataclass
class Shows:
    """What a panel must show for the test's run: 250 steps of two ranks, one hang, one restart."""
    low: float = 0.0             # every value is between low and high
    high: float = float("inf")
    top: float | None = None     # the greatest value, within 20 %
    gpu: bool = False            # no values without a GPU


@dataclass
class Panel:
    title: str
    text: str
    unit: str
    runbook: str
    queries: list                # (expression, legend)
    warn: float | None = None    # yellow and red from this value on; downwards if `falling`
    bad: float | None = None
    falling: bool = False
    kind: str = "timeseries"     # timeseries, stat, bargauge, heatmap
    width: int = 8
    shows: Shows = field(default_factory=Shows)

    @property
    def what_to_do(self):
        """runbook.md#section, or a section of the page that `runbook` names."""
        return self.runbook if "#" in self.runbook else "runbook.md#" + self.runbook


def share(**other):
    return Shows(high=1.0001, **other)


FLEET = [("Now", [
    Panel("Nodes that answer", "Nodes whose nsad Prometheus could scrape, and those it could not.", "short", "runbook-node.md#a-node-is-lost",
          [(f"sum(up{NODE})", "answer"), (f'count(up{NODE} == 0) or vector(0)', "do not answer")],
          bad=10_000, kind="stat", width=6, shows=Shows(top=1)),
    Panel("Runs by state", "Runs of all nodes, as their ledgers have them.", "short", "the-run-stays-queued",
          [(f"sum by (state) (nsa_runs{NODE})", "{{state}}")], bad=10_000, kind="stat", width=12, shows=Shows(top=1)),
    Panel("Slots", "CPU slots and GPUs: free and used.", "short", "the-run-stays-queued",
          [(f"sum by (state) (nsa_node_slots{NODE})", "{{state}}")], bad=100_000, kind="stat", width=6, shows=Shows(top=2)),
]), ("Work", [
    Panel("Tokens a second", "Of all runs, repeated steps included.", "short", "throughput-fell",
          [(f"sum by (instance) (rate(nsa_train_tokens_total{NODE}{RATE}))", "{{instance}}")], warn=1, falling=True,
          shows=Shows(high=1e6)),
    Panel("Progress of runs", "Completed updates over planned ones.", "percentunit", "the-run-stays-queued",
          [(f"max by (run_id) (nsa_train_step{NODE}) / max by (run_id) (nsa_run_planned_steps{NODE})", "{{run_id}}")],
          bad=2, kind="bargauge", shows=share(top=1)),
    Panel("Goodput", "Share of the wall time of all runs that training took.", "percentunit", "throughput-fell",
          [(f'sum(rate(nsa_run_phase_seconds_total{{job=~"$job",instance=~"$instance",phase="train"}}{RATE})) / '
            f"sum(rate(nsa_run_phase_seconds_total{NODE}{RATE}))", "train")], warn=0.8, bad=0.5, falling=True, shows=share()),
]), ("Trouble", [
    Panel("Restarts by run", "In the time range.", "short", "the-run-failed-though-restarts-are-left",
          [(f"sum by (run_id) (increase(nsa_run_restarts_total{NODE}[$__range]))", "{{run_id}}")], warn=1, bad=3,
          kind="bargauge", shows=Shows(high=1.5)),
    Panel("Hangs by run", "In the time range.", "short", "hang",
          [(f"sum by (run_id) (increase(nsa_run_hangs_total{NODE}[$__range]))", "{{run_id}}")], warn=1, bad=3,
          kind="bargauge", shows=Shows(high=1.5)),
    Panel("Ended runs", "By how they ended, since nsad keeps count.", "short", "classes-of-failures",
          [(f"sum by (result) (nsa_runs_finished_total{NODE})", "{{result}}")], bad=1e6, kind="bargauge", shows=Shows(top=1)),
    Panel("Free disk", "Free share of the file system of each node's state.", "percentunit", "runbook-node.md#the-disk-is-full",
          [(f"nsa_storage_free_bytes{NODE} / nsa_storage_size_bytes{NODE}", "{{instance}}")], warn=0.1, bad=0.05,
          falling=True, width=12, shows=share()),
    Panel("Ledgers and reserves", "1: the ledger takes what nsad writes, and the reserve for a full disk is held.", "short",
          "runbook-node.md#the-disk-is-full", [(f"nsad_ledger_writable{NODE}", "ledger {{instance}}"),
                               (f"nsad_reserve_held{NODE}", "reserve {{instance}}")], bad=1, falling=True, width=12,
          shows=share(top=1)),
])]

RUN_BOARD = [("Health", [
    Panel("State", "The state that the run is in.", "none", "classes-of-failures",
          [(f"max by (state) (nsa_run_state{RUN}) == 1", "{{state}}")], bad=2, kind="stat", width=6, shows=Shows(low=1, high=1)),
    Panel("Progress", "Completed updates over planned ones.", "percentunit", "the-run-stays-queued",
          [(f"max by (run_id) (nsa_train_step{RUN}) / max by (run_id) (nsa_run_planned_steps{RUN})", "{{run_id}}")],
          bad=2, kind="stat", width=6, shows=share(top=1)),
    Panel("Time left", "At the present rate; empty while the rate is unknown and after the end.", "dtdurations",
          "throughput-fell", [(f"max by (run_id) (nsa_run_eta_timestamp_seconds{RUN}) - time()", "{{run_id}}")],
          warn=7 * 86400, kind="stat", width=6, shows=Shows(low=-60, high=3600)),
    Panel("Attempt", "The newest attempt; each restart and each resume begins one.", "none",
          "the-run-failed-though-restarts-are-left", [(f"nsa_run_attempt{RUN}", "{{run_id}}")], warn=3, bad=4, kind="stat",
          width=6, shows=Shows(low=0, high=2, top=2)),
]), ("Learning", [
    Panel("Loss", "Training and held-out loss as sampled by Prometheus; the whole curve: nsactl plot.", "none",
          "the-loss-diverges", [(f"nsa_train_loss{RUN}", "training {{run_id}}"), (f"nsa_eval_loss{RUN}", "{{split}} {{run_id}}")],
          warn=12, width=12, shows=Shows(low=1, high=7)),
    Panel("Gradient norm", "Before clipping: of the last step, and the largest of the last record's steps.", "none",
          "the-loss-diverges", [(f"nsa_train_grad_norm{RUN}", "{{run_id}}"),
                                (f"nsa_train_largest_grad_norm{RUN}", "largest {{run_id}}")], warn=10, bad=100, width=12, shows=Shows(high=100)),
    Panel("Gradient norm by layer", "Before clipping, of each layer, the embedding and the final norm.", "none",
          "the-loss-diverges", [(f"nsa_train_layer_grad_norm{RUN}", "{{layer}} {{run_id}}")], warn=10, bad=100, width=12,
          shows=Shows(high=100)),
    Panel("Distance of selected blocks", "Mean over a layer's queries, from a query's own block to those that its scores chose.",
          "none", "a-gate-collapsed", [(f"nsa_attention_selected_distance_tokens{RUN}", "layer {{layer}} {{run_id}}")],
          warn=512, falling=True, width=6, shows=Shows(low=2 * 16, high=128)),
    Panel("Overlap of selected blocks", "Share of the blocks chosen by scores that the next query chose, too.", "percentunit",
          "a-gate-collapsed", [(f"nsa_attention_selected_overlap_ratio{RUN}", "layer {{layer}} {{run_id}}")],
          warn=0.999, width=6, shows=share()),
    Panel("Learning rate", "Of the last step.", "none", "the-loss-diverges",
          [(f"nsa_train_learning_rate{RUN}", "{{run_id}}")], warn=1, shows=Shows(high=0.0031)),
    Panel("Steps that were not finite", "Updates whose loss or gradient was not finite.", "short", "non-finite",
          [(f"increase(nsa_train_nonfinite_steps_total{RUN}{RATE})", "{{run_id}}")], bad=1, shows=Shows(top=0)),
    Panel("Clipped steps", "Updates whose gradient norm was above train.gradient_clip.", "short", "the-loss-diverges",
          [(f"increase(nsa_train_clipped_steps_total{RUN}{RATE})", "{{run_id}}")], warn=1000, shows=Shows(high=1000)),
    Panel("Gate by branch", "Mean over layers of the gate that each branch gets.", "percentunit", "a-gate-collapsed",
          [(f"avg by (run_id, branch) (nsa_attention_gate_mean_ratio{RUN})", "{{branch}} {{run_id}}")], warn=0.05, bad=0.02,
          falling=True, width=12, shows=share(top=None)),
    Panel("Gate of the selected branch by layer", "How much each layer relies on selected blocks.", "percentunit",
          "a-gate-collapsed", [(f'nsa_attention_gate_mean_ratio{RUN[:-1]},branch="selected"}}', "layer {{layer}} {{run_id}}")],
          warn=0.05, bad=0.02, falling=True, width=12, shows=share()),
]), ("Speed", [
    Panel("Tokens per second", "Average over the rate interval, repeated steps included, and as the ranks measure it.", "short",
          "throughput-fell", [(f"rate(nsa_train_tokens_total{RUN}{RATE})", "average {{run_id}}"),
                              (f"nsa_train_tokens_per_second{RUN}", "measured {{run_id}}")], warn=1, falling=True,
          width=12, shows=Shows(high=1e6)),
    Panel("Step time over all ranks", "Quantiles of completed updates, and the slowest update of rank 0's last record.", "s",
          "throughput-fell", [(f"histogram_quantile({q}, sum by (run_id, le) (rate(nsa_rank_step_duration_seconds_bucket{RUN}{RATE})))",
                               f"p{q * 100:g} {{{{run_id}}}}") for q in (0.5, 0.95, 0.99)] +
          [(f"max by (run_id) (nsa_train_slowest_step_seconds{RUN})", "slowest {{run_id}}")], warn=30, width=12,
          shows=Shows(high=600)),
    Panel("Step time, distribution", "Completed updates of all ranks by duration.", "s", "throughput-fell",
          [(f"sum by (le) (rate(nsa_rank_step_duration_seconds_bucket{RUN}{RATE}))", "{{le}}")], warn=30, kind="heatmap",
          shows=Shows(high=1000)),
    Panel("Time of the run", "What wall time was spent on; goodput is the share of train.", "percentunit", "throughput-fell",
          [(f"sum by (phase) (rate(nsa_run_phase_seconds_total{RUN}{RATE})) / ignoring(phase) group_left "
            f"sum(rate(nsa_run_phase_seconds_total{RUN}{RATE}))", "{{phase}}")], bad=2, shows=share()),
    Panel("Waiting for data", "Share of time that rank 0 waited for a micro-batch.", "percentunit", "data",
          [(f"rate(nsa_data_wait_seconds_total{RUN}{RATE})", "{{run_id}}")], warn=0.05, bad=0.2, shows=Shows(high=100)),
    Panel("Micro-batches a second", "Over all ranks.", "short", "throughput-fell",
          [(f"rate(nsa_data_batches_total{RUN}{RATE})", "{{run_id}}")], warn=0.001, falling=True, shows=Shows(high=2000)),
    Panel("FLOPs a second", "Operations of the model a second; recomputation is not counted.", "short", "throughput-fell",
          [(f"rate(nsa_train_flops_total{RUN}{RATE})", "{{run_id}}")], warn=1, falling=True, shows=Shows(high=1e13)),
    Panel("Model FLOPs utilisation", "Operations of the model over what the GPUs can do in BF16; nothing on a CPU.",
          "percentunit", "throughput-fell", [(f"nsa_train_mfu_ratio{RUN}", "{{run_id}}")], warn=0.2, bad=0.1, falling=True,
          shows=Shows(gpu=True)),
]), ("Checkpoints", [
    Panel("Age", "Time since the newest checkpoint was committed.", "s", "a-checkpoint-is-old",
          [(f"time() - nsa_checkpoint_last_success_timestamp_seconds{RUN}", "{{run_id}}")], warn=3600, bad=4 * 3600,
          shows=Shows(low=-2, high=900)),
    Panel("Steps since the last", "Updates that would be computed again after a failure now.", "short", "a-checkpoint-is-old",
          [(f"max by (run_id) (nsa_train_step{RUN}) - max by (run_id) (nsa_checkpoint_last_step{RUN})", "{{run_id}}")],
          warn=10_000, shows=Shows(low=-250, high=250)),
    Panel("Write time", "Mean of writing in the background, fsync included.", "s", "checkpoints-fail",
          [(f"rate(nsa_checkpoint_write_duration_seconds_sum{RUN}{RATE}) / "
            f"(rate(nsa_checkpoint_write_duration_seconds_count{RUN}{RATE}) > 0)", "{{run_id}}")], warn=60, bad=600,
          shows=Shows(high=600)),
    Panel("Standstill", "Share of time that training stood still for checkpoints.", "percentunit", "checkpoints-fail",
          [(f"rate(nsa_checkpoint_blocked_seconds_total{RUN}{RATE})", "{{run_id}}")], warn=0.02, bad=0.1, shows=Shows(high=100)),
    Panel("Verified and failed", "Checkpoints that were read back whole, and those that were not written or are damaged.",
          "short", "checkpoints-fail", [(f"increase(nsa_checkpoint_verified_total{RUN}{RATE})", "verified {{run_id}}"),
                                        (f"increase(nsa_checkpoint_failures_total{RUN}{RATE})", "{{reason}} {{run_id}}")],
          warn=1000, shows=Shows(high=100)),
    Panel("Size", "Of the newest checkpoint.", "bytes", "runbook-node.md#the-disk-is-full",
          [(f"nsa_checkpoint_size_bytes{RUN}", "{{run_id}}")], warn=1e12, shows=Shows(high=1e8)),
])]

RANKS = [("Hangs and restarts", [
    Panel("Hangs", "Found in the time range.", "short", "hang",
          [(f"sum(increase(nsa_run_hangs_total{RUN}[$__range]))", "hangs")], warn=1, bad=3, kind="stat", width=6,
          shows=Shows(high=1.5)),
    Panel("Restarts by reason", "By class of failure.", "short", "classes-of-failures",
          [(f"sum by (reason) (increase(nsa_run_restarts_total{RUN}{RATE})) > 0", "{{reason}}")], warn=1, bad=3, width=6,
          shows=Shows(high=2)),
    Panel("Recovery time", "Of hangs, mean: detect, until the verdict; restore, from there to the next step.", "s", "hang",
          [(f"sum by (phase) (nsa_run_recovery_duration_seconds_sum{RUN}) / "
            f"(sum by (phase) (nsa_run_recovery_duration_seconds_count{RUN}) > 0)", "{{phase}}")], warn=60, bad=600, width=6,
          shows=Shows(high=600)),
    Panel("Steps computed again", "Updates that were lost to restarts.", "short", "a-checkpoint-is-old",
          [(f"max by (run_id) (nsa_run_lost_steps_total{RUN})", "{{run_id}}")], warn=100, bad=1000, width=6,
          shows=Shows(high=100)),
]), ("Ranks", [
    Panel("Since last progress", "Age of the last movement of each rank's progress page.", "s", "hang",
          [(f"time() - nsa_rank_last_progress_timestamp_seconds{RANK} and nsa_rank_up{RANK} == 1", "rank {{rank}} {{run_id}}")],
          warn=30, bad=300, width=12, shows=Shows(low=-2, high=600)),
    Panel("Ranks that live", "1 while the rank's process lives.", "short", "crash",
          [(f"nsa_rank_up{RANK}", "rank {{rank}} {{run_id}}")], bad=1, falling=True, width=12, shows=share(top=1)),
    Panel("Step of each rank", "Last completed update; goes back at a restart.", "none", "hang",
          [(f"nsa_rank_step{RANK}", "rank {{rank}} {{run_id}}")], warn=1, falling=True, shows=Shows(high=250)),
    Panel("Mean step time by rank", "A rank that stands above the others is a straggler.", "s", "a-rank-is-slow",
          [(f"rate(nsa_rank_step_duration_seconds_sum{RANK}{RATE}) / rate(nsa_rank_step_duration_seconds_count{RANK}{RATE})",
            "rank {{rank}} {{run_id}}")], warn=30, shows=Shows(high=600)),
    Panel("Speed against the fastest", "Step time of the fastest rank over this one's, each without its wait for the others.",
          "percentunit", "a-rank-is-slow", [(f"nsa_rank_perf_score_ratio{RANK}", "rank {{rank}} {{run_id}}")], warn=0.9, bad=0.75,
          falling=True, kind="bargauge", shows=share(top=1)),
    Panel("Skew", "Step time of the slowest rank over the median one, each without its wait for the others; 1 is even.", "none",
          "a-rank-is-slow", [(f"nsa_run_step_skew_ratio{RUN}", "{{run_id}}")], warn=1.2, bad=1.5, shows=Shows(low=1, high=1e3)),
    Panel("Time by phase", "Share of each rank's time by phase.", "percentunit", "a-rank-is-slow",
          [(f"avg by (phase) (rate(nsa_rank_phase_seconds_total{RANK}{RATE}))", "{{phase}}")], bad=2, shows=Shows(high=100)),
    Panel("Waiting for other ranks", "Share of the time in which a rank had nothing left to compute; the slowest waits least.",
          "percentunit", "a-rank-is-slow",
          [(f"rate(nsa_train_exposed_communication_seconds_total{RUN}{RATE})", "all wait {{run_id}}"),
           (f"rate(nsa_rank_exposed_communication_seconds_total{RANK}{RATE})", "rank {{rank}} {{run_id}}")], warn=0.2, bad=0.5,
          shows=Shows(high=100)),
]), ("Memory", [
    Panel("Resident memory", "Of each rank's process.", "bytes", "host-out-of-memory",
          [(f"nsa_rank_memory_resident_bytes{RANK}", "rank {{rank}} {{run_id}}")], warn=1e12, shows=Shows(high=4e9)),
    Panel("Device memory", "Allocated in tensors and reserved by the allocator; 0 on a CPU.", "bytes", "gpu-out-of-memory",
          [(f"nsa_rank_memory_allocated_bytes{RANK}", "allocated, rank {{rank}}"),
           (f"nsa_rank_memory_reserved_bytes{RANK}", "reserved, rank {{rank}}")], warn=1e12, shows=Shows(top=0)),
    Panel("Peak device memory", "Highest allocation so far; 0 on a CPU.", "bytes", "gpu-out-of-memory",
          [(f"nsa_rank_memory_peak_bytes{RANK}", "rank {{rank}} {{run_id}}")], warn=1e12, shows=Shows(top=0)),
])]

NODE_BOARD = [("nsad", [
    Panel("Ledger and reserve", "1: the ledger takes what nsad writes, and the reserve for a full disk is held.", "short",
          "runbook-node.md#the-disk-is-full", [(f"nsad_ledger_writable{NODE}", "ledger"), (f"nsad_reserve_held{NODE}", "reserve")], bad=1,
          falling=True, kind="stat", width=6, shows=share(top=1)),
    Panel("Disk", "Free share of the file system where nsad keeps its state.", "percentunit", "runbook-node.md#the-disk-is-full",
          [(f"nsa_storage_free_bytes{NODE} / nsa_storage_size_bytes{NODE}", "free {{instance}}")], warn=0.1, bad=0.05,
          falling=True, width=6, shows=share()),
    Panel("Slots", "CPU slots or GPUs of a node by use.", "short", "the-run-stays-queued",
          [(f"sum by (instance, state) (nsa_node_slots{NODE})", "{{state}} {{instance}}")], bad=100_000, width=6,
          shows=Shows(top=2)),
    Panel("Uptime", "Since nsad was started; ranks outlive it.", "s", "runbook-node.md#nsad-is-gone",
          [(f"time() - process_start_time_seconds{NODE}", "{{instance}}")], warn=60, falling=True, kind="stat", width=6,
          shows=Shows(high=1800)),
    Panel("Joined nodes", "Nodes of this head's cluster that it hears, and those that it has lost.", "short",
          "runbook-node.md#a-node-is-lost", [(f"sum(nsa_node_up{NODE}) or vector(0)", "heard"),
                                            (f"count(nsa_node_up{NODE} == 0) or vector(0)", "lost")],
          bad=100_000, kind="stat", width=12, shows=Shows(top=0)),
    Panel("Clock offset of nodes", "The head's clock minus the node's; logs of nodes that differ cannot be compared.", "s",
          "runbook-node.md#a-node-is-lost", [(f"max(abs(nsa_node_clock_offset_seconds{NODE})) or vector(0)", "largest")],
          warn=0.01, bad=1, kind="stat", width=12, shows=Shows(top=0)),
    Panel("Delays, p99", "How late the event loop runs, and how long the ledger's transactions take.", "s", "runbook-node.md#nsad-is-gone",
          [(f"histogram_quantile(0.99, sum by (le) (rate(nsad_event_loop_lag_seconds_bucket{NODE}{RATE})))", "event loop"),
           (f"histogram_quantile(0.99, sum by (op, le) (rate(nsad_sqlite_transaction_duration_seconds_bucket{NODE}{RATE})))",
            "ledger {{op}}")], warn=0.1, bad=1, shows=Shows(high=10)),
    Panel("CPU of nsad", "Share of one core.", "percentunit", "runbook-node.md#nsad-is-gone",
          [(f"rate(process_cpu_seconds_total{NODE}{RATE})", "{{instance}}")], warn=0.5, bad=0.9, shows=Shows(high=2)),
    Panel("Memory of nsad", "Resident.", "bytes", "runbook-node.md#nsad-is-gone",
          [(f"process_resident_memory_bytes{NODE}", "{{instance}}")], warn=5e8, bad=2e9, shows=Shows(low=1e6, high=1e9)),
    Panel("Requests a second", "By route, to the API and /metrics.", "short", "runbook-node.md#nsad-is-gone",
          [(f"sum by (route) (rate(nsad_http_requests_total{NODE}{RATE}))", "{{route}}")], warn=100, width=12,
          shows=Shows(high=1000)),
    Panel("Open files", "Of those that nsad may open.", "percentunit", "runbook-node.md#nsad-refuses-to-start",
          [(f"process_open_fds{NODE} / process_max_fds{NODE}", "{{instance}}")], warn=0.5, bad=0.9, width=12, shows=share()),
]), ("GPUs", [
    Panel("GPU memory in use", "By anybody, when nsad last looked; nothing without a GPU.", "percentunit", "gpu-out-of-memory",
          [(f"nsa_gpu_memory_used_bytes{NODE} / nsa_gpu_memory_total_bytes{NODE}", "{{node}} {{gpu}}")], warn=0.9, bad=0.98,
          shows=Shows(gpu=True)),
    Panel("Processes on the GPUs", "Anybody's, when nsad last looked.", "short", "the-run-stays-queued",
          [(f"nsa_gpu_processes{NODE}", "{{node}} {{gpu}}")], warn=2, shows=Shows(gpu=True)),
    Panel("GPU utilisation", "Share of the driver's last sample period in which a kernel ran.", "percentunit", "a-rank-is-slow",
          [(f"nsa_gpu_utilization_ratio{NODE}", "{{node}} {{gpu}}")], warn=0.1, falling=True, shows=Shows(gpu=True)),
    Panel("GPU temperature", "Of each GPU.", "celsius", "hardware",
          [(f"nsa_gpu_temperature_celsius{NODE}", "{{node}} {{gpu}}")], warn=80, bad=87, shows=Shows(gpu=True)),
    Panel("GPU power", "That each GPU draws.", "watt", "hardware",
          [(f"nsa_gpu_power_watts{NODE}", "{{node}} {{gpu}}")], warn=700, bad=1000, shows=Shows(gpu=True)),
    Panel("GPU clock", "Of the multiprocessors; it falls at the power or temperature limit.", "hertz", "a-rank-is-slow",
          [(f"nsa_gpu_sm_clock_hertz{NODE}", "{{node}} {{gpu}}")], warn=1e9, falling=True, shows=Shows(gpu=True)),
    Panel("GPUs in quarantine", "No run gets them until nsactl gpu release.", "short", "runbook-node.md#a-gpu-is-in-quarantine",
          [(f"nsa_gpu_quarantined{NODE} > 0", "{{node}} {{gpu}}")], warn=1, bad=1, width=24, shows=Shows(gpu=True)),
    Panel("GPU errors", "Xids that the driver reported and memory errors, as they come.", "short", "hardware",
          [(f"increase(nsa_gpu_xid_errors_total{NODE}{RATE}) > 0", "Xid {{xid}}, {{node}} {{gpu}}"),
           (f"increase(nsa_gpu_ecc_errors_total{NODE}{RATE}) > 0", "{{type}}, {{node}} {{gpu}}")], warn=1, bad=1, width=24,
          shows=Shows(gpu=True)),
])]

# file name, title, description, rows, number of chained variables: 2 are job and instance, 3 the run, 4 its ranks.
BOARDS = [
    ("nsa-fleet", "NSA fleet", "All nodes and runs: what runs, how much, and where there is trouble.", FLEET, 2),
    ("nsa-run", "NSA run", "One training run: health, learning, speed, checkpoints.", RUN_BOARD, 3),
    ("nsa-ranks", "NSA ranks and hangs", "The ranks of a run: which are slow, which make no progress, what restarts cost.", RANKS, 4),
    ("nsa-node", "NSA node and daemon", "nsad itself, its disk and its ledger, and the GPUs of its node.", NODE_BOARD, 2),
]
# name, colour, expression: marks on the time axis of dashboards of runs.
ANNOTATIONS = [
    ("Restart", "yellow", f"changes(nsa_run_attempt{RUN}[$__interval]) > 0"),
    ("Hang", "red", f"increase(nsa_run_hangs_total{RUN}{RATE}) > 0"),
    ("Checkpoint", "blue", f"changes(nsa_checkpoint_last_step{RUN}[$__interval]) > 0"),
]
