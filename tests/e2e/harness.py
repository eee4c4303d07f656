"""Shared by the end-to-end scripts: a separate node, real programs, bounded waits, a JSON record.

A script defines `case(node, seed) -> dict` and calls `main(case, ...)`. Each seed runs on a new node, which has its own
state and runtime folders and its own nsad, and uses only loopback. Exit code 77 means "cannot run here", and the last
line of output says why.
"""
import argparse
import calendar
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIP_EXIT_CODE = 77

# A step takes milliseconds, but this is still NSA: its selection really chooses. A script may stop a rank during one of
# its first checkpoints, so the limit of that phase is below LIMIT.
TINY_RUN = """schema = 1
[run]
name = "{name}"
[model]
vocabulary = 320
dimension = 32
layers = 1
heads = 2
kv_groups = 1
head_dimension = 16
[nsa]
compression_block = 8
compression_stride = 4
selection_block = 16
selected_blocks = 4
window = 32
[data]
path = "{data}"
[eval]
interval_steps = 0
batches = 2
[train]
steps = {steps}
sequence_length = 128
micro_batch = 2
learning_rate = 3e-3
warmup_steps = 5
seed = {seed}
[precision]
compute = "fp32"
[parallel]
ranks = {ranks}
device = "cpu"
[checkpoint]
interval_steps = {checkpoint_interval}
keep_last = 3
[hang]
floor_seconds = 3
first_step_seconds = 60
checkpoint_seconds = 20
[restart]
delay_seconds = 0.2
"""


class Failed(AssertionError):
    """A promise does not hold."""


class Skipped(Exception):
    """This machine cannot run the test; the text says what is missing."""


SANITIZED = os.environ.get("TESTS_SANITIZER", "")  # asan or tsan, from tools/sanitize: memory figures mean nothing there
LIMIT = 120  # in seconds: only a broken program takes so long, even on a machine that is ten times slower
PEER_LOST = 8  # a rank's exit code if a collective failed because a peer was gone
FOREVER = 100_000  # of a run that lives until it is stopped, however busy the machine is


def skip_part(part, reason):
    """Says that the rest of the test runs without this part. tools/run-tests counts the line as a skipped case."""
    print(f"skipped part: {part}: {' '.join(str(reason).split())}", flush=True)


def expect_close(losses, straight, note=""):
    """Compares the losses of two runs that add the same numbers in another order. Since each step builds on the one
    before, they may differ by 1e-6 of the value for each step since they first differed. Returns the largest
    difference."""
    expect(set(losses) == set(straight), f"steps differ: {len(losses)} and {len(straight)}")
    different = [step for step in sorted(straight) if losses[step] != straight[step]]
    for step in different:
        allowed = 1e-6 * (step - different[0] + 1) * abs(straight[step])
        expect(abs(losses[step] - straight[step]) <= allowed,
               f"step {step}: {losses[step]}, {straight[step]} in the undisturbed run; they differ from step {different[0]} on {note}")
    return max((abs(losses[step] - straight[step]) for step in different), default=0.0)


def expect(condition, message):
    if not condition:
        raise Failed(message)


def wait_for(what, condition, timeout=LIMIT, interval=0.05):
    """Polls `condition` until it returns something true. After `timeout` seconds it raises Failed, which names
    `what`."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Failed(f"waited {timeout} s for {what}")
        time.sleep(interval)


def own_death(node, run, rank):
    """Returns the exit event of a rank that died by itself in attempt 1. nsad names it as the cause, and its peers are
    victims.

    A victim may be reaped first. The kernel closes a dying process's sockets before it tells the parent, and a peer that
    reads the end of such a socket can leave in between."""
    exits = [e for e in node.events(run, "rank_exited") if e["attempt"] == 1]
    own = [e for e in exits if e["rank"] == rank]
    expect(len(own) == 1, f"{len(own)} deaths of rank {rank} in attempt 1: {exits}")
    before = [e for e in exits if e["sequence"] < own[0]["sequence"]]
    expect(all(e["detail"]["exit_code"] == PEER_LOST for e in before), f"no victims of rank {rank} died before it: {before}")
    reason = node.detail(run)["attempts"][0]["reason"]
    expect(reason.startswith(f"rank {rank} ended with "), f"rank {rank} was killed; attempt 1 ended with {reason!r}")
    return own[0]


def alive(pid):
    """Whether the process runs. A zombie does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def seconds_of(text):
    """Converts a time of the API (RFC 3339 in UTC) to seconds since the epoch."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) + float(f"0.{fraction or 0}")


class Node:
    """The node of one user: state and runtime folders, and nsactl, which starts nsad when it needs it."""

    def __init__(self, binaries, folder=None):
        self.binaries = pathlib.Path(binaries).resolve()
        self.folder = pathlib.Path(folder or tempfile.mkdtemp(prefix="nsa-e2e-"))
        self.state = self.folder / "state"
        (self.folder / "run").mkdir(parents=True, exist_ok=True)
        os.chmod(self.folder / "run", 0o700)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("NSA_")}
        self.environment.update(XDG_STATE_HOME=str(self.state), XDG_RUNTIME_DIR=str(self.folder / "run"),
                                XDG_CONFIG_HOME=str(self.folder / "config"), NO_COLOR="1")
        self.config("schema = 1\n[metrics]\nport = 0\n")  # nsads of other tests may run beside this one
        # On a host whose users share the system's nsad, the test still uses its own nsad.
        self.client_config('schema = 1\ndaemon = "user"\n')

    def run(self, *arguments, check=True, timeout=LIMIT, input=None):
        """Runs nsactl. Returns the finished process."""
        done = subprocess.run([str(self.binaries / "nsactl"), *map(str, arguments)], env=self.environment,
                              capture_output=True, text=True, timeout=timeout, input=input)
        if check and done.returncode != 0:
            raise Failed(f"nsactl {' '.join(map(str, arguments))}: exit {done.returncode}\n"
                         f"{done.stdout}{done.stderr}")
        return done

    def json(self, *arguments, **options):
        text = self.run(*arguments, "-o", "json", **options).stdout
        return json.loads(text)

    def items(self, *arguments, **options):
        value = self.json(*arguments, **options)
        return value["items"] if isinstance(value, dict) and "items" in value else value

    def config(self, text):
        """Writes nsad.toml, which nsad reads when it starts."""
        path = self.folder / "config" / "nsa" / "nsad.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def client_config(self, text):
        """Writes nsactl.toml, which every nsactl reads."""
        (self.folder / "config" / "nsa" / "nsactl.toml").write_text(text)

    # ---- runs ------------------------------------------------------------------------------------
    def data(self):
        """Returns a small byte data set from this repository's prose. It is made once per node."""
        target = self.folder / "data"
        if not target.exists():
            text = self.folder / "text"
            text.mkdir()
            prose = "".join(p.read_text() for p in sorted((ROOT / "docs").rglob("*.md")))
            expect(len(prose) > 1000, "docs/ has no prose to train on")
            while len(prose) < 400_000:
                prose += prose
            (text / "prose.txt").write_text(prose[:400_000])
            self.run("data", "prepare", "--tokenizer", "bytes", "--documents", "paragraph", "--out", target, text / "prose.txt")
        return target

    def data_of_another_tokenizer(self):
        """Returns data() with a manifest that says that another tokenizer made its tokens."""
        target = self.folder / "data-of-another-tokenizer"
        if not target.exists():
            shutil.copytree(self.data(), target)
            path = target / "dataset.json"
            manifest = json.loads(path.read_text())
            manifest["tokenizer"].update(name="letters", digest="0" * 32)
            path.write_text(json.dumps(manifest))
            # The digest of the data set must match. The error says what it should be.
            said = self.run("data", "info", target, check=False).stderr
            manifest["digest"] = re.search(r"does not fit the list of shards \((\w+)", said).group(1)
            path.write_text(json.dumps(manifest))
        return target

    def run_file(self, name="run", steps=60, ranks=2, seed=1, checkpoint_interval=10, extra=""):
        path = self.folder / f"{name}.toml"
        path.write_text(TINY_RUN.format(name=name, data=self.data(), steps=steps, ranks=ranks, seed=seed,
                                        checkpoint_interval=checkpoint_interval) + extra)
        return path

    def submit(self, path, *sets, name=None):
        arguments = ["submit", path]
        for pair in sets:
            arguments += ["--set", pair]
        if name:
            arguments += ["--name", name]
        run = self.json(*arguments)["id"]
        socket = self.json("daemon", "status")["socket"]
        expect(socket.startswith(str(self.folder)), f"the run went to a daemon that is not this node's: {socket}")
        return run

    def detail(self, run):
        return self.json("status", run)

    def state_of(self, run):
        return self.detail(run)["summary"]["state"]

    def events(self, run, kind=None):
        events = self.items("events", run)
        return [e for e in events if kind is None or e["kind"] == kind]

    def ranks(self, run):
        return {r["rank"]: r for r in self.detail(run)["ranks"]}

    def wait_step(self, run, step, timeout=LIMIT, attempt=None):
        def reached():
            detail = self.detail(run)
            summary = detail["summary"]
            if summary["state"] in ("failed", "cancelled"):
                raise Failed(f"run {run} {summary['state']}: {summary['reason']}")
            # A run's step is that of the last attempt until the next attempt has reported its first step.
            own = [a["last_step"] for a in detail["attempts"] if attempt is not None and a["attempt"] >= attempt]
            return max(own, default=-1) >= step if attempt is not None else summary["step"] >= step
        return wait_for(f"step {step} of {run}", reached, timeout)

    def wait_end(self, run, timeout=2 * LIMIT, state="completed"):
        """Waits for the end of a run. `timeout` bounds the time in which nothing happens to the run, because a run on
        a busy machine only takes longer."""
        ends = ("completed", "stopped", "failed", "cancelled", "paused")
        seen, since = None, time.monotonic()
        while (summary := self.detail(run)["summary"])["state"] not in ends:
            now = (summary["state"], summary["attempt"], summary["step"])
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > timeout:
                raise Failed(f"nothing has happened to {run} for {timeout} s\n{self.story_of(run)}")
            time.sleep(0.1)
        expect(summary["state"] == state, f"run {run} ended {summary['state']} ({summary['reason']}), "
                                          f"{state} expected")
        return summary

    def story_of(self, run):
        """Describes a run that should have ended: its ranks, its newest events, and how busy the machine is."""
        events = self.run("events", run, check=False).stdout.splitlines()[-30:]
        return "\n".join([self.run("status", run, check=False).stdout, *events, f"load {os.getloadavg()}"])

    def finish(self, run, attempt):
        """Stops a run of FOREVER steps once that attempt trains. Returns its summary."""
        wait_for(f"attempt {attempt} of {run}", lambda: self.detail(run)["summary"]["attempt"] == attempt and
                 self.state_of(run) == "running")
        first = self.detail(run)["attempts"][attempt - 1]["first_step"]
        self.wait_step(run, first + 3, attempt=attempt)
        self.run("stop", run)
        return self.wait_end(run, state="stopped")

    def run_folder(self, run):
        return pathlib.Path(self.detail(run)["run_folder"])

    def losses(self, run):
        """Returns {step: loss} of the run, from metrics.jsonl. For a repeated step the last attempt's loss counts."""
        losses = {}
        for line in (self.run_folder(run) / "metrics.jsonl").read_text().splitlines():
            record = json.loads(line)
            if record["kind"] == "step":
                losses[record["step"]] = record["loss"]
        return losses

    # ---- processes ---------------------------------------------------------------------------------
    def daemon_pid(self):
        return self.json("daemon", "status")["pid"]

    def kill_daemon(self):
        pid = self.daemon_pid()
        os.kill(pid, signal.SIGKILL)
        return pid

    def descendants(self):
        """Returns the processes of this node: their environment names its runtime folder."""
        mark = f"XDG_RUNTIME_DIR={self.folder / 'run'}".encode()
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                if (mark in (entry / "environ").read_bytes() or str(self.folder).encode() in command) and command:
                    found.append(int(entry.name))
        return found

    def shims(self):
        """Returns those of descendants() that are shims."""
        found = []
        for pid in self.descendants():
            with contextlib.suppress(OSError):
                if b"nsa-shim" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def close(self, keep=False):
        """Ends what this node started. Returns whether a process outlived nsad's own clean-up."""
        with contextlib.suppress(Exception):
            for run in self.items("ls"):
                if run["state"] not in ("completed", "stopped", "failed", "cancelled", "paused"):
                    self.run("cancel", run["id"], check=False)
        with contextlib.suppress(Exception):
            self.run("daemon", "stop", check=False)
        deadline = time.monotonic() + LIMIT
        while self.descendants() and time.monotonic() < deadline:
            time.sleep(0.1)
        left = self.descendants()
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)
        return left


@contextlib.contextmanager
def small_disk(folder, megabytes, files=0):
    """Mounts a tmpfs of that size (and number of files) on `folder`. This needs the right to mount."""
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={megabytes}m" + (f",nr_inodes={files}" if files else "")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise Skipped(f"mounting a small tmpfs needs root: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def fill_disk(folder):
    """Writes until nothing more fits. Returns the file."""
    path = folder / "ballast"
    # Without a buffer. A buffered file would write the rest again when it is closed, and fail.
    with open(path, "wb", buffering=0) as f, contextlib.suppress(OSError):
        while True:
            f.write(b"\0" * 65536)
    return path


def use_up_files(folder):
    """Makes empty files until the file system can hold no more. Returns their folder."""
    ballast = folder / "files"
    ballast.mkdir()
    with contextlib.suppress(OSError):
        for number in range(10**7):
            (ballast / str(number)).touch()
    return ballast


def configure(node, cpu_slots=2, **fake):
    """Writes the node file for the next nsad, with the fake worker. Two ranks run at a time, unless runs must stall
    in parallel (they sleep)."""
    options = {"step_ms": 20, "checkpoint_every": 10, **{k.rstrip("_"): v for k, v in fake.items()}}
    words = ", ".join(f'"{k}={v}"' for k, v in options.items())
    node.config(f"""schema = 1
[metrics]
port = 0
[resources]
cpu_slots = {cpu_slots}
gpus = "none"
[storage]
reserve_mib = 8
[programs]
worker = "{node.binaries / 'nsa-fake-worker'}"
worker_arguments = ["--fake", {words}]
""")


def restart_daemon(node):
    node.run("daemon", "stop", check=False)
    wait_for("the daemon's end", lambda: not (node.folder / "run" / "nsa" / "nsad.sock").exists())


def kill_daemon(node):
    """Kills nsad and waits for the next one. Requests to the dying nsad may fail."""
    old = node.kill_daemon()

    def other():
        done = node.run("daemon", "status", "-o", "json", check=False)
        return done.returncode == 0 and json.loads(done.stdout).get("pid") != old
    wait_for("the next nsad", other)


def run_parts(parts, node, seed):
    """Runs each of `parts` (or those that PARTS names) on one node, one after the other."""
    configure(node)
    dice = random.Random(seed)
    result = {}
    wanted = os.environ.get("PARTS", "").split()
    for part in [p for p in parts if not wanted or p.__name__ in wanted]:
        began = time.monotonic()
        result[part.__name__] = {**part(node, dice), "seconds": round(time.monotonic() - began, 2)}
    return result


def main(case, needs=("nsactl", "nsad", "nsa-shim", "nsa-worker"), seeds=3):
    parser = argparse.ArgumentParser(description=case.__doc__)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build" / "dev" / "bin")
    parser.add_argument("--seeds", type=lambda s: [int(x) for x in s.split(",")],
                        help="comma-separated; default: 3 from the clock")
    parser.add_argument("--record", type=pathlib.Path, help="where the JSON record goes")
    parser.add_argument("--keep", action="store_true", help="keep the node's folder of a failed case")
    arguments = parser.parse_args()
    name = pathlib.Path(sys.argv[0]).stem
    for program in needs:
        if not (arguments.bin / program).exists():
            print(f"{program} is not built in {arguments.bin}")
            sys.exit(SKIP_EXIT_CODE)
    chosen = arguments.seeds or [random.SystemRandom().randrange(1, 10_000) for _ in range(seeds)]
    record = {"test": name, "machine": {"cores": os.cpu_count(), "kernel": os.uname().release}, "cases": []}
    failed = 0
    for seed in chosen:
        node = Node(arguments.bin)
        started = time.monotonic()
        entry = {"seed": seed}
        try:
            entry.update(case(node, seed) or {})
            entry["passed"] = True
        except Skipped as reason:
            node.close()
            print(reason)
            sys.exit(SKIP_EXIT_CODE)
        except Exception as error:
            failed += 1
            entry.update(passed=False, error=str(error))
            traceback.print_exc()
            log = node.state / "nsa" / "nsad.log"
            if log.exists():
                print("--- end of nsad.log", "".join(log.read_text(errors="replace").splitlines(True)[-40:]), sep="\n")
        left = node.close(keep=arguments.keep and not entry["passed"])
        if left and entry["passed"]:
            failed += 1
            entry.update(passed=False, error=f"processes outlived the node: {left}")
        entry["seconds"] = round(time.monotonic() - started, 2)
        record["cases"].append(entry)
        print(json.dumps(entry))
    target = arguments.record or arguments.bin.parent / "e2e-records" / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{name}: {len(chosen) - failed} of {len(chosen)} cases passed; record in {target}")
    sys.exit(1 if failed else 0)
