"""Language models with Native Sparse Attention (arXiv 2502.11089), as nsactl exports them.

    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

Without the package transformers, torch alone is enough:

    import modeling_nsa                      # from the exported folder
    model = modeling_nsa.load(folder)        # an nn.Module: token ids [B, S] -> logits [B, S, vocabulary]

If the package nsad is installed, the operators torch.ops.nsa compute attention, otherwise plain PyTorch. In that case
model.model.without_operators has the reason, and the log reports it once. Operators from other places also work:

    torch.ops.load_library("libnsa_ops.so")       # and libnsa_ops_cuda.so for the kernels of GPUs

model.attention_kernels is "auto", "torch", "aten" or "fused". Except for "auto", an implementation that is not
available raises an error.
"""
import functools
import importlib
import json
import logging
import math
import pathlib
import types

import torch
from torch import nn
from torch.nn import functional

BRANCHES = ("compressed", "selected", "sliding")
WEIGHTS = "model.safetensors"
CHUNK_ELEMENTS = 1 << 24  # most elements of a score matrix


def wide(dtype):
    """The dtype in which scores, softmax and sums are computed."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def compressed_count(length, config):
    """Number of compressed tokens of `length` tokens. It is also how many of them the last token sees."""
    return max(0, (length - config.compression_block) // config.compression_stride + 1)


def rope_tables(positions, config, dtype):
    """Cosine and sine [positions, D / 2]. The angles are computed in FP64 and rounded once."""
    half = config.head_dim // 2
    exponent = torch.arange(half, dtype=torch.float64, device=positions.device) * (-2.0 / (2 * half))
    angle = torch.outer(positions.double(), torch.pow(float(config.rope_base), exponent))
    return angle.cos().to(wide(dtype)), angle.sin().to(wide(dtype))


def rotate(x, tables):
    """RoPE of x [B, S, N, D] over the pairs (i, i + D / 2)."""
    cos, sin = (table[None, :, None, :] for table in tables)
    first, second = x.to(wide(x.dtype)).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def pool(x, config):
    """Averages of blocks: [B, S, G, D] -> [B, compressed, G, D] (Eq. 7)."""
    count, stride = compressed_count(x.shape[1], config), config.compression_stride
    if count == 0:
        return x[:, :0]
    per_token = config.compression_block // stride
    strides = x[:, :(count - 1 + per_token) * stride].to(wide(x.dtype)).unflatten(1, (-1, stride)).sum(2)
    total = sum(strides[:, m:m + count] for m in range(per_token))
    return (total / config.compression_block).to(x.dtype)


def block_scores(probability, blocks, config):
    """Importance of selection blocks from the compressed probabilities [N, C, K], by shared strides (Eq. 9)."""
    per_token = config.compression_block // config.compression_stride
    per_block = config.selection_block // config.compression_stride
    left = per_token - 1
    width = left + blocks * per_block
    kept = min(probability.shape[2], width - left)
    padded = functional.pad(probability[:, :, :kept], (left, width - left - kept))
    scores = 0
    for tap in range(-left, per_block):
        shared = min(tap + per_token, per_block) - max(tap, 0)
        begin = left + tap
        scores = scores + shared * padded[:, :, begin:begin + (blocks - 1) * per_block + 1:per_block]
    return scores


def hidden_blocks(scores, first, config):
    """Which blocks queries first ... do not select, bool like scores [N, C, blocks] (Eq. 11). The first block, the
    query's own and the one before it are always selected, the others by score. Of equal scores the lower block wins."""
    block = torch.arange(scores.shape[2], device=scores.device)
    position = torch.arange(first, first + scores.shape[1], device=scores.device)
    current = (position // config.selection_block)[:, None]
    forced = (block == 0) | (block >= current - 1)
    preference = scores.masked_fill(forced, math.inf).masked_fill(block > current, -math.inf)
    order = preference.argsort(dim=-1, descending=True, stable=True)[..., :config.selected_blocks]
    hidden = torch.ones_like(preference, dtype=torch.bool).scatter(2, order, False)
    return hidden | (block > current)


class PlainAttention:
    """The three branches on q [B, S, H, D], with keys and values by branch. It works on chunks of the queries, so it
    needs no matrix [S, S]."""

    def __init__(self, q, keys, values, gates, config):
        self.q, self.config, self.gates = q, config, gates
        self.batch, self.length, self.heads, self.dim = q.shape
        self.groups = config.num_key_value_heads
        self.keys = {name: self.by_group(k) for name, k in keys.items()}
        self.values = {name: self.by_group(v) for name, v in values.items()}

    def by_group(self, x):  # [B, K, G, D] -> [B * G, K, D]
        return x.transpose(1, 2).flatten(0, 1).to(wide(x.dtype))

    def forward(self):
        per_key = self.batch * self.heads * max(self.length, 1)
        count = max(16, min(1024, CHUNK_ELEMENTS // per_key))
        chunks = [self.chunk(begin, min(self.length, begin + count)) for begin in range(0, self.length, count)]
        return torch.cat(chunks, dim=1)

    def chunk(self, begin, end):
        q = self.q[:, begin:end].unflatten(2, (self.groups, -1)).permute(0, 2, 1, 3, 4)  # [B, G, C, P, D]
        q = q.flatten(0, 1).to(wide(q.dtype)) * (1.0 / math.sqrt(self.dim))
        position = torch.arange(begin, end, device=q.device)[:, None]
        outputs, hidden = {}, None
        if "compressed" in self.keys:
            outputs["compressed"], probability = self.compressed(q, position)
            if "selected" in self.keys:
                blocks = -(-end // self.config.selection_block)
                hidden = hidden_blocks(block_scores(probability.sum(2), blocks, self.config), begin, self.config)
        if "selected" in self.keys:
            outputs["selected"] = self.selected(q, position, hidden)
        if "sliding" in self.keys:
            outputs["sliding"] = self.sliding(q, position)
        total = 0
        for name, o in outputs.items():  # [B * G, C, P, D], rounded as the branch's operator rounds
            o = o.to(self.q.dtype).unflatten(0, (self.batch, self.groups)).permute(0, 2, 1, 3, 4).flatten(2, 3)
            gate = self.gates[:, begin:end, :, BRANCHES.index(name), None]
            total = total + o.to(gate.dtype) * gate.repeat_interleave(self.heads // gate.shape[2], dim=2)
        return total.to(self.q.dtype)

    def attend(self, q, keys, values, hidden):
        """hidden: bool, broadcast to [N, C, K]. Rows that see no key give zeros."""
        n, count, per_group, _ = q.shape
        blind = hidden.all(-1, keepdim=True)
        scores = torch.bmm(q.flatten(1, 2), keys.transpose(1, 2)).view(n, count, per_group, -1)
        scores = scores.masked_fill((hidden & ~blind).unsqueeze(-2), -math.inf)
        p = torch.softmax(scores, dim=-1).masked_fill(blind.unsqueeze(-2), 0.0)
        return torch.bmm(p.flatten(1, 2), values).view(q.shape), p

    def compressed(self, q, position):
        keys = self.keys["compressed"]
        if keys.shape[1] == 0:
            return torch.zeros_like(q), q.new_zeros(*q.shape[:3], 0)
        last = torch.arange(keys.shape[1], device=q.device) * self.config.compression_stride
        hidden = last + self.config.compression_block - 1 > position
        return self.attend(q, keys, self.values["compressed"], hidden)

    def selected(self, q, position, hidden):
        end = int(position[-1]) + 1
        key = torch.arange(end, device=q.device)
        hidden = hidden.repeat_interleave(self.config.selection_block, dim=2)[:, :, :end] | (key > position)
        return self.attend(q, self.keys["selected"][:, :end], self.values["selected"][:, :end], hidden)[0]

    def sliding(self, q, position):
        begin, end = max(0, int(position[0]) - self.config.window + 1), int(position[-1]) + 1
        key = torch.arange(begin, end, device=q.device)
        hidden = (key > position) | (key <= position - self.config.window)
        return self.attend(q, self.keys["sliding"][:, begin:end], self.values["sliding"][:, begin:end], hidden)[0]


def operators_are_loaded():
    return hasattr(torch.ops.nsa, "attention")


@functools.lru_cache(maxsize=None)
def import_operators():
    """Loads torch.ops.nsa through the package nsad; tries only once. Returns why they are missing, or "" if they are
    loaded."""
    if operators_are_loaded():
        return ""
    try:
        importlib.import_module("nsad.ops")  # "import" would make transformers require the package
    except (ImportError, OSError, RuntimeError) as error:  # missing, for another torch, or not loadable
        first = (str(error).splitlines() or [type(error).__name__])[0]
        logging.getLogger(__name__).warning("attention is computed by plain PyTorch: %s", first)
        return first
    return ""


def choose_kernels(wanted, q, config):
    """"fused", "aten" or "torch". A choice by name is never replaced silently: the operator raises an error."""
    if wanted != "auto":
        return wanted
    if not operators_are_loaded():
        return "torch"
    sizes = [config.compression_block, config.compression_stride, config.selection_block, config.selected_blocks,
             config.window]
    has_kernels = torch._C._dispatch_has_kernel_for_dispatch_key("nsa::why_not_fused", "CUDA")
    if q.is_cuda and q.dtype == torch.bfloat16 and has_kernels and not torch.ops.nsa.why_not_fused(
            q.new_empty(0, *q.shape[2:]), q.shape[0], config.num_key_value_heads, q.shape[1], sizes):
        return "fused"
    return "aten"


def sparse_attention(q, keys, values, gates, config, wanted):
    kernels = choose_kernels(wanted, q, config)
    if kernels == "torch":
        return PlainAttention(q, keys, values, gates, config).forward()
    pairs = [x for name in BRANCHES for x in (keys.get(name), values.get(name))]
    return torch.ops.nsa.attention(
        q, *pairs, gates, compression_block=config.compression_block, compression_stride=config.compression_stride,
        selection_block=config.selection_block, selected_blocks=config.selected_blocks, window=config.window,
        kernels=kernels)


class Gain(nn.Module):
    """RMSNorm."""

    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.hidden_size))
        self.epsilon = config.rms_norm_eps

    def forward(self, x):
        return functional.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


class TwoLayers(nn.Module):
    """Two matrices with SiLU between them."""

    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden, bias=False)
        self.fc2 = nn.Linear(hidden, outputs, bias=False)

    def forward(self, x):
        return self.fc2(functional.silu(self.fc1(x)))


class Compressor(TwoLayers):
    """A learned phi: compresses a block of keys or values to one vector."""

    def __init__(self, config):
        block = config.compression_block
        super().__init__(block * config.head_dim, 2 * config.head_dim, config.head_dim)
        self.position = nn.Parameter(torch.zeros(block, config.head_dim))
        self.block, self.stride = block, config.compression_stride

    def forward(self, x):  # [B, S, G, D] -> [B, compressed, G, D]
        if x.shape[1] < self.block:
            return x[:, :0]
        windows = x.unfold(1, self.block, self.stride).permute(0, 1, 2, 4, 3)  # [B, n, G, l, D]
        return super().forward((windows + self.position).flatten(3))


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        query, kv = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query, bias=False)
        self.o_proj = nn.Linear(query, config.hidden_size, bias=False)
        self.dense = config.attention == "dense"
        self.branches = [name for name in BRANCHES if name in config.branches]
        for suffix in [""] if self.dense else ["_" + name for name in self.branches]:
            setattr(self, "k_proj" + suffix, nn.Linear(config.hidden_size, kv, bias=False))
            setattr(self, "v_proj" + suffix, nn.Linear(config.hidden_size, kv, bias=False))
        if self.dense:
            return
        if "compressed" in self.branches and config.compression == "mlp":
            self.phi_k, self.phi_v = Compressor(config), Compressor(config)
        count = len(self.branches)
        if config.gate == "head_sigmoid":
            self.gate = TwoLayers(config.hidden_size, config.head_dim, config.num_attention_heads * count)
        elif count > 1:
            self.gate = TwoLayers(config.head_dim, config.head_dim // 2, count)

    def forward(self, x, tables, kernels):
        q = self.q_proj(x).unflatten(-1, (self.config.num_attention_heads, -1))
        turned = rotate(q, tables)
        if self.dense:
            k, v = (self.heads(x, name) for name in ("k_proj", "v_proj"))
            o = functional.scaled_dot_product_attention(
                turned.transpose(1, 2), rotate(k, tables).transpose(1, 2), v.transpose(1, 2), is_causal=True,
                enable_gqa=True).transpose(1, 2)
        else:
            keys, values = self.keys_and_values(x, tables)
            o = sparse_attention(turned, keys, values, self.gates(x, q), self.config, kernels)
        return self.o_proj(o.flatten(2))

    def heads(self, x, projection):
        return getattr(self, projection)(x).unflatten(-1, (self.config.num_key_value_heads, -1))

    def keys_and_values(self, x, tables):
        config, keys, values = self.config, {}, {}
        for name in self.branches:
            k, v = self.heads(x, "k_proj_" + name), self.heads(x, "v_proj_" + name)
            if name != "compressed":
                k = rotate(k, tables)
            elif config.compression == "average":
                k, v = pool(rotate(k, tables), config), pool(v, config)
            else:  # rotates at each block's first position
                k, v = self.phi_k(k), self.phi_v(v)
                first = torch.arange(k.shape[1], device=x.device) * config.compression_stride
                k = rotate(k, rope_tables(first, config, x.dtype))
            keys[name], values[name] = k, v
        return keys, values

    def gates(self, x, q):
        """[B, S, groups or heads, 3]; 0 for a branch that the layer does not have."""
        config, count = self.config, len(self.branches)
        if config.gate == "head_sigmoid":
            weight = self.gate(x).to(wide(x.dtype)).sigmoid().unflatten(-1, (-1, count))
        elif count == 1:
            weight = x.new_ones(*x.shape[:2], config.num_key_value_heads, 1, dtype=wide(x.dtype))
        else:
            mean = q.unflatten(2, (config.num_key_value_heads, -1)).mean(3, dtype=wide(x.dtype)).to(x.dtype)
            weight = torch.softmax(self.gate(mean).to(wide(x.dtype)) / config.gate_temperature, dim=-1)
        if count == len(BRANCHES):
            return weight
        columns = dict(zip(self.branches, weight.split(1, dim=-1)))
        zero = torch.zeros_like(weight[..., :1])
        return torch.cat([columns.get(name, zero) for name in BRANCHES], dim=-1)


class FeedForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.up_proj(x)))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Gain(config), Gain(config)
        self.self_attn, self.mlp = Attention(config), FeedForward(config)

    def forward(self, x, tables, kernels):
        x = x + self.self_attn(self.input_layernorm(x), tables, kernels)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Token ids [B, S] -> hidden states [B, S, hidden_size]."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        # This is not in forward(), so that compiled or traced code contains no import.
        self.without_operators = import_operators() if config.attention == "nsa" else ""
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = Gain(config)

    def forward(self, input_ids, kernels="auto"):
        x = self.embed_tokens(input_ids)
        tables = rope_tables(torch.arange(x.shape[1], device=x.device), self.config, x.dtype)
        for layer in self.layers:
            x = layer(x, tables, kernels)
        return self.norm(x)

    def logits(self, hidden):
        """In FP32 (FP64 for FP64); the output layer is the embedding."""
        return functional.linear(hidden, self.embed_tokens.weight).to(wide(hidden.dtype))


class NsaLanguageModel(nn.Module):
    """The model without the package transformers."""

    def __init__(self, config):
        super().__init__()
        self.config, self.attention_kernels = config, "auto"
        self.model = Decoder(config)

    def forward(self, input_ids):
        return self.model.logits(self.model(input_ids, self.attention_kernels))


DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16}


def read_weights(path):
    """The tensors of a safetensors file: 8 bytes of length, a JSON header, the data."""
    data = bytearray(pathlib.Path(path).read_bytes())
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        flat = torch.frombuffer(data, dtype=torch.uint8, count=end - begin, offset=8 + length + begin)
        tensors[name] = flat.view(DTYPES[entry["dtype"]]).view(entry["shape"])
    return tensors


def load(folder, device="cpu", dtype=None):
    """The exported model, for inference. dtype None keeps the stored dtype."""
    folder = pathlib.Path(folder)
    config = types.SimpleNamespace(**json.loads((folder / "config.json").read_text()))
    weights = read_weights(folder / WEIGHTS)
    with torch.device("meta"):
        model = NsaLanguageModel(config)
    model.load_state_dict(weights, strict=True, assign=True)
    return model.to(device=device, dtype=dtype).eval()


try:
    from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutput
except ImportError:  # without transformers only load() works
    PretrainedConfig = None

if PretrainedConfig is not None:

    class NsaConfig(PretrainedConfig):
        model_type = "nsa"

        def __init__(self, vocab_size=50304, hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
                     num_key_value_heads=2, head_dim=64, intermediate_size=3072, rms_norm_eps=1e-6,
                     rope_base=10000.0, max_position_embeddings=2048, attention="nsa", compression_block=32,
                     compression_stride=16, selection_block=64, selected_blocks=16, window=512,
                     compression="average", gate="group_softmax", gate_temperature=1.0, branches=BRANCHES, **kwargs):
            self.vocab_size, self.hidden_size, self.num_hidden_layers = vocab_size, hidden_size, num_hidden_layers
            self.num_attention_heads, self.num_key_value_heads = num_attention_heads, num_key_value_heads
            self.head_dim, self.intermediate_size, self.rms_norm_eps = head_dim, intermediate_size, rms_norm_eps
            self.rope_base, self.max_position_embeddings, self.attention = rope_base, max_position_embeddings, attention
            self.compression_block, self.compression_stride = compression_block, compression_stride
            self.selection_block, self.selected_blocks, self.window = selection_block, selected_blocks, window
            self.compression, self.gate, self.gate_temperature = compression, gate, gate_temperature
            self.branches = list(branches)
            kwargs.setdefault("tie_word_embeddings", True)
            super().__init__(**kwargs)

    class NsaForCausalLM(PreTrainedModel, GenerationMixin):
        config_class = NsaConfig
        base_model_prefix = "model"
        _no_split_modules = ["Block"]

        def __init__(self, config):
            super().__init__(config)
            self.attention_kernels = "auto"
            self.model = Decoder(config)
            self.post_init()

        def get_input_embeddings(self):
            return self.model.embed_tokens

        def set_input_embeddings(self, value):
            self.model.embed_tokens = value

        def forward(self, input_ids=None, attention_mask=None, labels=None, **ignored):
            """attention_mask: padding on either side. labels: ids, or -100 for a position without loss."""
            padding = leading_padding(attention_mask, input_ids)
            if padding is None:
                logits = self.model.logits(self.model(input_ids, self.attention_kernels))
            else:  # blocks must begin at a text's first token, so move each text there and its logits back
                column = torch.arange(input_ids.shape[1], device=input_ids.device)
                there = (column + padding) % input_ids.shape[1]
                back = (column - padding) % input_ids.shape[1]
                moved = self.model(input_ids.gather(1, there), self.attention_kernels)
                logits = self.model.logits(moved).gather(1, back[..., None].expand(-1, -1, self.config.vocab_size))
            loss = None
            if labels is not None:
                loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten().to(logits.device))
            return CausalLMOutput(loss=loss, logits=logits)

        def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **ignored):
            """Takes the whole text each time, because this module keeps no cache of keys and values."""
            return {"input_ids": input_ids, "attention_mask": attention_mask}


def leading_padding(mask, input_ids):
    """How many columns each row's text is away from the first one, [B, 1]; None if no row has padding before its text."""
    if mask is None or bool(mask[:, 0].all()):
        return None
    if mask.dim() != 2 or mask.shape != input_ids.shape:
        raise ValueError(f"attention_mask must be like input_ids {tuple(input_ids.shape)}, got {tuple(mask.shape)}")
    return (mask != 0).long().argmax(dim=1, keepdim=True)
