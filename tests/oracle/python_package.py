"""Python packages for the oracle tests: imported if installed, else fetched once by pip, else a skip."""
import importlib
import subprocess
import sys

SKIP = 77  # the exit code that tools/run-tests and ctest take for "skipped"


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIP)


def import_package(name, folder):
    """The package `name`; pip puts it into `folder` when it is not installed."""
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except ImportError:
        pass
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
               "--target", str(folder), name]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        skip(f"{name} is not installed and pip could not fetch it: {last[0]}")
    importlib.invalidate_caches()
    return importlib.import_module(name)
