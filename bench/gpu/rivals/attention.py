"""Times one layer's attention, ours beside its rivals, in one process. beside_rivals starts it and reads its lines.

It warms up every variant of the first length, prints {"ready": ...}, and waits for a line. Then it prints a row for each
length and variant. The variants of a length take turns.
"""
import argparse
import pathlib
import sys
import time

import child

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import operator_timing as timing  # noqa: E402
import public_nsa  # noqa: E402

WINDOW = 512
KINDS = ("forward", "backward", "both")


class Variant:
    """One way to attend: its forward, the tensors whose gradients it gives, and the gradient of its output."""

    def __init__(self, name, forward, leaves, d_out):
        self.name, self.forward, self.leaves, self.d_out = name, forward, leaves, d_out
        self.times, self.host_ms = {kind: [] for kind in KINDS}, {}

    def calls(self, torch):
        out = self.forward()

        def backward():
            torch.autograd.grad(out, self.leaves, self.d_out, retain_graph=True)

        def both():
            torch.autograd.grad(self.forward(), self.leaves, self.d_out)

        return dict(zip(KINDS, (self.forward, backward, both)))


def dense(torch, inputs, backend):
    from torch.nn.attention import sdpa_kernel
    q, k, v = (t.detach().transpose(1, 2).requires_grad_() for t in (inputs.q, inputs.keys[2], inputs.keys[3]))

    def forward():
        with sdpa_kernel([backend]):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    return forward, (q, k, v), inputs.d_out.transpose(1, 2)


def make_nsa(torch, inputs, arguments):
    kernels = "fused" if arguments.device == "cuda" else "aten"
    return lambda: torch.ops.nsa.attention(inputs.q, *inputs.keys, inputs.gates, kernels=kernels), inputs.leaves, inputs.d_out


def make_selected(torch, inputs, arguments):
    """The selected branch alone, with the blocks that the queries choose by the keys of the compressed branch."""
    kernels = "fused" if arguments.device == "cuda" else "aten"
    with torch.no_grad():
        blocks = torch.ops.nsa.select(inputs.q, torch.ops.nsa.pool(inputs.keys[0]))[1]
    k, v = inputs.keys[2:4]

    def forward():
        return torch.ops.nsa.attention(inputs.q, None, None, k, v, None, None, inputs.gates, indices=blocks, kernels=kernels)

    return forward, (inputs.q, k, v, inputs.gates), inputs.d_out


def make_cudnn(torch, inputs, arguments):
    backends = torch.nn.attention.SDPBackend
    return dense(torch, inputs, backends.CUDNN_ATTENTION if arguments.device == "cuda" else backends.MATH)


def make_flash(torch, inputs, arguments):
    backends = torch.nn.attention.SDPBackend
    return dense(torch, inputs, backends.FLASH_ATTENTION if arguments.device == "cuda" else backends.MATH)


def make_public(torch, inputs, arguments):
    rival = public_nsa.PublicNsa(torch, arguments.flash_nsa, inputs, WINDOW)
    return rival, rival.leaves, rival.d_out


MAKERS = {"NSA": make_nsa, "selected": make_selected, "dense, cuDNN": make_cudnn, "dense, ATen flash": make_flash,
          "flash_nsa": make_public}


class Length:
    """The variants of one length, warmed up. `without` says for each other one that it failed or is absent, and why."""

    def __init__(self, torch, timer, sequence, arguments):
        self.torch, self.timer, self.sequence, self.arguments = torch, timer, sequence, arguments
        self.variants, self.without = [], {}
        dtype = torch.bfloat16 if arguments.device == "cuda" else torch.float32
        self.inputs = timing.Inputs(torch, sequence, max(arguments.tokens, sequence), arguments.device, dtype)
        for name, make in MAKERS.items():
            try:
                variant = Variant(name, *make(torch, self.inputs, arguments))
                for call in variant.calls(torch).values():
                    call()
                    call()
                timer.synchronize()
                self.variants.append(variant)
            except public_nsa.Missing as missing:
                self.without[name] = {"absent": str(missing)}
            except Exception as error:  # a rival that fails leaves the others their rows
                self.without[name] = {"failed": f"{type(error).__name__}: {error}"[:300]}

    def count(self, call, host_ms):
        one = self.timer.times(call, 1, host_ms)[0] + 1.25 * host_ms
        return max(3, min(40, int(1e3 * self.arguments.row_seconds / self.arguments.turns / one)))

    def measure(self):
        for variant in self.variants:
            variant.host_ms = {kind: self.timer.host_ms(call) for kind, call in variant.calls(self.torch).items()}
        for _ in range(self.arguments.turns):
            for variant in self.variants:
                for kind, call in variant.calls(self.torch).items():
                    host_ms = variant.host_ms[kind]
                    variant.times[kind] += self.timer.times(call, self.count(call, host_ms), host_ms)

    def rows(self):
        tokens = self.inputs.batch * self.sequence
        for name, why in self.without.items():
            yield {"sequence": self.sequence, "what": name} | why
        for variant in self.variants:
            row = {"sequence": self.sequence, "tokens": tokens, "what": variant.name}
            row |= {f"{kind}_ms": timing.spread(sorted(variant.times[kind])) for kind in KINDS}
            yield row | {"host_ms": variant.host_ms["both"],
                         "scratch_mib": self.timer.scratch_mib(variant.calls(self.torch)["both"])}


def versions(torch, device):
    made = {"torch": torch.__version__, "device": "CPU"}
    if device == "cuda":
        import triton
        made |= {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
                 "triton": triton.__version__}
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", type=pathlib.Path, required=True)
    parser.add_argument("--flash-nsa", type=pathlib.Path)
    parser.add_argument("--sequences", type=child.numbers, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--row-seconds", type=float, required=True)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    torch = child.import_torch(arguments.device)
    timing.load_operators(torch, arguments.lib, arguments.device == "cuda")
    torch.manual_seed(0)
    begin, timer = time.monotonic(), timing.Timer(torch, arguments.device)
    first = Length(torch, timer, arguments.sequences[0], arguments)
    notes = public_nsa.NOTES if "flash_nsa" not in first.without else []
    child.wait({"seconds": time.monotonic() - begin, "versions": versions(torch, arguments.device), "notes": notes})
    for sequence in arguments.sequences:
        length = first if first and first.sequence == sequence else Length(torch, timer, sequence, arguments)
        first = None
        length.measure()
        for row in length.rows():
            child.say(row)
        del length
        if arguments.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
