"""NSAttention: a layer of Native Sparse Attention (arXiv 2502.11089) as an nn.Module."""
import types

import torch

from nsad import modeling_nsa, ops

BRANCHES = modeling_nsa.BRANCHES
KERNELS = ("auto", "torch", "aten", "fused")


class NSAttention(modeling_nsa.Attention):
    """x [B, S, dimension] -> [B, S, dimension], causal, with rotary positions from 0.

    Its parameters have the names and shapes of `self_attn` in a model that `nsactl export` wrote, so a layer of such a
    model can be loaded into it. `kernels` is "auto", "torch" (plain PyTorch, the reference), "aten" or "fused" (GPUs
    only). Except for "auto", unsupported arguments raise an error, and no other implementation takes over.
    """

    def __init__(self, dimension, heads, kv_groups, head_dimension=64, *, compression_block=32, compression_stride=16,
                 selection_block=64, selected_blocks=16, window=512, compression="average", gate="group_softmax",
                 gate_temperature=1.0, branches=BRANCHES, rope_base=10000.0, kernels="auto", device=None, dtype=None):
        check(heads, kv_groups, head_dimension, compression_block, compression_stride, selection_block)
        for name, value, allowed in (("compression", compression, ("average", "mlp")), ("kernels", kernels, KERNELS),
                                     ("gate", gate, ("group_softmax", "head_sigmoid"))):
            if value not in allowed:
                raise ValueError(f"{name} is one of {', '.join(allowed)}, not {value!r}")
        if not branches or set(branches) - set(BRANCHES):
            raise ValueError(f"branches are some of {', '.join(BRANCHES)}, not {branches!r}")
        if "selected" in branches and "compressed" not in branches:
            raise ValueError("the selected branch takes its blocks from the scores of the compressed one: name both")
        super().__init__(types.SimpleNamespace(
            hidden_size=dimension, num_attention_heads=heads, num_key_value_heads=kv_groups, head_dim=head_dimension,
            compression_block=compression_block, compression_stride=compression_stride, selection_block=selection_block,
            selected_blocks=selected_blocks, window=window, compression=compression, gate=gate,
            gate_temperature=gate_temperature, branches=list(branches), rope_base=rope_base, attention="nsa"))
        self.kernels = kernels
        self.to(device=device, dtype=dtype)

    def forward(self, x):
        if x.dim() != 3 or x.shape[2] != self.config.hidden_size:
            raise ValueError(f"x has the shape {tuple(x.shape)}; [B, S, {self.config.hidden_size}] expected")
        positions = torch.arange(x.shape[1], device=x.device)
        tables = modeling_nsa.rope_tables(positions, self.config, x.dtype)
        return super().forward(x, tables, self.kernels)

    def extra_repr(self):
        c = self.config
        return (f"dimension={c.hidden_size}, heads={c.num_attention_heads}, kv_groups={c.num_key_value_heads}, "
                f"head_dimension={c.head_dim}, window={c.window}, kernels={self.kernels!r}")


def check(heads, kv_groups, head_dimension, compression_block, compression_stride, selection_block):
    if heads % kv_groups:
        raise ValueError(f"heads ({heads}) must be a multiple of kv_groups ({kv_groups})")
    if head_dimension % 2:
        raise ValueError(f"head_dimension ({head_dimension}) must be even: positions turn pairs")
    for name, block in (("compression_block", compression_block), ("selection_block", selection_block)):
        if block % compression_stride:
            raise ValueError(f"{name} ({block}) must be a multiple of compression_stride ({compression_stride})")


assert hasattr(ops, "attention")  # modeling_nsa takes the operators where they are loaded
