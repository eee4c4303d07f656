"""Shared by the scripts of this folder: a separate node on a host that has torch but none of our programs.

The programs come from an archive of `make package`, or from a build folder. A separate nsad supervises the runs. Its
state is in memory if there is room, so that the speed of the host's disk does not matter. A case has a time limit, and
so has the script. Results are written as they come.
"""
import argparse
import contextlib
import datetime
import json
import lzma
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENDED = ("completed", "stopped", "failed", "cancelled", "paused")
STATE_BYTES = 12 << 30  # space for a script's runs at one time: checkpoints of two runs


def arguments_of(doc, text=True):
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    programs = parser.add_mutually_exclusive_group(required=True)
    programs.add_argument("--archive", type=pathlib.Path, help="nsad-*.tar.gz of `make package`")
    programs.add_argument("--build", type=pathlib.Path, help="a build folder instead")
    if text:
        parser.add_argument("--text", type=pathlib.Path, required=True, help=".jsonl, .txt, or either with .xz or .gz")
        parser.add_argument("--ranks-file", type=pathlib.Path, help="gpt2.tiktoken; without it, bytes are the tokens")
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda",
                        help="cpu: the same way with a tiny model, to try the script itself")
    parser.add_argument("--seconds", type=float, required=True, help="of the whole script")
    parser.add_argument("--only", default="", help="cases whose name contains one of these parts, with commas between them")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every run")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    return parser


# A step takes milliseconds on a CPU, but this is still NSA: its selection really chooses.
TINY = ["model.dimension=32", "model.layers=1", "model.heads=2", "model.kv_groups=1", "model.head_dimension=16",
        "nsa.compression_block=8", "nsa.compression_stride=4", "nsa.selection_block=16", "nsa.selected_blocks=4",
        "nsa.window=32", "precision.compute=fp32", "toggles.attention.kernels=aten"]


class Node:
    """The programs, their nsad, and the results so far."""

    def __init__(self, arguments, results_name):
        self.arguments = arguments
        self.end = time.monotonic() + arguments.seconds
        self.started = time.monotonic()
        self.out = arguments.out
        self.out.mkdir(parents=True, exist_ok=True)
        self.results_path = self.out / results_name
        self.results = {"host": {}, "cases": []}
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="nsa-bare-"))
        memory = pathlib.Path("/dev/shm")
        in_memory = memory.is_dir() and shutil.disk_usage(memory).free >= STATE_BYTES
        self.state = pathlib.Path(tempfile.mkdtemp(prefix="nsa-state-", dir=memory if in_memory else None))
        if arguments.archive:
            subprocess.run(["tar", "xzf", arguments.archive.resolve()], cwd=self.folder, check=True)
            root = next(self.folder.glob("nsad-*"))
            self.torch = pathlib.Path(subprocess.run(
                [sys.executable, "-c", "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"],
                capture_output=True, text=True, check=True).stdout.strip())
            (root / "torch").symlink_to(self.torch)
            self.binaries, self.configs = root / "bin", root / "share" / "nsad" / "configs"
        else:
            self.binaries, self.configs = arguments.build.resolve() / "bin", ROOT / "configs"
            self.torch = None
        (self.folder / "run").mkdir(mode=0o700)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("NSA_")}
        self.environment.update(XDG_STATE_HOME=str(self.state), XDG_RUNTIME_DIR=str(self.folder / "run"),
                                XDG_CONFIG_HOME=str(self.folder / "config"), NO_COLOR="1")
        config = self.folder / "config" / "nsa" / "nsad.toml"
        config.parent.mkdir(parents=True)
        config.write_text("schema = 1\n[metrics]\nport = 0\n" +
                          (f"[resources]\ncpu_slots = {arguments.gpus}\n" if arguments.device == "cpu" else ""))
        self.results["host"] = {"cores": os.cpu_count(), "kernel": os.uname().release, "gpus": self.gpu_names(),
                                "state_in": "memory" if in_memory else "disk"}
        print(json.dumps(self.results["host"]), flush=True)

    @staticmethod
    def gpu_names():
        if not shutil.which("nvidia-smi"):
            return []
        done = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                              capture_output=True, text=True)
        return done.stdout.strip().splitlines()

    def wants(self, case):
        return any(part in case for part in self.arguments.only.split(","))

    def left(self):
        return self.end - time.monotonic()

    def run(self, *command, timeout=60):
        return subprocess.run([str(self.binaries / "nsactl"), *map(str, command)], env=self.environment,
                              capture_output=True, text=True, timeout=timeout)

    def json(self, *command):
        done = self.run(*command, "-o", "json")
        return json.loads(done.stdout) if done.stdout.strip() else {}

    def items(self, *command):
        return self.json(*command).get("items", [])

    def prepare(self, heldout_fraction=0.01):
        """Prepares the data set from the text that was carried to the host. Its token counts go into the results."""
        begin = time.monotonic()
        text = self.arguments.text.resolve()
        if text.suffix == ".xz":
            plain = self.folder / text.stem
            with lzma.open(text) as packed, plain.open("wb") as out:
                shutil.copyfileobj(packed, out, 1 << 20)
            text = plain
        tokenizer = (["--tokenizer", "gpt2", "--ranks", self.arguments.ranks_file.resolve()]
                     if self.arguments.ranks_file else ["--tokenizer", "bytes"])
        documents = [] if ".jsonl" in text.name else ["--documents", "paragraph", "--min-document-bytes", "4000",
                                                      "--invalid-utf8", "replace"]
        data = self.folder / "data"
        done = self.run("data", "prepare", *tokenizer, *documents, "--heldout-fraction", heldout_fraction, "--out", data,
                        text, timeout=max(5, self.left()))
        if done.returncode != 0:
            sys.exit(f"data prepare ended with {done.returncode}: {done.stderr[-1500:]}")
        manifest = json.loads((data / "dataset.json").read_text())
        self.results["data"] = {"train_tokens": manifest["train_tokens"], "heldout_tokens": manifest["heldout_tokens"],
                                "digest": manifest["digest"], "seconds": round(time.monotonic() - begin, 1)}
        self.save()
        print(json.dumps(self.results["data"]), flush=True)
        return data

    def submit(self, config, sets):
        """Submits a run; later values win. Returns the run's id. Exits if the run file is refused."""
        command = ["submit", config]
        chosen = {}
        for pair in [*sets, *self.arguments.set]:
            key, value = pair.split("=", 1)
            chosen[key] = value
        for key, value in chosen.items():
            command += ["--set", f"{key}={value}"]
        done = self.run(*command, "-o", "json")
        if done.returncode != 0:
            raise RuntimeError(f"refused: {(done.stderr or done.stdout)[-1200:]}")
        return json.loads(done.stdout)["id"]

    def wait(self, run, limit):
        """Returns the run's detail once it has ended. A run that takes longer than `limit` seconds is cancelled.
        "cut_short" means that it had less than `limit`, because the script's own time ended."""
        has_time = limit <= self.left()
        end = time.monotonic() + max(1.0, min(limit, self.left()))
        done = self.run("wait", run, "--timeout", f"{end - time.monotonic():.1f}s", timeout=limit + 60)
        detail = self.json("status", run)
        if detail.get("summary", {}).get("state") not in ENDED:
            self.run("cancel", run)
            self.run("wait", run, "--timeout", "5s")
            detail = self.json("status", run)
            why = f"took longer than {limit:.0f} s" if has_time else "the script's time was over"
            detail.setdefault("summary", {})["reason"] = f"cancelled: {why}"
            detail["cut_short"] = not has_time
            print(done.stderr[-400:], flush=True)
        return detail

    def steps(self, detail, kind="step"):
        """Returns the records of metrics.jsonl in the order in which they were written."""
        path = pathlib.Path(detail.get("run_folder", "/nowhere")) / "metrics.jsonl"
        if not path.exists():
            return []
        records = []
        for line in path.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # a killed rank may leave an incomplete last line
                records.append(json.loads(line))
        return [r for r in records if r["kind"] == kind]

    def logs(self, detail, characters=2500):
        folder = pathlib.Path(detail.get("run_folder", "/nowhere"))
        for log in sorted(folder.glob("attempts/*/logs/rank-*.log"))[-2:]:
            print(f"--- {log.relative_to(folder)}", log.read_text(errors="replace")[-characters:], sep="\n", flush=True)

    def forget_checkpoints(self, detail):
        """Deletes checkpoints to make room for the next run."""
        shutil.rmtree(pathlib.Path(detail.get("run_folder", "/nowhere")) / "checkpoints", ignore_errors=True)

    def record(self, result):
        self.results["cases"].append(result)
        self.save()
        print(json.dumps(result), flush=True)

    def save(self):
        self.results["seconds"] = round(time.monotonic() - self.started, 1)
        self.results_path.write_text(json.dumps(self.results, separators=(",", ":")) + "\n")

    def close(self):
        for run in self.json("ls").get("items", []):
            if run["state"] not in ENDED:
                self.run("cancel", run["id"])
        self.run("daemon", "stop")
        self.save()
        self.remove()

    def remove(self):
        shutil.rmtree(self.state, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def seconds_of(record):
    """Returns when a metrics record was written, in seconds since the epoch."""
    return seconds_of_text(record["time"])


def seconds_of_text(text):
    """Converts a time in RFC 3339 to seconds since the epoch."""
    text = text.replace("Z", "+00:00")
    whole, _, rest = text.partition(".")
    fraction, zone = (rest[:-6], rest[-6:]) if rest else ("0", text[-6:])
    return datetime.datetime.fromisoformat(whole.removesuffix(zone) + zone).timestamp() + float("0." + fraction)


def recovery_seconds(steps):
    """Returns the seconds from the last record before a restart to the first record of a new step after it. None if
    there was no restart."""
    for before, after in zip(steps, steps[1:]):
        if after["attempt"] != before["attempt"]:
            new = next((r for r in steps if r["attempt"] == after["attempt"] and r["step"] > before["step"]), None)
            return {"to_first_step": round(seconds_of(after) - seconds_of(before), 2),
                    "to_new_step": round(seconds_of(new) - seconds_of(before), 2) if new else None}
    return None
