"""Shared functions of the tools that make packages: version and date of a release, files of a build, facts about
programs.

All functions give the same bytes for the same input: names are sorted, times are SOURCE_DATE_EPOCH or that of the
newest commit, owners are root.
"""
import gzip
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAMS = ("nsactl", "nsad", "nsa-shim", "nsa-evidence", "nsa-worker", "nsa-model", "nsa-fetch", "nsa-starter")


def fail(what, hint=""):
    print(f"error: {what}" + (f"\n  hint: {hint}" if hint else ""), file=sys.stderr)
    sys.exit(1)


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        fail(f"{' '.join(map(str, command[:3]))} ended with exit code {done.returncode}\n{done.stderr.strip()[-2000:]}")
    return done.stdout


def version():
    found = re.search(r"^project\(nsad VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M)
    return found.group(1) if found else fail("CMakeLists.txt names no version")


def commit():
    return run("git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12").strip()


def source_date():
    """Seconds since 1970, the time of everything in a package."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given) if given else int(run("git", "-C", ROOT, "log", "-1", "--format=%ct"))


def stage(build, folder):
    """bin/, lib/ and share/ of a build, without benchmarks and tests."""
    if not (build / "bin" / "nsactl").exists():
        fail(f"{build} is not built", f"cmake --build {build} --target packed")
    run("cmake", "--install", build, "--prefix", folder, "--component", "programs")
    # The installation omits the text if it was not fetched. Then two builds of a commit would differ.
    if not (folder / "share/nsad/demo/wordnet.txt.gz").exists():
        fail("the text of nsactl demo is missing", "tools/fetch-text wordnet")
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    return folder


def files(folder):
    """Regular files and links below a folder, by name."""
    return sorted(p for p in folder.rglob("*") if p.is_symlink() or p.is_file())


def resolve_links(folder):
    """Replaces every link by a copy of its target, for formats that have no links."""
    links = [p for p in files(folder) if p.is_symlink()]
    ends = {p.resolve() for p in links}
    contents = {p: p.resolve().read_bytes() for p in links}
    for path, content in contents.items():
        path.unlink()
        path.write_bytes(content)
        path.chmod(0o644)
    for end in ends:
        if end.parent in {p.parent for p in links}:
            end.unlink(missing_ok=True)


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_tar(folder, target, prefix):
    """Packs `folder` as target (.tar.gz), with names that begin with `prefix`."""
    date = source_date()

    def settled(entry):
        entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = date, 0, 0, "root", "root"
        return entry
    # Level 6 of zlib: the same library gives the same bytes. The name and time in gzip's header are left out.
    with open(target, "wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed, \
            tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in [folder, *sorted(folder.rglob("*"))]:
            name = prefix if path == folder else f"{prefix}/{path.relative_to(folder)}"
            archive.add(path, name, recursive=False, filter=settled)


# ---- programs as files -------------------------------------------------------------------------------------------
def is_elf(path):
    with open(path, "rb") as f:
        return f.read(4) == b"\x7fELF"


def needed(path):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", path))


def run_paths(path):
    """(tag, path) pairs: RPATH or RUNPATH."""
    return re.findall(r"\((RPATH|RUNPATH)\).*\[(.*)\]", run("readelf", "-d", path))


def places_of_build(folder):
    """Files whose run path names a folder of this machine, with that folder. Builds in other folders would give other
    bytes."""
    return [(path, part) for path in files(folder) if not path.is_symlink() and is_elf(path)
            for _, run_path in run_paths(path) for part in run_path.split(":") if not part.startswith("$ORIGIN")]


def symbol_versions(path):
    """The newest version that the file asks for, by family: {"GLIBC": (2, 34), ...}."""
    newest = {}
    needs = run("readelf", "-V", path).partition("Version needs section")[2]
    for family, number in re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI)_([0-9.]+)", needs):
        parts = tuple(int(n) for n in number.split("."))
        newest[family] = max(newest.get(family, ()), parts)
    return newest
