"""Shared by the processes that beside_rivals starts: lines of JSON to it, and a line from it that says when to measure."""
import json
import sys


def numbers(text):
    return [int(number) for number in text.split(",") if number]


def say(row):
    print(json.dumps(row), flush=True)


def wait(values):
    """Says that all is prepared, and waits until it is this process's turn."""
    say({"ready": values})
    if not sys.stdin.readline():
        sys.exit("error: beside_rivals has ended")


def import_torch(device):
    try:
        import torch
    except ImportError as error:
        sys.exit(f"error: {sys.executable} cannot import torch ({error}): start beside_rivals with a Python that has torch 2.11")
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: this torch sees no GPU: see nvidia-smi and CUDA_VISIBLE_DEVICES")
    return torch
