"""Times training steps of our dense twin written in PyTorch. beside_rivals starts one such process for each length.

The model has the sizes of the M7C. It trains by autocast to BF16, scaled_dot_product_attention and fused AdamW, eager or
through torch.compile. It prepares, prints {"ready": ...}, waits for a line, and prints a row. Several processes compile
at the same time, but a lock lets only one of them use the GPU. So none disturbs the timings by which the compiler
chooses, and memory holds one step.
"""
import argparse
import contextlib
import fcntl
import pathlib
import time

import child

torch = None
HEAD = 64
WARM_UP = 3
MOST_STEPS = 20


class GpuLock:
    """Held from the first step to the end of the warm-up."""

    def __init__(self, path):
        self.file, self.held = path.open("a"), False

    def take(self):
        if not self.held:
            fcntl.flock(self.file, fcntl.LOCK_EX)
            self.held = True

    def give(self):
        fcntl.flock(self.file, fcntl.LOCK_UN)


def twin_classes():
    """The classes of the model, made once torch is imported."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self, sizes):
            super().__init__()
            self.heads, self.groups = sizes.heads, sizes.groups
            width = sizes.heads * HEAD
            self.attention_norm, self.mlp_norm = (nn.RMSNorm(sizes.dimension, eps=1e-6) for _ in range(2))
            self.w_qkv = nn.Linear(sizes.dimension, width + 2 * sizes.groups * HEAD, bias=False)
            self.w_out = nn.Linear(width, sizes.dimension, bias=False)
            self.fc1 = nn.Linear(sizes.dimension, sizes.mlp, bias=False)
            self.fc2 = nn.Linear(sizes.mlp, sizes.dimension, bias=False)

        def attend(self, x, rotation):
            rows, sequence, _ = x.shape
            q, k, v = self.w_qkv(x).view(rows, sequence, -1, HEAD).transpose(1, 2).split(
                [self.heads, self.groups, self.groups], dim=1)
            cos, sin = rotation

            def rotate(t):
                first, second = t.chunk(2, dim=-1)
                return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

            out = functional.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)
            return self.w_out(out.transpose(1, 2).flatten(2))

        def forward(self, x, rotation):
            x = x + self.attend(self.attention_norm(x), rotation)
            return x + self.fc2(functional.silu(self.fc1(self.mlp_norm(x))))

    class Twin(nn.Module):
        def __init__(self, sizes):
            super().__init__()
            self.embedding = nn.Embedding(sizes.vocabulary, sizes.dimension)
            self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
            self.final_norm = nn.RMSNorm(sizes.dimension, eps=1e-6)
            nn.init.normal_(self.embedding.weight, std=0.02)

        def forward(self, inputs, targets, rotation):
            x = self.embedding(inputs)
            for block in self.blocks:
                x = block(x, rotation)
            logits = functional.linear(self.final_norm(x), self.embedding.weight)  # the table is also the head
            return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    return Twin


def rotation_of(sequence, device):
    frequencies = 10000.0 ** (-torch.arange(HEAD // 2, device=device) / (HEAD // 2))
    angles = torch.outer(torch.arange(sequence, device=device), frequencies)
    return angles.cos().bfloat16(), angles.sin().bfloat16()


def compiled(model, lock):
    """The model through torch.compile. The lock is taken when the compiled code first runs, after its compilation."""
    from torch._inductor.compile_fx import compile_fx

    def backend(graph, example_inputs):
        run = compile_fx(graph, example_inputs)

        def run_alone(*values):
            lock.take()
            return run(*values)

        return run_alone

    return torch.compile(model, backend=backend)


class Training:
    def __init__(self, arguments, lock):
        self.sequence, self.device = arguments.sequence, arguments.device
        self.rows = max(1, arguments.tokens // arguments.sequence)
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high")
        self.model = twin_classes()(arguments).to(self.device)
        self.forward = compiled(self.model, lock) if arguments.how == "compiled" else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        self.rotation = rotation_of(self.sequence, self.device)
        tokens = torch.randint(arguments.vocabulary, (self.rows, self.sequence + 1), device=self.device)
        self.inputs, self.targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def attention_kernels(self):
        """cuDNN first, as on Hopper by default, else ATen's flash attention. The CPU takes what it has."""
        if self.device != "cuda":
            return contextlib.nullcontext()
        from torch.nn.attention import SDPBackend, sdpa_kernel
        return sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True)

    def step(self):
        with self.attention_kernels(), torch.autocast(self.device, torch.bfloat16):
            loss = self.forward(self.inputs, self.targets, self.rotation)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def attention_in_effect(self):
        """Which library computes attention, by the names of the kernels of a step."""
        if self.device != "cuda":
            return "CPU"
        from torch.profiler import ProfilerActivity, profile
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            self.step()
            torch.cuda.synchronize()
        names = " ".join(event.key.lower() for event in profiled.key_averages())
        return next((said for part, said in (("cudnn_generated", "cuDNN"), ("sdpa", "cuDNN"), ("flash", "ATen flash"))
                     if part in names), "unknown")

    def times(self, row_seconds):
        """Milliseconds of steps, each from its begin to the next one's begin, and the last loss."""
        begin = time.perf_counter()
        loss = float(self.step())  # waits for the step
        count = max(5, min(MOST_STEPS, int(row_seconds / (time.perf_counter() - begin))))
        if self.device != "cuda":
            times = []
            for _ in range(count):
                begin = time.perf_counter()
                loss = float(self.step())
                times.append((time.perf_counter() - begin) * 1e3)
            return sorted(times), loss
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        for event in events[:-1]:
            event.record()
            last = self.step()
        events[-1].record()
        torch.cuda.synchronize()
        return sorted(a.elapsed_time(b) for a, b in zip(events, events[1:])), float(last)


def main():
    global torch
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--how", choices=("compiled", "eager"), required=True)
    for name in ("sequence", "tokens", "vocabulary", "dimension", "layers", "heads", "groups", "mlp"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--row-seconds", type=float, required=True)
    parser.add_argument("--lock", type=pathlib.Path, required=True)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    begin, lock = time.monotonic(), GpuLock(arguments.lock)
    torch = child.import_torch(arguments.device)
    training = Training(arguments, lock)
    if arguments.how == "eager":
        lock.take()
    for _ in range(WARM_UP):
        float(training.step())
    attention, cuda = training.attention_in_effect(), arguments.device == "cuda"
    if cuda:
        torch.cuda.empty_cache()
    lock.give()
    child.wait({"seconds": time.monotonic() - begin, "versions": {"torch": torch.__version__}})
    for _ in range(WARM_UP):
        float(training.step())
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    times, loss = training.times(arguments.row_seconds)
    tokens, median = training.rows * training.sequence, times[len(times) // 2]
    child.say({"sequence": arguments.sequence, "tokens": tokens, "tokens_per_second": tokens / median * 1e3,
               "step_ms": {"median": median, "p10": times[len(times) // 10], "p90": times[-1 - len(times) // 10]},
               "steps": len(times), "peak_allocated_gib": torch.cuda.max_memory_allocated() / 2**30 if cuda else None,
               "reserved_gib": torch.cuda.memory_reserved() / 2**30 if cuda else None, "loss": loss, "attention_by": attention,
               "parameters": sum(p.numel() for p in training.model.parameters())})


if __name__ == "__main__":
    main()
