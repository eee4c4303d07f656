"""Native Sparse Attention for PyTorch 2.11, and the training system nsad.

    from nsad import NSAttention          # an nn.Module
    from nsad import ops                  # torch.ops.nsa, loaded
    from nsad import Client               # nsad's HTTP API, typed

The programs nsactl, nsad and nsa-worker come with the package. The package imports torch only when it is used, so that
`nsactl` starts at once.
"""
import importlib

from nsad._version import __version__

_PARTS = {"NSAttention": "nsad.attention", "Client": "nsad.client", "ApiError": "nsad.client"}
__all__ = ["ApiError", "Client", "NSAttention", "__version__", "ops"]


def __getattr__(name):
    if name == "ops":
        return importlib.import_module("nsad.ops")
    if name in _PARTS:
        return getattr(importlib.import_module(_PARTS[name]), name)
    raise AttributeError(f"module 'nsad' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_PARTS, "ops"])
