"""Computes logits with an exported model in every way that there is, and compares them. Prints one JSON line per case.

    exported_run_probe.py FOLDER CASES.json --device cuda|cpu --seconds S [--library FILE ...]

tests/gpu/exported_run starts it and writes CASES.json: rows of ids, logits of nsa-model for them, and a greedy text.
"""
import argparse
import base64
import json
import pathlib
import statistics
import sys
import time

import torch

FP32_LIMIT = 1e-5  # relative to the largest logit, if that is above 1
# BF16 has 8 bits, so each way rounds differently. The error of plain PyTorch in BF16 shows how much is usual.
BF16_RATIO = 1.5  # the other way's error divided by that of plain PyTorch
BF16_ROUNDING = 2.0 ** -8  # relative error of one number
PLAIN_BF16_LIMIT = 0.01  # mean error divided by the largest logit
FEW_TOKENS = 8  # a greedy text with fewer tokens says nothing
FP32, BF16 = torch.float32, torch.bfloat16
NAMES = {FP32: "FP32", BF16: "BF16"}


class NotRun(Exception):
    """This machine lacks something that the case needs."""


class Probe:
    def __init__(self, arguments, cases):
        self.folder, self.cases, self.device = arguments.folder, cases, arguments.device
        self.end = time.monotonic() + arguments.seconds
        self.models = {}
        sys.path.insert(0, str(self.folder))
        import modeling_nsa
        self.library = modeling_nsa
        self.ids, self.long = torch.tensor(cases["ids"]), torch.tensor(cases["long"])
        self.expected = modeling_nsa.read_weights(cases["logits"])["logits"]
        self.scale = max(1.0, self.expected.abs().max().item())
        self.long_expected = None
        self.plain = {}  # errors of plain PyTorch in BF16, for each set of rows

    def case(self, name, function, *values):
        result = {"case": name, "problems": []}
        try:
            if time.monotonic() > self.end:
                raise NotRun("the script's time was over")
            with torch.no_grad():
                function(result, *values)
        except NotRun as reason:
            result["not_run"] = str(reason)
        except Exception as error:  # the other cases are still useful
            result["problems"].append(f"{type(error).__name__}: {str(error)[:800]}")
        print(json.dumps(result), flush=True)

    def model(self, dtype, device):
        if (dtype, device) not in self.models:
            self.models[dtype, device] = self.library.load(self.folder, device=device, dtype=dtype)
        return self.models[dtype, device]

    def logits(self, ids, kernels, dtype, device):
        model = self.model(dtype, device)
        model.attention_kernels = kernels
        return model(ids.to(device)).float().cpu()

    def compare(self, result, found, expected):
        if not bool(found.isfinite().all()):
            result["problems"].append("logits are not finite")
        difference = (found - expected).abs()
        result.update(largest_logit=self.scale, largest_difference=difference.max().item(),
                      mean_difference=difference.mean().item())

    @staticmethod
    def hold(result, key, limit):
        result[f"limit_of_{key}"] = limit
        if not result[key] <= limit:
            result["problems"].append(f"{key} is {result[key]:.3g}, the limit {limit:.3g}")

    def fp32(self, result, kernels, device):
        self.compare(result, self.logits(self.ids, kernels, FP32, device), self.expected)
        self.hold(result, "largest_difference", FP32_LIMIT * self.scale)

    def from_pretrained(self, result, device):
        try:
            from transformers import AutoModelForCausalLM, __version__
        except ImportError as error:
            raise NotRun(f"transformers: {error}") from error
        result["transformers"] = __version__
        model = AutoModelForCausalLM.from_pretrained(self.folder, trust_remote_code=True).to(device)
        model.attention_kernels = "torch"
        self.compare(result, model(self.ids.to(device)).logits.cpu(), self.expected)
        self.hold(result, "largest_difference", FP32_LIMIT * self.scale)

    def bf16(self, result, kernels):
        self.judge_bf16(result, "short", kernels, self.logits(self.ids, kernels, BF16, self.device), self.expected)

    def judge_bf16(self, result, rows, kernels, found, expected):
        self.compare(result, found, expected)
        if kernels == "torch":
            self.plain[rows] = dict(result)
            self.hold(result, "mean_difference", PLAIN_BF16_LIMIT * self.scale)
            return
        if rows not in self.plain:
            raise NotRun("plain PyTorch has no BF16 error to compare with")
        plain = self.plain[rows]
        self.hold(result, "mean_difference", BF16_RATIO * plain["mean_difference"])
        if rows == "short":  # every block is selected here, so rounding changes no choice of blocks
            self.hold(result, "largest_difference",
                      BF16_RATIO * plain["largest_difference"] + BF16_ROUNDING * self.scale)

    def worker_bf16(self, result):
        """nsa-model on the GPU, as the worker computes."""
        found = self.library.read_weights(self.cases["logits_bf16"])["logits"]
        self.judge_bf16(result, "short", "nsa-model", found, self.expected)

    def long_rows(self, result, kernels, dtype):
        """In these rows blocks are left out. If scores are equal except for rounding, another block may be chosen. So
        the test compares means."""
        if self.long_expected is None:
            self.long_expected = self.logits(self.long, "torch", FP32, self.device)
        found = self.logits(self.long, kernels, dtype, self.device)
        if dtype == BF16:
            return self.judge_bf16(result, "long", kernels, found, self.long_expected)
        self.compare(result, found, self.long_expected)
        self.hold(result, "mean_difference", FP32_LIMIT * self.scale)

    def refused(self, result):
        """Tests the fused kernels without a GPU."""
        try:
            self.logits(self.ids, "fused", FP32, "cpu")
        except RuntimeError:
            return
        result["problems"].append("the fused kernels computed on a CPU")

    def greedy(self, result, kernels, dtype):
        """Walks through the sampled text. Each of its tokens must be the exported model's most probable one, or as
        probable except for rounding. Padding ids of the vocabulary are not considered."""
        text = self.cases["text"].split("\ufffd")[0].encode()
        pieces = pieces_of(self.cases["ranks_file"])
        margin = 2 * (self.plain["short"]["largest_difference"] if dtype == BF16 else FP32_LIMIT * self.scale)
        ids, at, equal, worst = list(self.cases["prompt"]), 0, 0, 0.0
        while at < len(text):
            row = self.logits(torch.tensor([ids]), kernels, dtype, self.device)[0, -1, :self.cases["vocabulary"]]
            order = row.argsort(descending=True).tolist()
            token = next((i for i in order if i < len(pieces) and text.startswith(pieces[i], at)), None)
            short = row[order[0]].item() - (row[token].item() if token is not None else -float("inf"))
            if short > margin:
                if len(text) - at < 16 and self.cases["text"].encode() != text:
                    break  # the missing character cut the token
                result["problems"].append(f"token {len(ids)}: {short:.3g} below the most probable one")
                break
            equal, worst = equal + (token == order[0]), max(worst, short)
            ids.append(token)
            at += len(pieces[token])
        walked = len(ids) - len(self.cases["prompt"])
        result.update(tokens=walked, most_probable=equal, largest_shortfall=worst, limit_of_shortfall=margin)
        if walked < FEW_TOKENS and not result["problems"]:
            raise NotRun(f"the text has {walked} tokens")

    def times(self, result, kernels, dtype, tokens):
        ids = self.long[:, :1].repeat(1, tokens)
        ids[:, :self.long.shape[1]] = self.long[:, :tokens]
        model, ids = self.model(dtype, self.device), ids.to(self.device)
        model.attention_kernels = kernels
        seconds = []
        for _ in range(7):
            begin = time.perf_counter()
            model(ids)
            if self.device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begin)
        result.update(tokens=tokens, ms_forward=round(1e3 * statistics.median(seconds[2:]), 3))


def pieces_of(ranks_file):
    """Returns the bytes of each id."""
    if not ranks_file:
        return [bytes([i]) for i in range(256)]
    lines = pathlib.Path(ranks_file).read_text().split("\n")
    pieces = {int(rank): base64.b64decode(piece) for piece, rank in (line.split() for line in lines if line)}
    return [pieces[i] for i in range(len(pieces))]


def run_all(probe):
    gpu = probe.device == "cuda"
    devices = ["cpu", "cuda"] if gpu else ["cpu"]
    for device in devices:
        probe.case(f"FP32, torch, {device}", probe.fp32, "torch", device)
    probe.case(f"FP32, aten, {probe.device}", probe.fp32, "aten", probe.device)
    ways = ["torch", "aten"] + (["fused"] if gpu else [])
    for kernels in ways:
        probe.case(f"BF16, {kernels}, {probe.device}", probe.bf16, kernels)
    if "logits_bf16" in probe.cases:
        probe.case(f"BF16, nsa-model, {probe.device}", probe.worker_bf16)
    for kernels, dtype in [("aten", FP32)] + [(kernels, BF16) for kernels in ways]:
        probe.case(f"{NAMES[dtype]}, {kernels}, {probe.device}, long", probe.long_rows, kernels, dtype)
    if not gpu:
        probe.case("fused is refused", probe.refused)
    probe.case("greedy", probe.greedy, "fused" if gpu else "torch", BF16 if gpu else FP32)
    for kernels in ways:
        probe.case(f"time, {kernels}", probe.times, kernels, BF16 if gpu else FP32, 4096 if gpu else 512)
    for device in devices:
        probe.case(f"FP32, from_pretrained, {device}", probe.from_pretrained, device)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("cases", type=pathlib.Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--library", action="append", default=[], help="of the operators")
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("highest")  # without TF32
    for library in arguments.library:
        torch.ops.load_library(library)
    run_all(Probe(arguments, json.loads(arguments.cases.read_text())))


main()
