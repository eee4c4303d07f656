"""The answers of nsad as dataclasses, with the fields of common/wire/api_types.h, node_view.h and gpu_view.h.

Times are texts, RFC 3339 in UTC; None: never. Durations are seconds, sizes bytes. `more` has the fields that this
version does not know.
"""
import dataclasses
import typing
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional


@dataclass
class View:
    more: Dict[str, Any] = field(default_factory=dict, kw_only=True, repr=False)


def read(view, value):
    """A dataclass of `view` from JSON. Missing fields keep their defaults."""
    members = {f.name.rstrip("_"): f.name for f in dataclasses.fields(view) if f.name != "more"}
    hints = typing.get_type_hints(view)
    known = {name: _read_as(hints[name], value[key]) for key, name in members.items() if key in value}
    return view(**known, more={k: v for k, v in value.items() if k not in members})


def _read_as(kind, value):
    if value is None:
        return None
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is list and dataclasses.is_dataclass(arguments[0]):
        return [read(arguments[0], item) for item in value]
    if typing.get_origin(kind) is typing.Union:
        kind = arguments[0]
    return read(kind, value) if dataclasses.is_dataclass(kind) else value


@dataclass
class Version(View):
    api: int = 0
    version: str = ""
    commit: str = ""
    compiler: str = ""


# ---- by tools/python-views, from common/wire


@dataclass
class Problem(View):
    """ProblemView."""
    file: str = ""
    line: int = 0
    column: int = 0
    key: str = ""
    what: str = ""
    next: str = ""


@dataclass
class Submitted(View):
    """SubmitReply."""
    id: str = ""
    name: str = ""
    state: str = ""
    reason: str = ""
    warnings: List[str] = field(default_factory=list)
    exactness: str = ""
    job_text: str = ""


@dataclass
class Gate(View):
    """GateView."""
    name: str = ""
    metric: str = ""
    over: str = ""
    action: str = ""
    bound: str = ""
    first_step: int = 0
    window_steps: int = 0
    state: str = ""
    value: Any = None
    from_step: int = 0
    to_step: int = 0


@dataclass
class RunSummary(View):
    id: str = ""
    name: str = ""
    state: str = ""
    reason: str = ""
    attempt: int = 0
    ranks: int = 0
    restarts: int = 0
    resumes: int = 0
    hangs: int = 0
    steps: int = 0
    eta_seconds: float = 0.0
    loss_trend: List[float] = field(default_factory=list)
    submitted_at: Optional[str] = None
    started_at: Optional[str] = None
    ended_at: Optional[str] = None
    waits_until: Optional[str] = None
    inject: str = ""
    user: str = ""
    note: str = ""
    tags: List[str] = field(default_factory=list)
    alarms: List[str] = field(default_factory=list)
    lost_steps: int = 0
    failure_class: str = ""
    gates: List[Gate] = field(default_factory=list)
    from_: str = ""  # "from" is a word of Python
    rung: str = ""
    step: int = 0
    tokens: int = 0
    loss: float = 0.0
    heldout_loss: float = 0.0
    has_loss: bool = False
    has_heldout_loss: bool = False
    tokens_per_second: float = 0.0
    data_wait_ratio: float = 0.0
    exposed_communication_ratio: float = 0.0


@dataclass
class Rank(View):
    """RankView."""
    rank: int = 0
    pid: int = 0
    state: str = ""
    phase: str = ""
    step: int = 0
    phase_age_seconds: float = 0.0
    step_seconds: float = 0.0
    exposed_communication_ratio: float = 0.0
    start_up_seconds: Dict[str, float] = field(default_factory=dict)
    resident_bytes: int = 0
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    peak_bytes: int = 0
    device: str = ""
    compute_precision: str = ""
    gpu_uuid: str = ""
    last_progress_at: Optional[str] = None
    exit: str = ""


@dataclass
class Attempt(View):
    """AttemptView."""
    attempt: int = 0
    state: str = ""
    reason: str = ""
    failure_class: str = ""
    first_step: int = 0
    last_step: int = 0
    started_at: Optional[str] = None
    ended_at: Optional[str] = None
    provenance: Any = None


@dataclass
class Toggle(View):
    """ToggleView."""
    attempt: int = 0
    name: str = ""
    requested: str = ""
    effective: str = ""
    origin: str = ""


@dataclass
class Checkpoint(View):
    """CheckpointView."""
    run: str = ""
    step: int = 0
    tokens: int = 0
    bytes: int = 0
    attempt: int = 0
    folder: str = ""
    state: str = ""
    problem: str = ""
    finite: bool = True
    written_at: Optional[str] = None


@dataclass
class Event(View):
    """EventView."""
    sequence: int = 0
    at: Optional[str] = None
    run: str = ""
    attempt: int = 0
    rank: int = -1
    kind: str = ""
    severity: str = ""
    text: str = ""
    detail: Any = None


@dataclass
class Audit(View):
    """AuditView."""
    sequence: int = 0
    at: Optional[str] = None
    uid: int = 0
    pid: int = 0
    user: str = ""
    verb: str = ""
    run: str = ""
    owner: int = -1
    result: str = ""
    why: str = ""


@dataclass
class Descendant(View):
    """DescendantView."""
    id: str = ""
    name: str = ""
    from_step: int = 0


@dataclass
class Job(View):
    """JobView."""
    engine: str = ""
    job: str = ""
    state: str = ""
    reason: str = ""
    submitted_at: Optional[str] = None


@dataclass
class RunDetail(View):
    summary: RunSummary = field(default_factory=RunSummary)
    spec: Any = None
    estimate: Any = None
    came: Any = None
    mfu_of_token_rate: float = 0.0
    attempts: List[Attempt] = field(default_factory=list)
    ranks: List[Rank] = field(default_factory=list)
    toggles: List[Toggle] = field(default_factory=list)
    checkpoints: List[Checkpoint] = field(default_factory=list)
    last_events: List[Event] = field(default_factory=list)
    run_folder: str = ""
    hangs: List[Any] = field(default_factory=list)
    descendants: List[Descendant] = field(default_factory=list)
    job: Job = field(default_factory=Job)
    figures: Dict[str, float] = field(default_factory=dict)


@dataclass
class LogLine(View):
    attempt: int = 0
    rank: int = 0
    time: str = ""
    stream: str = ""
    text: str = ""
    position: str = ""


@dataclass
class FollowLine(View):
    type: str = ""
    summary: Optional[RunSummary] = None
    event: Optional[Event] = None
    data: Any = None


@dataclass
class NetworkFigures(View):
    latency_seconds: float = 0.0
    bytes_per_second: float = 0.0
    by: str = ""


@dataclass
class NetworkLink(View):
    node: str = ""
    figures: NetworkFigures = field(default_factory=NetworkFigures)
    measured_at: Optional[str] = None


@dataclass
class Node(View):
    """NodeView."""
    name: str = ""
    role: str = ""
    state: str = ""
    address: str = ""
    problem: str = ""
    build: str = ""
    boot_id: str = ""
    processors: int = 0
    cpu_slots: int = 0
    run: str = ""
    memory_bytes: int = 0
    gpus: List[str] = field(default_factory=list)
    joined_at: Optional[str] = None
    certificate_expires_at: Optional[str] = None
    heard_at: Optional[str] = None
    drained_at: Optional[str] = None
    removed_at: Optional[str] = None
    clock_offset_seconds: float = 0.0
    round_trip_seconds: float = 0.0
    network: List[NetworkLink] = field(default_factory=list)


@dataclass
class NodeToken(View):
    token: str = field(default="", repr=False)
    head: str = ""
    expires_at: Optional[str] = None


@dataclass
class DataPush(View):
    node: str = ""
    path: str = ""
    digest: str = ""
    state: str = ""
    here_bytes: int = 0
    total_bytes: int = 0
    fetched_bytes: int = 0
    damaged: int = 0
    seconds: float = 0.0
    problem: str = ""
    next: str = ""


@dataclass
class NetworkProbe(View):
    node: str = ""
    with_: str = ""  # "with" is a word of Python
    state: str = ""
    figures: NetworkFigures = field(default_factory=NetworkFigures)
    measured_at: Optional[str] = None
    problem: str = ""
    next: str = ""


@dataclass
class Gpu(View):
    """GpuView."""
    node: str = ""
    index: int = 0
    uuid: str = ""
    name: str = ""
    memory_bytes: int = 0
    state: str = ""
    run: str = ""
    why: str = ""
    quarantined_at: Optional[str] = None
    quarantined_by_run: str = ""
