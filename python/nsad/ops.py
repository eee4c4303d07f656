"""torch.ops.nsa, with autograd and shape functions: importing this module loads the operators' libraries.

    from nsad import ops
    o = ops.attention(q, k_cmp, v_cmp, k_sel, v_sel, k_sli, v_sli, gates, window=512)

If torch has a GPU, this also loads the hand-written kernels (kernels="fused"). docs/operators.md has the arguments of
every operator.
"""
import pathlib

import torch

LIBRARIES = pathlib.Path(__file__).resolve().parent / "lib"
TORCH = "2.11."

if not torch.__version__.startswith(TORCH):
    raise ImportError(f"nsad's operators are built for torch {TORCH[:-1]}, and this is torch {torch.__version__}: "
                      "signatures inside torch change between its versions")
torch.ops.load_library(str(LIBRARIES / "libnsa_ops.so"))
has_kernels = torch.cuda.is_available() and (LIBRARIES / "libnsa_ops_cuda.so").exists()
if has_kernels:
    torch.ops.load_library(str(LIBRARIES / "libnsa_ops_cuda.so"))


def __getattr__(name):
    return getattr(torch.ops.nsa, name)
