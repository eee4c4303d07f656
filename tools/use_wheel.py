"""Uses an installed wheel as its users do: the layer against plain PyTorch, the operators, and the client with an
nsad. tools/check-wheel runs it in a bare root with the Python of the environment."""
import os
import subprocess
import sys

sys.setdlopenflags(os.RTLD_LAZY)  # some of torch's libraries are empty replacements there
import torch  # noqa: E402

import nsad  # noqa: E402


def check_layer():
    """Forward and backward on the CPU: the operators and plain PyTorch agree. Returns the largest difference."""
    torch.manual_seed(0)
    assert nsad.ops.attention is torch.ops.nsa.attention, "the operators are not loaded"
    layer = nsad.NSAttention(dimension=64, heads=4, kv_groups=2, head_dimension=16, compression_block=8, compression_stride=4,
                             selection_block=16, selected_blocks=4, window=24, dtype=torch.float64)
    x = torch.randn(2, 200, 64, dtype=torch.float64)
    found = {}
    for kernels in ("torch", "aten", "auto"):
        layer.kernels = kernels
        layer.zero_grad()
        given = x.clone().requires_grad_()
        y = layer(given)
        y.square().mean().backward()
        found[kernels] = [y.detach(), given.grad, *(p.grad.clone() for p in layer.parameters())]
    assert all(t.isfinite().all() and t.any() for t in found["torch"]), "an output or a gradient is zero or not finite"
    largest = max((a - b).abs().max().item() for kernels in ("aten", "auto") for a, b in zip(found[kernels], found["torch"], strict=True))
    assert largest < 1e-10, f"operators and plain PyTorch differ by {largest}"
    return largest


def check_client():
    """Starts, asks and stops an nsad of this wheel."""
    client = nsad.Client(start=True)
    try:
        version, nodes = client.version(), client.nodes()
        assert version.version == nsad.__version__, f"nsad {version.version} in the wheel {nsad.__version__}"
        assert [n.role for n in nodes] == ["single"] and nodes[0].processors == os.cpu_count(), nodes
        assert client.runs(all=True) == [] and isinstance(client.gpus(), list)
        try:
            client.run("nobody")
        except nsad.ApiError as error:
            assert error.code == "not-found", error
        else:
            raise AssertionError("a run that never was is shown")
    finally:
        subprocess.run(["nsactl", "daemon", "stop"], check=True)


if __name__ == "__main__":
    print(f"NSAttention, forward and backward: {check_layer():.1e} from plain PyTorch")
    check_client()
    print("Client: an nsad was started, asked and stopped")
