"""A Python that imports torch 2.11, for tests that load what C++ programs wrote or registered.

If Python can import it, that installation is used. Otherwise torch's Python part is that of the wheel from which the
programs are built. pip fetches the small packages that it imports. The CUDA libraries that it links and that are
missing are replaced by empty ones, because no function of them is called on a CPU.
"""
import os
import re
import subprocess
import sys

from python_package import import_package, skip

# Other packages that torch and torch.compile import. They are pure Python.
PACKAGES = ["typing_extensions", "sympy", "networkx", "jinja2", "fsspec", "filelock"]
# CPython binds every function of a library when it loads it, but the empty libraries have none.
LAZILY = "import os, runpy, sys; sys.setdlopenflags(os.RTLD_LAZY); sys.argv = sys.argv[1:]; "
RUN_SCRIPT = LAZILY + "runpy.run_path(sys.argv[0], run_name='__main__')"


def missing_libraries(torch, folders):
    """Returns the names of shared libraries that torch's Python part needs and the loader does not find."""
    environment = dict(os.environ, LD_LIBRARY_PATH=os.pathsep.join(map(str, folders)))
    names = set()
    for name in ("libtorch_python.so", "libtorch_global_deps.so"):
        listed = subprocess.run(["ldd", torch / "torch" / "lib" / name], env=environment, capture_output=True, text=True)
        names |= set(re.findall(r"^\s*(\S+) => not found", listed.stdout, re.M))
    return sorted(names)


def stand_ins(torch, folder):
    """Returns a library path with empty libraries in `folder` for the missing ones."""
    own = [torch / "torch" / "lib", *sorted((torch / "nvidia").glob("*/lib"))]
    path = [folder, *own, *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))]
    for name in missing_libraries(torch, path):
        built = subprocess.run(["cc", "-shared", "-nostdlib", f"-Wl,-soname,{name}", "-x", "c", "/dev/null", "-o", folder / name],
                               capture_output=True, text=True)
        if built.returncode != 0:
            skip(f"no compiler to make a stand-in for {name}")
    return os.pathsep.join(map(str, path))


def try_import(environment):
    return subprocess.run([sys.executable, "-c", LAZILY + "import torch; print(torch.__version__)", "-"],
                          env=environment, capture_output=True, text=True)


def torch_environment(torch, packages, folder):
    """Returns variables with which this Python imports torch 2.11. The test is skipped if it cannot. `torch` and
    `packages` may be None."""
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    probe = try_import(environment)
    if probe.returncode != 0 and torch and packages:
        for name in PACKAGES:
            import_package(name, packages)
        paths = [environment.get("PYTHONPATH"), str(torch), str(packages)]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        environment["LD_LIBRARY_PATH"] = stand_ins(torch, folder)
        probe = try_import(environment)
    if probe.returncode != 0:
        last = (probe.stderr.strip().splitlines() or ["no message"])[-1]
        skip(f"{sys.executable} cannot import torch: {last}")
    if not probe.stdout.startswith("2.11."):
        skip(f"{sys.executable} has torch {probe.stdout.strip()}, and the library is built for 2.11")
    return environment
