#!/usr/bin/env python3
"""Reads the event files of tensorboard_probe with TensorBoard's own loader. No step comes twice, the later attempt's
values count, and a torn file does no harm. Exit code 77 and a reason without the package."""
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
        sessions = accumulator.PluginTagToContent("hparams")
        tensors = {tag: accumulator.Tensors(tag) for tag in accumulator.Tags()["tensors"]}

    def curve(tag):
        return [(e.step, float(tensor_util.make_ndarray(e.tensor_proto))) for e in tensors[tag]]

    expected = [(s, float(s)) for s in range(1, 7)] + [(s, s + 0.5) for s in range(7, 13)]
    check("train/loss", curve("train/loss"), expected)
    check("gate/3/selected", curve("gate/3/selected"), [(s, 0.25) for s in range(1, 13)])
    text = tensor_util.make_ndarray(tensors["run/file"][-1].tensor_proto)
    check("run/file", text.tolist(), [b"    [train]\n    steps = 12"])
    shown = [(e.step, tensor_util.make_ndarray(e.tensor_proto)) for e in tensors["gate_histogram/selected"]]
    check("steps of the histogram", [step for step, _ in shown], list(range(1, 13)))
    held = {(round(left, 2), round(right, 2)): count for left, right, count in shown[0][1].tolist() if count}
    check("gates of both layers", held, {(0.25, 0.3): 1.0, (0.95, 1.0): 1.0})
    window = tensor_util.make_ndarray(tensors["gate_histogram/window"][-1].tensor_proto)
    check("a gate of 1 is in the last bucket", window[-1].tolist(), [0.95, 1.0, 1.0])
    from tensorboard.plugins.hparams import plugin_data_pb2
    data = plugin_data_pb2.HParamsPluginData.FromString(sessions["_hparams_/session_start_info"])
    asked = {name: getattr(value, value.WhichOneof("kind")) for name, value in data.session_start_info.hparams.items()}
    check("hyperparameters", asked, {"train.steps": 12.0, "train.learning_rate": 0.5, "train.deterministic": True,
                                     "parallel.device": "cpu"})
    print(f"{len(tensors)} tags read back by TensorBoard; 12 steps of two attempts, none twice")


main()
