#!/usr/bin/env python3
"""Reads the event files of tensorboard_probe with TensorBoard's own loader: no step twice, the later
attempt's values count, a torn file does no harm. Exit code 77 and a reason without the package."""
import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from python_package import import_package


def check(name, found, expected):
    if found != expected:
        sys.exit(f"FAILED: {name}\n  found    {found}\n  expected {expected}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--probe", type=Path, required=True)
    parser.add_argument("--packages", type=Path, required=True)
    options = parser.parse_args()
    import_package("tensorboard", options.packages)
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([options.probe, folder], check=True)
        accumulator = EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0})
        accumulator.Reload()
        tensors = {tag: accumulator.Tensors(tag) for tag in accumulator.Tags()["tensors"]}

    def curve(tag):
        return [(e.step, float(tensor_util.make_ndarray(e.tensor_proto))) for e in tensors[tag]]

    expected = [(s, float(s)) for s in range(1, 7)] + [(s, s + 0.5) for s in range(7, 13)]
    check("train/loss", curve("train/loss"), expected)
    check("gate/3/selected", curve("gate/3/selected"), [(s, 0.25) for s in range(1, 13)])
    text = tensor_util.make_ndarray(tensors["run/file"][-1].tensor_proto)
    check("run/file", text.tolist(), [b"    [train]\n    steps = 12"])
    print(f"{len(tensors)} tags read back by TensorBoard; 12 steps of two attempts, none twice")


main()
