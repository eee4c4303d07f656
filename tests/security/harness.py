"""What the attacks share: a host with real accounts, and nsad in system mode on folders of its own.

A and B are members of the group of submitters, C is not; D is the daemon's account. Each script makes
its own accounts with names that no host has, and removes them. It needs root; exit code 77 says that
it cannot run here, and the last line of output says why.

    def case(host):            # a Host, its nsad running
        ...
    main(case)
"""
import argparse
import contextlib
import grp
import importlib.util
import json
import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

# The harness of the end-to-end scripts has the same name as this module, so it is loaded under another name.
_spec = importlib.util.spec_from_file_location("end_to_end", pathlib.Path(__file__).resolve().parents[1] / "e2e" / "harness.py")
end_to_end = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(end_to_end)
FOREVER, LIMIT, ROOT, SKIP_EXIT_CODE = end_to_end.FOREVER, end_to_end.LIMIT, end_to_end.ROOT, end_to_end.SKIP_EXIT_CODE
SANITIZED = end_to_end.SANITIZED
Failed, Skipped, TINY_RUN = end_to_end.Failed, end_to_end.Skipped, end_to_end.TINY_RUN
expect, wait_for = end_to_end.expect, end_to_end.wait_for

# A Python that every account may start: the one of this script may be in a home folder.
PYTHON = next((p for p in ("/usr/bin/python3", "/bin/python3") if os.access(p, os.X_OK)), sys.executable)
PROGRAMS = ("nsactl", "nsad", "nsa-starter", "nsa-shim", "nsa-fake-worker")
# Prints a rank's properties, and ends.
REPORT = """#!/bin/sh
echo "id: $(id -u) $(id -g) $(id -G)"
echo "folder: $(pwd)"
echo "secret: $JOB_SECRET"
echo "home: $HOME"
grep "Max processes" /proc/self/limits
grep -E '^(NoNewPrivs|CapEff|CapPrm|Groups)' /proc/self/status
exit 0
"""


def command(*arguments):
    """Runs a program of the host. Other processes lock the account files for moments, so it tries again."""
    for _ in range(50):
        done = subprocess.run(arguments, capture_output=True, text=True)
        if done.returncode == 0 or "lock" not in done.stderr:
            break
        time.sleep(0.2)
    if done.returncode != 0:
        raise Skipped(f"{' '.join(arguments)}: {done.stderr.strip()}")


class Account:
    def __init__(self, name, groups=(), system=False):
        options = ["--system"] if system else []
        command("useradd", "--no-create-home", "--user-group", "--shell", "/bin/sh", "--home-dir", "/nonexistent",
                *options, *(["--groups", ",".join(groups)] if groups else []), name)
        entry = pwd.getpwnam(name)
        self.name, self.uid, self.gid = name, entry.pw_uid, entry.pw_gid
        self.groups = sorted({self.gid, *(grp.getgrnam(g).gr_gid for g in groups)})
        self.home = None

    def processes(self):
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and entry.stat().st_uid == self.uid:
                    found.append(int(entry.name))
        return found

    def remove(self):
        for _ in range(100):
            left = self.processes()
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                break
            time.sleep(0.05)
        with contextlib.suppress(Skipped):
            command("userdel", "--force", self.name)
        # On some hosts userdel keeps the group.
        with contextlib.suppress(KeyError, Skipped):
            grp.getgrnam(self.name)
            command("groupdel", self.name)


class Host:
    def __init__(self, binaries):
        if os.geteuid() != 0:
            raise Skipped("making accounts needs root")
        if shutil.which("useradd") is None:
            raise Skipped("there is no useradd here")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="nsa-security-"))
        os.chmod(self.folder, 0o755)
        self.state, self.socket = self.folder / "state", self.folder / "run" / "nsad.sock"
        self.config_path = self.folder / "nsad.toml"
        self.log = self.folder / "nsad.out"
        self.daemon = None
        self.accounts = []
        mark = f"nsat{os.getpid():x}"
        self.group = mark + "g"
        command("groupadd", "--system", self.group)
        try:
            self.D = self._account(mark + "d", system=True)
            self.A, self.B = self._account(mark + "a", (self.group,)), self._account(mark + "b", (self.group,))
            self.C = self._account(mark + "c")
        except Skipped:
            self.remove_accounts()
            raise
        # Copies, because the build tree may be in a folder that other accounts cannot read.
        self.bin = self.folder / "bin"
        self.bin.mkdir(mode=0o755)
        for name in PROGRAMS:
            shutil.copy(pathlib.Path(binaries) / name, self.bin / name)
            os.chmod(self.bin / name, 0o755)
        report = self.bin / "report"
        report.write_text(REPORT)
        os.chmod(report, 0o755)
        for account in (self.A, self.B, self.C):
            account.home = self.folder / "home" / account.name
            account.home.mkdir(parents=True, mode=0o700)
            os.chown(account.home, account.uid, account.gid)
        os.chmod(self.folder / "home", 0o755)
        self.configure()

    def _account(self, *arguments, **options):
        account = Account(*arguments, **options)
        self.accounts.append(account)
        return account

    # ---- the daemon ---------------------------------------------------------------------------------
    def configure(self, worker="nsa-fake-worker", arguments=("--fake", "step_ms=50"), extra=""):
        """Writes nsad.toml, which the next start reads."""
        self.config_path.write_text(
            "schema = 1\n[metrics]\nport = 0\n[resources]\ngpus = \"none\"\ncpu_slots = 8\n"
            f"[programs]\nworker = \"{self.bin / worker}\"\nworker_arguments = {json.dumps(list(arguments))}\n"
            f"[system]\nuser = \"{self.D.name}\"\ngroup = \"{self.group}\"\n" + extra)
        os.chmod(self.config_path, 0o644)

    def daemon_command(self):
        return [str(self.bin / "nsad"), "--system", "--state-folder", str(self.state), "--socket", str(self.socket),
                "--config", str(self.config_path)]

    def start(self):
        with open(self.log, "ab") as out:
            self.daemon = subprocess.Popen(self.daemon_command(), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                           env={"PATH": "/usr/bin:/bin"})
        wait_for("nsad", lambda: self.daemon.poll() is not None or
                 self.nsactl(self.A, "daemon", "status", check=False).returncode == 0)
        expect(self.daemon.poll() is None, f"nsad did not start:\n{self.log.read_text()}")

    def kill_daemon(self):
        self.daemon.kill()
        self.daemon.wait()

    def stop(self):
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.terminate()
            self.daemon.wait(LIMIT)

    # ---- acting as an account -----------------------------------------------------------------------
    def as_user(self, account, arguments, check=True, environment=None, timeout=LIMIT, **options):
        done = subprocess.run([str(a) for a in arguments], user=account.uid, group=account.gid,
                              extra_groups=account.groups, cwd=account.home or "/", capture_output=True, text=True,
                              timeout=timeout, env={"PATH": "/usr/bin:/bin", "HOME": str(account.home or "/"),
                                                    "NO_COLOR": "1", "NSA_SOCKET": str(self.socket),
                                                    **(environment or {})}, **options)
        if check and done.returncode != 0:
            raise Failed(f"{account.name}: {' '.join(map(str, arguments))}: exit {done.returncode}\n"
                         f"{done.stdout}{done.stderr}")
        return done

    def nsactl(self, account, *arguments, **options):
        return self.as_user(account, [self.bin / "nsactl", *arguments], **options)

    def json(self, account, *arguments, **options):
        return json.loads(self.nsactl(account, *arguments, "-o", "json", **options).stdout)

    def python(self, account, text, *arguments, **options):
        """Runs a Python program as that account."""
        return self.as_user(account, [PYTHON, "-c", text, *arguments], **options)

    def start_python(self, account, text, *arguments):
        return subprocess.Popen([PYTHON, "-c", text, *map(str, arguments)], user=account.uid,
                                group=account.gid, extra_groups=account.groups, cwd=account.home,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    # ---- runs ---------------------------------------------------------------------------------------
    def data(self, account):
        """Makes a data set of the account that no other account can read."""
        target = account.home / "data"
        if not target.exists():
            text = account.home / "prose.txt"
            text.write_text("".join(p.read_text() for p in sorted((ROOT / "docs").rglob("*.md")))[:200_000] * 2)
            os.chown(text, account.uid, account.gid)
            self.nsactl(account, "data", "prepare", "--tokenizer", "bytes", "--documents", "paragraph", "--out", target,
                        text)
            os.chmod(target, 0o700)
        return target

    def run_file(self, account, name="run", steps=20, ranks=1, data=None, table=""):
        """Writes a run file. `table` has lines for [run]."""
        path = account.home / f"{name}.toml"
        text = TINY_RUN.format(name=name, data=data or self.data(account), steps=steps, ranks=ranks, seed=1,
                               checkpoint_interval=0)
        path.write_text(text.replace("[run]\n", f"[run]\n{table}\n", 1))
        os.chmod(path, 0o644)
        return path

    def submit(self, account, path, **options):
        return self.json(account, "submit", path, **options)["id"]

    def summary(self, account, run):
        return self.json(account, "status", run)["summary"]

    def wait_end(self, account, run, states=("completed", "stopped", "failed", "cancelled")):
        return wait_for(f"the end of {run}", lambda: (s := self.summary(account, run))["state"] in states and s,
                        2 * LIMIT, 0.1)

    def wait_running(self, account, run):
        def running():
            state = self.summary(account, run)["state"]
            expect(state not in ("failed", "cancelled"), f"{run} is {state}: {self.log.read_text()[-2000:]}")
            return state == "running"
        wait_for(f"{run} to run", running, 2 * LIMIT, 0.1)

    def run_folder(self, run):
        return self.state / "runs" / run

    def rank_log(self, run, attempt=1, rank=0):
        return (self.run_folder(run) / "attempts" / str(attempt) / "logs" / f"rank-{rank}.log").read_text()

    # ---- the end --------------------------------------------------------------------------------------
    def remove_accounts(self):
        for account in self.accounts:
            account.remove()
        with contextlib.suppress(Skipped):
            command("groupdel", self.group)

    def close(self):
        with contextlib.suppress(Exception):
            self.stop()
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.kill()
        self.remove_accounts()
        shutil.rmtree(self.folder, ignore_errors=True)


def main(case, started=True):
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build" / "dev" / "bin")
    arguments = parser.parse_args()
    for program in PROGRAMS:
        if not (arguments.bin / program).exists():
            print(f"{program} is not built in {arguments.bin}")
            sys.exit(SKIP_EXIT_CODE)
    host = None
    try:
        host = Host(arguments.bin)
        if started:
            host.start()
        case(host)
    except Skipped as reason:
        print(reason)
        sys.exit(SKIP_EXIT_CODE)
    except Exception:
        traceback.print_exc()
        if host is not None and host.log.exists():
            print("--- end of nsad's log", "".join(host.log.read_text(errors="replace").splitlines(True)[-40:]), sep="\n")
        sys.exit(1)
    finally:
        if host is not None:
            host.close()
    print(f"{pathlib.Path(sys.argv[0]).stem}: passed")
