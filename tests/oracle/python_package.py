"""Python packages for tests. An installed package is imported, otherwise pip fetches it once, otherwise the test is
skipped."""
import fcntl
import importlib
import pathlib
import subprocess
import sys

SKIP = 77  # tools/run-tests and ctest count this exit code as "skipped"


class Missing(Exception):
    """The package is not installed, and pip could not fetch it."""


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIP)


def fetch_package(name, folder, package=None):
    """Returns the module `name`. If it is not installed, pip puts its package into `folder`."""
    folder = pathlib.Path(folder)
    sys.path.insert(0, str(folder))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder.with_name(folder.name + ".lock"), "w", encoding="ascii")
    except OSError as error:
        raise Missing(f"no place for {name}: {error}") from error
    with lock:  # tests run in parallel: one of them fetches, and none imports an incomplete package
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return importlib.import_module(name)
        except ImportError:
            pass
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                   "--target", str(folder), package or name]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise Missing(f"{name} is not installed and pip could not fetch it: {last[0]}")
        importlib.invalidate_caches()
        return importlib.import_module(name)


def import_package(name, folder):
    try:
        return fetch_package(name, folder)
    except Missing as missing:
        skip(str(missing))
