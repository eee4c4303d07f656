"""The faults that a round of tests/chaos/run injects. A fault is a function of a Round. It trains, breaks the run,
and returns what must follow: (class of failure or None, whether the reason must name the rank, number of restarts)."""
import contextlib
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from harness import Skipped, alive, expect, fill_disk, use_up_files, wait_for  # noqa: E402

STEPS = 300
INTERVAL = 20  # steps between two checkpoints
EARLIEST = 30  # there is a checkpoint by then
PAGE_BYTES = 4096  # of a rank's progress page


class Round:
    """One run with one fault."""

    def __init__(self, chaos, fault, seed):
        self.node, self.dice, self.fault = chaos.node, random.Random(seed), fault
        self.rank = self.dice.randrange(2)
        self.step = self.dice.randrange(EARLIEST, STEPS // 2)
        self.run, self.at, self.small_disk = None, None, chaos.small_disk

    def submit(self, *sets):
        self.run = self.node.submit(self.node.run_file(name="chaos", steps=STEPS, checkpoint_interval=INTERVAL), *sets)

    def train(self):
        """Trains until the fault is due, and a little longer, so that the fault hits any part of a step."""
        self.submit()
        self.node.wait_step(self.run, self.step)
        time.sleep(self.dice.uniform(0, 0.05))

    def pids(self):
        return {rank: row["pid"] for rank, row in self.node.ranks(self.run).items()}

    def shim(self):
        shims = self.node.shims()
        expect(len(shims) == 1, f"one shim is expected, {shims} live")
        return shims[0]

    def strike(self, pids, number):
        self.at = time.time()
        for pid in pids if isinstance(pids, (list, tuple)) else [pids]:
            os.kill(pid, number)

    def newest_checkpoint(self):
        folders = sorted(p for p in (self.node.run_folder(self.run) / "checkpoints").iterdir()
                         if re.fullmatch(r"step-\d+", p.name))
        expect(len(folders) >= 2, f"two checkpoints are expected: {folders}")
        return folders[-1]


def check_ledger(node):
    """Checks a ledger that no process has open. It uses a copy, because SQLite may change the file."""
    with_log = [node.state / "nsa" / f"ledger.db{suffix}" for suffix in ("", "-wal")]
    copy = node.folder / "ledger-copy"
    copy.mkdir(exist_ok=True)
    for path in with_log:
        if path.exists():
            shutil.copy(path, copy / path.name)
    with contextlib.closing(sqlite3.connect(copy / "ledger.db")) as ledger:
        verdict = ledger.execute("PRAGMA integrity_check").fetchone()[0]
    shutil.rmtree(copy)
    expect(verdict == "ok", f"the ledger fails its check: {verdict}")


# ---- faults: what each does, and (class of failure, whether a rank must be named, restarts) that must follow ---------

def kill_rank(r):
    r.train()
    r.strike(r.pids()[r.rank], signal.SIGKILL)
    return "crash", True, 1


def segfault_rank(r):
    r.train()
    r.strike(r.pids()[r.rank], signal.SIGSEGV)
    return "crash", True, 1


def terminate_rank(r):
    r.train()
    r.strike(r.pids()[r.rank], signal.SIGTERM)
    return "preemption", False, 1


def stop_rank(r):
    r.train()
    r.strike(r.pids()[r.rank], signal.SIGSTOP)
    return "stopped", True, 1


def kill_all_ranks(r):
    r.train()
    r.strike(list(r.pids().values()), signal.SIGKILL)
    return "crash", False, 1


def stop_all_ranks(r):
    r.train()
    r.strike(list(r.pids().values()), signal.SIGSTOP)
    return "stopped", False, 1


def kill_nsad(r):
    r.train()
    old = r.node.daemon_pid()
    r.strike(old, signal.SIGKILL)
    wait_for("the end of nsad", lambda: not alive(old))
    return None, False, 0


def freeze_nsad(r):
    r.train()
    pid = r.node.daemon_pid()
    r.strike(pid, signal.SIGSTOP)
    time.sleep(r.dice.uniform(0.5, 2))  # the test needs this freeze
    os.kill(pid, signal.SIGCONT)
    return None, False, 0


def kill_shim(r):
    r.train()
    r.strike(r.shim(), signal.SIGKILL)
    return "supervisor", False, 1


def freeze_shim(r):
    r.train()
    pid = r.shim()
    r.strike(pid, signal.SIGSTOP)
    time.sleep(r.dice.uniform(0.5, 2))  # the test needs this freeze
    os.kill(pid, signal.SIGCONT)
    return None, False, 0


def kill_nsad_and_rank(r):
    r.train()
    old, rank = r.node.daemon_pid(), r.pids()[r.rank]
    r.strike([old, rank], signal.SIGKILL)
    wait_for("the end of nsad", lambda: not alive(old))
    return "crash", True, 1


def kill_nsad_and_shim(r):
    r.train()
    old, shim = r.node.daemon_pid(), r.shim()
    r.strike([old, shim], signal.SIGKILL)
    wait_for("the end of nsad and shim", lambda: not alive(old) and not alive(shim))
    check_ledger(r.node)
    return "supervisor", False, 1


def crash_node(r):
    """Ends everything as a power cut does, except for the disk's cache: no process can react."""
    r.train()
    # All are stopped first, so that no process starts another one while the others die.
    r.strike(r.node.descendants(), signal.SIGSTOP)
    while everything := r.node.descendants():
        for pid in everything:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    check_ledger(r.node)
    return "supervisor", False, 1


def with_newest_checkpoint(harm):
    def fault(r):
        r.train()
        wait_for("two checkpoints", lambda: len([c for c in r.node.items("ckpt", "ls", r.run) if c["state"] != "deleted"]) > 1)
        pids = r.pids()
        # The ranks are stopped, so they cannot write a newer checkpoint between the damage and the kill.
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)
        harm(r, r.newest_checkpoint())
        r.strike(pids[r.rank], signal.SIGKILL)
        return "crash", True, 1
    return fault


def flip_a_bit(r, folder):
    target = max((p for p in folder.iterdir() if p.name != "manifest.json"), key=lambda p: p.stat().st_size)
    with target.open("r+b") as file:
        at = r.dice.randrange(target.stat().st_size)
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << r.dice.randrange(8)]))


def truncate(r, folder):
    target = r.dice.choice(sorted(folder.iterdir()))
    os.truncate(target, r.dice.randrange(target.stat().st_size))


def poison_manifest(r, folder):
    (folder / "manifest.json").write_text(r.dice.choice(["[" * 200_000, "{}", "\0" * 4096, '{"step":1e300}', ""]))


def busy_processors(r):
    r.train()
    r.at = time.time()
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * len(os.sched_getaffinity(0)))]
    try:
        r.node.wait_step(r.run, r.step + 40)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    return None, False, 0


def slow_rank(r):
    r.train()
    r.at, pid = time.time(), r.pids()[r.rank]
    for _ in range(15):
        with contextlib.suppress(ProcessLookupError):  # the run may complete first
            os.kill(pid, signal.SIGSTOP)
            time.sleep(r.dice.uniform(0.02, 0.15))  # a random slowness
            os.kill(pid, signal.SIGCONT)
        time.sleep(0.02)
    return None, False, 0


def garbage_on_link(r):
    """Writes to the shim's socket what another process of the same user could write."""
    r.train()
    r.at = time.time()
    for path in r.node.run_folder(r.run).glob("attempts/*/shim.sock"):
        for _ in range(5):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as link:
                link.settimeout(1)
                link.connect(str(path))
                link.sendall(r.dice.randbytes(r.dice.randrange(1, 100_000)))
    return None, False, 0


def garbage_for_nsad(r):
    r.train()
    r.at = time.time()
    path = r.node.json("daemon", "status")["socket"]
    for _ in range(10):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1)
            client.connect(path)
            client.sendall(r.dice.choice([b"GET /v1/runs HTTP/1.1\r\n", b""]) + r.dice.randbytes(r.dice.randrange(1, 100_000)))
    return None, False, 0


def log_flood(r):
    """A rank writes 4 MB to its standard error, which is a pipe to the shim."""
    r.train()
    r.at = time.time()
    with contextlib.suppress(OSError), open(f"/proc/{r.pids()[r.rank]}/fd/2", "ab", buffering=0) as pipe:
        for number in range(4000):
            pipe.write(b"flood %06d " % number + b"x" * 1000 + b"\n")
    return None, False, 0


def garbage_on_page(r):
    """Writes random bytes into a rank's progress page. The rank writes most of it again in its next step."""
    r.train()
    r.at = time.time()
    pages = [f for f in pathlib.Path(f"/proc/{r.pids()[r.rank]}/fd").iterdir()
             if "memfd:nsa" in os.readlink(f) and os.stat(f).st_size == PAGE_BYTES]
    expect(len(pages) == 1, f"one progress page is expected, not {pages}")
    for _ in range(3):
        with contextlib.suppress(FileNotFoundError), pages[0].open("r+b", buffering=0) as page:  # the run may complete
            page.seek(r.dice.randrange(PAGE_BYTES - 64))
            page.write(r.dice.randbytes(r.dice.randrange(1, 64)))
        time.sleep(r.dice.uniform(0, 0.2))  # a random time for which the damage stays
    return None, False, 0


def cgroup_out_of_memory(r):
    """A rank gets a memory limit that its next allocation exceeds, and the kernel kills it."""
    root = pathlib.Path("/sys/fs/cgroup/memory")
    group = root / f"nsa-chaos-{os.getpid()}"
    if not os.access(root / "memory.limit_in_bytes", os.R_OK):
        raise Skipped("there is no memory controller of cgroup version 1")
    try:
        group.mkdir(exist_ok=True)
    except OSError as error:
        raise Skipped(f"a cgroup cannot be made: {error}")
    r.train()
    pid = r.pids()[r.rank]
    (group / "memory.limit_in_bytes").write_text("65536")
    (group / "cgroup.procs").write_text(str(pid))
    r.at = time.time()
    wait_for("the kernel's kill", lambda: not alive(pid))
    if r.node.events(r.run, "rank_finished"):
        group.rmdir()
        raise Skipped("the rank asked for no more memory")
    wait_for("the end of the cgroup's processes", lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()
    return "host-out-of-memory", True, 1


def clock_jumps(r):
    """The wall clock of nsad and nsactl jumps by seconds and by days while the run trains."""
    library = pathlib.Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
    if not library.exists():
        raise Skipped("libfaketime is not installed (Debian's package faketime)")
    offset = r.node.folder / "clock"
    # Ranks keep the real clock, because the times of their metrics must not show nsad's clock.
    fake = {"LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(offset), "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    offset.write_text("+0")
    r.node.run("daemon", "stop", check=False)
    r.node.environment.update(fake)
    try:
        r.train()
        expect("libfaketime" in pathlib.Path(f"/proc/{r.node.daemon_pid()}/maps").read_text(), "nsad has the real clock")
        for _ in range(4):
            offset.write_text(r.dice.choice(["+90", "-90", "+2d", "-2d", "+30d", "-400d", "+0"]))
            time.sleep(r.dice.uniform(0.1, 0.6))  # a random time with the wrong clock
        offset.write_text("+0")
        r.node.wait_end(r.run)
    finally:
        for name in fake:
            r.node.environment.pop(name, None)
        r.node.run("daemon", "stop", check=False)
    return None, False, 0


def changed_data_set(r):
    """A bit of the data set flips, then a rank dies. No rank may train on it. Once it is repaired, the run continues.
    """
    good = r.node.data()
    copy = r.node.folder / f"data-{r.step}-{r.rank}"
    shutil.copytree(good, copy, dirs_exist_ok=True)
    r.submit(f"data.path={copy}")
    r.node.wait_step(r.run, r.step)
    pids = r.pids()
    for pid in pids.values():  # stopped ranks read nothing between the damage and the kill
        os.kill(pid, signal.SIGSTOP)
    shard = r.dice.choice(sorted(copy.glob("train_*.bin")))
    content = shard.read_bytes()
    at = r.dice.randrange(len(content))
    shard.write_bytes(content[:at] + bytes([content[at] ^ 1 << r.dice.randrange(8)]) + content[at + 1:])
    r.strike(pids[r.rank], signal.SIGKILL)
    reason = r.node.wait_end(r.run, state="failed")["reason"]
    expect(shard.name in reason, f"the changed shard is not named: {reason}")
    shard.write_bytes(content)
    r.node.run("resume", r.run)
    return "crash", True, 1


def use_up(fill, give_back):
    """Keeps the state folder's disk full from before a checkpoint until that checkpoint has failed."""
    def fault(r):
        if not r.small_disk:
            raise Skipped("a small disk needs the right to mount")
        r.train()
        r.at = time.time()
        ballast = fill(r.node.state)
        try:
            wait_for("a checkpoint that fails", lambda: r.node.events(r.run, "checkpoint_failed"))
        finally:
            give_back(ballast)
        return None, False, 0
    return fault


def injected(kind, failure, restarts=1):
    def fault(r):
        r.submit(f"inject.kind={kind}", f"inject.rank={r.rank}", f"inject.step={r.step}")
        return failure, True, restarts
    return fault


FAULTS = {f.__name__: f for f in (kill_rank, segfault_rank, terminate_rank, stop_rank, kill_all_ranks, stop_all_ranks, kill_nsad,
                                  freeze_nsad, kill_shim, freeze_shim, kill_nsad_and_rank, kill_nsad_and_shim, crash_node,
                                  busy_processors, slow_rank, garbage_on_link, garbage_for_nsad, log_flood, garbage_on_page,
                                  cgroup_out_of_memory, clock_jumps, changed_data_set)}
FAULTS |= {f"{h.__name__}_in_checkpoint": with_newest_checkpoint(h) for h in (flip_a_bit, truncate)}
FAULTS["poisoned_manifest"] = with_newest_checkpoint(poison_manifest)
FAULTS["deleted_checkpoint"] = with_newest_checkpoint(lambda r, folder: shutil.rmtree(folder))
FAULTS |= {kind: injected(kind, "hang") for kind in ("mutex_deadlock", "spin", "skip_collective", "data_stall")}
FAULTS["full_disk"] = use_up(fill_disk, lambda ballast: ballast.unlink())
FAULTS["no_inodes"] = use_up(use_up_files, shutil.rmtree)
FAULTS["silent_exit"] = injected("exit", "crash")
