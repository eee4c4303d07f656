"""Shared by operator_times and beside_rivals: the operators of a build, their inputs, and times of calls.

A call is timed by CUDA events. Before each call the GPU fills memory, which evicts the call's inputs from the L2 cache.
It fills for longer than the host needs to enqueue the call. So the times are those of the GPU, and a variant with a slow
host loses nothing; `host_ms` says what its host needs. On a CPU, which only tries the scripts, calls are timed one by
one.
"""
import math
import pathlib
import sys
import time

HEADS, GROUPS, DIM = 12, 2, 64
FILLED_BYTES = 256 << 20  # five times the L2 cache
MOST_FILLS = 400


def load_operators(torch, folder, cuda=True):
    """Loads the operators of the libraries in `folder`."""
    for name in ["libnsa_ops.so", "libnsa_ops_cuda.so"][:2 if cuda else 1]:
        library = pathlib.Path(folder).resolve() / name
        if not library.exists():
            sys.exit(f"error: there is no {library}: build the targets nsa_ops and nsa_ops_cuda, or name their folder")
        torch.ops.load_library(str(library))


class Inputs:
    """Random inputs of one layer's attention. Each branch has keys and values of its own."""

    def __init__(self, torch, sequence, tokens, device="cuda", dtype=None):
        dtype = dtype or torch.bfloat16
        self.batch, self.sequence = max(1, tokens // sequence), sequence

        def normal(heads):
            return torch.randn(self.batch, sequence, heads, DIM, device=device, dtype=dtype, requires_grad=True)

        self.q, self.keys = normal(HEADS), [normal(GROUPS) for _ in range(6)]
        self.gates = torch.rand(self.batch, sequence, HEADS, 3, device=device, requires_grad=True)
        self.leaves, self.d_out = (self.q, *self.keys, self.gates), torch.randn_like(self.q)


class Timer:
    def __init__(self, torch, device="cuda"):
        self.torch, self.cuda = torch, device == "cuda"
        if self.cuda:
            self.filled = torch.empty(FILLED_BYTES // 4, dtype=torch.int32, device=device)
            self.fill_ms = 1.0
            self.fill_ms = self.times(lambda: self.fill(20), 5)[2] / 20

    def synchronize(self):
        if self.cuda:
            self.torch.cuda.synchronize()

    def fill(self, count):
        for _ in range(count):
            self.filled.zero_()

    def host_ms(self, call):
        """Milliseconds in which the host enqueues a call: the least of three, while the GPU has nothing else to do."""
        least = math.inf
        for _ in range(3):
            self.synchronize()
            begin = time.perf_counter()
            call()
            least = min(least, (time.perf_counter() - begin) * 1e3)
        self.synchronize()
        return least

    def times(self, call, count, host_ms=0.0):
        """Milliseconds of `count` calls, ascending."""
        if not self.cuda:
            return sorted(self.host_ms(call) for _ in range(count))
        fills = min(MOST_FILLS, 1 + math.ceil(1.25 * host_ms / self.fill_ms))
        events = [[self.torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        for begin, end in events:
            self.fill(fills)
            begin.record()
            call()
            end.record()
        self.torch.cuda.synchronize()
        return sorted(begin.elapsed_time(end) for begin, end in events)

    def scratch_mib(self, call):
        """Peak of allocated memory above the level before the call, including gradients and output."""
        if not self.cuda:
            return None
        self.torch.cuda.synchronize()
        self.torch.cuda.reset_peak_memory_stats()
        before = self.torch.cuda.memory_allocated()
        call()
        return (self.torch.cuda.max_memory_allocated() - before) / 2**20


def spread(times):
    """Median, tenth and ninetieth percentile of ascending times."""
    tenth = len(times) // 10
    return {"median": times[len(times) // 2], "p10": times[tenth], "p90": times[-1 - tenth], "calls": len(times)}
