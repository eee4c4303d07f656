"""Client: nsad's HTTP API (docs/api.md) from Python, over its unix socket. Needs only the standard library.

    from nsad import Client
    client = Client(start=True)                       # this user's nsad, started if there is none
    run = client.submit("run.toml", {"train.steps": 2000})
    for line in client.follow(run.id):
        print(line.type, line.event.text if line.event else line.data)
    print(client.run(run.id).summary.state)

Answers are the dataclasses of nsad.views. Fields that a newer nsad adds are in `more`. A status of 400 or above raises
ApiError.
"""
import contextlib
import http.client
import json
import os
import pathlib
import socket
import subprocess
from urllib.parse import quote, urlencode

from nsad import views

API = 2  # of the header Nsa-Api
SYSTEM_SOCKET = "/run/nsa/nsad.sock"


class ApiError(Exception):
    """nsad refused a request, or cannot be reached (code "unreachable"). `next` says what to do."""

    def __init__(self, status, code, what, next="", problems=(), candidates=()):
        super().__init__(what + (f"\n  hint: {next}" if next else ""))
        self.status, self.code, self.what, self.next = status, code, what, next
        self.problems = [views.read(views.Problem, item) for item in problems]
        self.candidates = list(candidates)


class _Connection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("nsad", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self.path)
        except OSError as error:
            raise ApiError(0, "unreachable", f"no nsad answers on {self.path}: {error.strerror}",
                           "start it: nsactl daemon start") from error


def user_sockets():
    """Sockets where this user's nsad may listen, in the order in which nsactl tries them."""
    if os.environ.get("NSA_SOCKET"):
        return [os.environ["NSA_SOCKET"]]
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    places = [os.path.join(runtime, "nsa", "nsad.sock")] if runtime else []
    return [*places, os.path.join(state, "nsa", "nsad.sock")]


def _program(name):
    beside = pathlib.Path(__file__).resolve().parent / "bin" / name
    return str(beside) if beside.exists() else name


class Client:
    """A client of one nsad. Thread-safe: every request has its own connection."""

    def __init__(self, socket_path=None, *, system=False, start=False, timeout=30.0):
        """Connects to the nsad at `socket_path`. Without it: to this user's nsad, or with `system` to that of the
        node. `start` starts this user's nsad if it does not run."""
        if socket_path and (system or start):
            raise ValueError("a socket_path names a running nsad: leave system and start out")
        if start and system:
            raise ValueError("the node's nsad is started by its unit, not by a client")
        self.timeout = timeout
        if start:
            done = subprocess.run([_program("nsactl"), "daemon", "start"], capture_output=True, text=True)
            if done.returncode != 0:
                raise ApiError(0, "unreachable", done.stderr.strip() or "nsactl daemon start failed")
        places = [socket_path] if socket_path else [SYSTEM_SOCKET] if system else user_sockets()
        self.socket_path = next((p for p in places if os.path.exists(p)), places[0])

    # ---- the daemon ------------------------------------------------------------------------------------
    def version(self):
        return views.read(views.Version, self.request("GET", "/v1/version"))

    def daemon(self):
        """Facts about nsad, as in `nsactl daemon status -o json`."""
        return self.request("GET", "/v1/daemon")

    def audit(self, run=None, *, tail=None):
        """Who changed what: the last rows, oldest first, of one run or of all runs. The run may be removed already."""
        return self._items("/v1/audit", views.Audit, run=run, tail=tail)

    # ---- nodes and GPUs --------------------------------------------------------------------------------
    def nodes(self, all=False):
        """The nodes, this nsad's own first. `all` includes removed nodes."""
        return self._items("/v1/nodes", views.Node, all=all)

    def node(self, node):
        return views.read(views.Node, self.request("GET", _node(node)))

    def node_token(self):
        """A token with which one node may join."""
        return views.read(views.NodeToken, self.request("POST", "/v1/node-tokens"))

    def remove_node(self, node):
        """Removes the node; the head refuses its certificate from now on."""
        return views.read(views.Node, self.request("DELETE", _node(node)))

    def drain(self, node):
        """No new run starts on the node."""
        return views.read(views.Node, self.request("POST", _node(node, "/drain")))

    def undrain(self, node):
        return views.read(views.Node, self.request("POST", _node(node, "/undrain")))

    def push_data(self, node, path):
        """Copies a data set to the node; pushed_data() reports the progress."""
        return views.read(views.DataPush, self.request("POST", _node(node, "/data"), {"path": str(path)}))

    def pushed_data(self, node):
        return views.read(views.DataPush, self.request("GET", _node(node, "/data")))

    def probe(self, node, other, *, cpu=False, interface=""):
        """Measures the network between two nodes; probed() has the figures. `cpu` measures over TCP even if the nodes
        have GPUs."""
        body = {"with": other, "cpu": cpu, "interface": interface}
        return views.read(views.NetworkProbe, self.request("POST", _node(node, "/probe"), body))

    def probed(self, node):
        return views.read(views.NetworkProbe, self.request("GET", _node(node, "/probe")))

    def gpus(self):
        """The GPUs of all connected nodes."""
        return self._items("/v1/gpus", views.Gpu)

    def release_gpu(self, gpu):
        """Releases a GPU from quarantine. `gpu`: an index, a UUID, or a GPU of another node such as "bee/1"."""
        return views.read(views.Gpu, self.request("POST", f"/v1/gpus/{quote(str(gpu), safe='')}/release"))

    # ---- runs ------------------------------------------------------------------------------------------
    def runs(self, all=False):
        """RunSummary of each live run, or of all stored runs."""
        return self._items("/v1/runs", views.RunSummary, all=all)

    def run(self, run):
        """RunDetail of a run, given by id, prefix of an id, name or "@last"."""
        return views.read(views.RunDetail, self.request("GET", self._of(run)))

    def submit(self, file, overrides=None, *, name="", environment=None, dry_run=False):
        """Starts the run of a run file. `overrides`: keys and values as in TOML, such as {"train.steps": 2000}."""
        path = pathlib.Path(file).resolve()
        body = {"toml": path.read_text(), "file_name": str(file), "folder": str(path.parent),
                "overrides": [f"{key}={_toml(value)}" for key, value in (overrides or {}).items()], "name": name,
                "environment": environment or {}, "dry_run": dry_run}
        return views.read(views.Submitted, self.request("POST", "/v1/runs", body))

    def stop(self, run):
        """Ends the run after a checkpoint."""
        return views.read(views.RunSummary, self.request("POST", self._of(run, "/stop")))

    def cancel(self, run):
        """Ends the run now."""
        return views.read(views.RunSummary, self.request("POST", self._of(run, "/cancel")))

    def resume(self, run, overrides=None, *, from_step=None, from_start=False, dry_run=False):
        body = {"overrides": [f"{key}={_toml(value)}" for key, value in (overrides or {}).items()],
                "from_start": from_start, "dry_run": dry_run, "from_step": -1 if from_step is None else from_step}
        return views.read(views.Submitted, self.request("POST", self._of(run, "/resume"), body))

    def set(self, run, *, name=None, note=None, tags=None):
        """Changes the given values. The run may have ended."""
        given = {"run.name": name, "run.note": note, "run.tags": tags}
        overrides = [f"{key}={_toml(value)}" for key, value in given.items() if value is not None]
        return views.read(views.RunSummary, self.request("POST", self._of(run, "/set"), {"overrides": overrides}))

    def spec(self, run, attempt=None):
        """The resolved run file of an attempt (None: the newest one), as a dictionary."""
        return self.request("GET", _with(self._of(run, "/spec"), {"attempt": attempt}))

    def remove(self, run):
        """Removes an ended run and its files."""
        self.request("DELETE", self._of(run))

    def checkpoint(self, run):
        """Asks for a checkpoint after the current step."""
        self.request("POST", self._of(run, "/checkpoint"))

    def checkpoints(self, run, verify=False):
        return self._items(self._of(run, "/checkpoints"), views.Checkpoint, verify=verify)

    def events(self, run=None, *, after=None, limit=None, tail=None):
        """The events of one run or of all runs."""
        target = self._of(run, "/events") if run else "/v1/events"
        return self._items(target, views.Event, after=after, limit=limit, tail=tail)

    # ---- streams ---------------------------------------------------------------------------------------
    def follow(self, run=None):
        """Yields each FollowLine until the run ends. Without `run` it follows all runs and does not end."""
        for line in self._lines(self._of(run, "/follow") if run else "/v1/follow"):
            yield views.read(views.FollowLine, line)

    def logs(self, run, *, rank=None, attempt=None, tail=None, follow=False):
        """Yields each LogLine."""
        for line in self._lines(self._of(run, "/logs"), rank=rank, attempt=attempt, tail=tail, follow=follow):
            yield views.read(views.LogLine, line)

    def metrics(self, run, *, kind="step", metrics=(), points=None):
        """The records of the run's metrics.jsonl, as dictionaries."""
        wanted = {"kind": kind, "metrics": ",".join(metrics) or None, "points": points}
        for line in self._lines(self._of(run, "/metrics"), **wanted):
            if line.get("kind") != "end":
                yield line

    # ---- requests --------------------------------------------------------------------------------------
    def request(self, method, target, body=None):
        """Calls any route of docs/api.md and returns the JSON answer."""
        with self._open(method, target, body, self.timeout) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def _of(self, run, rest=""):
        return f"/v1/runs/{quote(run, safe='')}{rest}"

    def _items(self, target, view, **parameters):
        return [views.read(view, item) for item in self.request("GET", _with(target, parameters))["items"]]

    def _lines(self, target, **parameters):
        with self._open("GET", _with(target, parameters), None, None) as answer:
            for line in answer:  # http.client raises IncompleteRead where the last chunk is missing
                value = json.loads(line)
                if value.get("type") == "cut-off":
                    raise ApiError(200, "unavailable", value.get("what", "the stream was cut off"))
                yield value

    @contextlib.contextmanager
    def _open(self, method, target, body, timeout):
        connection = _Connection(self.socket_path, timeout)
        try:
            text = None if body is None else json.dumps(body)
            headers = {"Nsa-Api": str(API), **({"Content-Type": "application/json"} if text else {})}
            try:
                connection.request(method, target, text, headers)
                answer = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                raise ApiError(0, "unreachable", f"nsad on {self.socket_path} gave no answer: {error}") from error
            if answer.status >= 400:
                _refuse(answer)
            yield answer
        finally:
            connection.close()


def _refuse(answer):
    text = answer.read()
    try:
        said = json.loads(text)
        raise ApiError(answer.status, said["code"], said["what"], said.get("next", ""), said.get("problems", ()),
                       said.get("candidates", ()))
    except (ValueError, KeyError, TypeError):
        raise ApiError(answer.status, "internal", f"nsad answered {answer.status}: {text[:200]!r}") from None


def _node(node, rest=""):
    return f"/v1/nodes/{quote(node, safe='')}{rest}"


def _with(target, parameters):
    given = {k: (int(v) if isinstance(v, bool) else v) for k, v in parameters.items() if v is not None and v is not False}
    return target + ("?" + urlencode(given) if given else "")


def _toml(value):
    """A value in the form that --set reads; a text stays unchanged."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(json.dumps(item) for item in value) + "]"
    return str(value)
