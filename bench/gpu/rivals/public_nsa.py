"""The public NSA, flash_nsa, as a rival: finds its package and calls its attention with our sizes.

The package imports two modules that a host with torch may lack. It needs one function of them, which stands here. Its
window needs the package flash_attn; ATen's flash attention, which has the same algorithm, computes it here instead.
"""
import importlib
import importlib.machinery
import pathlib
import re
import sys
import types

PLACE = "https://github.com/mdy666/Scalable-Flash-Native-Sparse-Attention"
NOTES = ["flash_nsa computes its window by ATen's flash attention here, in place of the package flash_attn",
         "flash_nsa reads the sequence lengths once here; as published, each call compares them and waits for the GPU"]

READ_LENGTHS = {}  # class of the package -> its function that reads lengths, which PublicNsa calls once and replaces


class Missing(Exception):
    """The package cannot be used; the text says why and what helps."""


def numbers_of(version):
    """'3.10.1+git' as (3, 10, 1): versions that compare as their numbers do."""
    return tuple(int(number) for number in re.match(r"[\d.]*", version).group().split(".") if number)


def stand_in(name, **members):
    """Makes an empty module with these members if `name` cannot be imported. Returns whether it did."""
    try:
        importlib.import_module(name)
        return False
    except ImportError:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        vars(module).update(members)
        sys.modules[name] = module
        return True


def load(folder):
    """The package and its module with the attention of one layer. `folder`: a checkout, or None to import it."""
    if folder:
        folder = pathlib.Path(folder).resolve()
        if not (folder / "flash_nsa" / "__init__.py").exists():
            raise Missing(f"{folder} has no flash_nsa: clone {PLACE} and name the clone with --flash-nsa")
        sys.path.insert(0, str(folder))
    made = [name for name, members in (("pandas", {}), ("pkg_resources", {"parse_version": numbers_of})) if stand_in(name, **members)]
    try:
        package = importlib.import_module("flash_nsa")
        return package, importlib.import_module("flash_nsa.modules.hf_level_nsa"), made
    except ImportError as error:
        raise Missing(f"cannot import flash_nsa ({error}): clone {PLACE} and name the clone with --flash-nsa") from error


class PublicNsa:
    """The attention of flash_nsa on packed sequences of one length."""

    def __init__(self, torch, folder, inputs, window):
        package, module, self.stood_in = load(folder)
        batch, sequence, heads, dim = inputs.q.shape
        groups = inputs.keys[0].shape[2]
        tokens, device = batch * sequence, inputs.q.device

        def flat(tensor):
            return tensor.detach().reshape(tokens, -1, dim).contiguous().requires_grad_()

        # It has one key and one value for all three branches.
        self.q, self.k, self.v = flat(inputs.q), flat(inputs.keys[2]), flat(inputs.keys[3])
        self.weights = torch.randn(tokens, heads, 3, device=device, dtype=inputs.q.dtype, requires_grad=True)
        self.begins = torch.arange(0, tokens + 1, sequence, device=device, dtype=torch.int32)
        self.leaves, self.d_out = (self.q, self.k, self.v, self.weights), torch.randn_like(self.q)

        def attend_window(q, k, v, scale=None):
            of_sequences = [t.view(batch, sequence, -1, dim) for t in (q, k, v)]
            out = torch.ops.aten._flash_attention_forward(
                *of_sequences, None, None, sequence, sequence, 0.0, True, False, scale=scale or dim**-0.5,
                window_size_left=window - 1, window_size_right=0)[0]
            return out.reshape(tokens, heads, dim)

        module.swa_varlen_func = attend_window
        config = package.NSAConfig(hidden_size=heads * dim, head_dim=dim, num_heads=heads, num_kv_heads=groups)
        self.core = module.HFNSACore(config).to(device)
        helper = module.NSAHelper
        READ_LENGTHS.setdefault(helper, helper.init_cu_seqlens)(self.begins)
        helper.init_cu_seqlens = lambda *_, **__: None

    def __call__(self):
        return self.core(self.q, self.k, self.v, self.weights, self.begins)
