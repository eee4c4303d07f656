#!/usr/bin/env python3
"""Compares our reading of tokenizer.json with Hugging Face's tokenizers: files of several kinds, ids of random text.

The script trains the files on this repository's prose, so it needs only the package itself. If that is not installed,
pip fetches it once into --packages. Exit code 77 and a reason if it is not available.
"""
import argparse
import json
import random
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

from python_package import import_package, skip

ROOT = Path(__file__).resolve().parents[2]
# Expressions of widely used models: Llama 3, DeepSeek, SuperBPE.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
DEEPSEEK = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}+"]
SUPERBPE = [r"\p{N}+", r"(?=(\d{3})+(?!\d))"]
WORDS = ["the", "The", "attention", "don't", "WE'LL", "I've", "'s", "''", "naïve", "Größe", "дом", "中文", "日本語",
         "한국어", "עברית", "👩‍👩‍👧", "e\u0301", "½", "١٢٣", "123456", "3.14", "...", "<|endoftext|>", "<extra>", "<extra>>",
         "  <|", "--", "_", "http://a.b/c?d=e", "\ufeff", "\ufffd", "a" * 200, "=" * 150, "ab" * 300]
SPACES = [" ", "  ", "\n", "\r\n", "\t", "\n\n", "   \n", "\u00a0", "\u3000", "\u2028", "\u0085"]


def kinds(t, prose):
    """Returns (name, tokenizer) of each kind that we read."""
    def trained(steps, added=(), vocabulary=3000, **options):
        tokenizer = t.Tokenizer(t.models.BPE(**options))
        tokenizer.pre_tokenizer = t.pre_tokenizers.Sequence(steps) if len(steps) != 1 else steps[0]
        tokenizer.decoder = t.decoders.ByteLevel()
        trainer = t.trainers.BpeTrainer(vocab_size=vocabulary, show_progress=False, special_tokens=["<|endoftext|>"],
                                        initial_alphabet=t.pre_tokenizers.ByteLevel.alphabet())
        tokenizer.train_from_iterator(prose, trainer)
        for content, normalized in added:
            tokenizer.add_tokens([t.AddedToken(content, normalized=normalized)])
        return tokenizer

    def split(pattern, behavior="isolated", invert=False):
        return t.pre_tokenizers.Split(t.Regex(pattern), behavior, invert)
    level = t.pre_tokenizers.ByteLevel
    quiet = level(add_prefix_space=False, use_regex=False)
    yield "gpt2", trained([level(add_prefix_space=False)])
    yield "llama3", trained([split(LLAMA3), quiet])
    whole = trained([split(LLAMA3), quiet])
    data = json.loads(whole.to_str())
    data["model"]["ignore_merges"] = True
    data["model"]["merges"] = data["model"]["merges"][::2]  # leaves tokens that no merge produces
    yield "ignore_merges", t.Tokenizer.from_str(json.dumps(data))
    yield "removed", trained([split(LLAMA3, "removed", True), quiet])
    yield "deepseek", trained([split(p) for p in DEEPSEEK] + [quiet])
    yield "empty matches", trained([split(p) for p in SUPERBPE] + [quiet])
    yield "digits", trained([t.pre_tokenizers.Digits(individual_digits=True), level(add_prefix_space=False)])
    yield "digit runs", trained([t.pre_tokenizers.Digits(individual_digits=False), level(add_prefix_space=False)])
    yield "literal", trained([t.pre_tokenizers.Split(" ", "isolated"), quiet])
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        normal = trained([split(LLAMA3), quiet], [("Å", False), ("é", True)])
        normal.normalizer = t.normalizers.Sequence([getattr(t.normalizers, form)()])
        yield form, normal
    yield "added", trained([level(add_prefix_space=False)], [("<extra>", False), ("<extra>>", True), ("    ", True), ("don", False)])


def random_texts(seed, count):
    """Returns mixtures of scripts, white space and digits. All characters are older than any library's Unicode
    version."""
    rng = random.Random(seed)

    def any_character():
        while True:
            code = rng.choice((rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x3000), rng.randrange(0x20000)))
            # U+180E was a space until Unicode 6.3, and PCRE2 still treats it as one.
            if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co") and unicodedata.ucd_3_2_0.category(chr(code)) != "Cn" \
                    and code != 0x180E:
                return chr(code)
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(1, 40)):
            kind = rng.random()
            if kind < 0.45:
                parts.append(rng.choice(WORDS))
            elif kind < 0.8:
                parts.append(rng.choice(SPACES) * rng.choice((1, 1, 1, 2, 5)))
            else:
                parts.extend(any_character() for _ in range(rng.randrange(1, 12)))
        yield "".join(parts)


def check(name, tokenizer, probe, texts):
    """Special tokens in a text are ordinary characters for us. The package has a switch for that."""
    tokenizer.encode_special_tokens = True
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        tokenizer.save(str(path))
        data = b"".join(b"%d\n%s" % (len(t), t) for t in (text.encode() for text in texts))
        done = subprocess.run([probe, str(path)], input=data, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"FAILED: {name}: {done.stderr.decode()}")
    lines = done.stdout.decode().splitlines()
    if len(lines) != len(texts):
        sys.exit(f"FAILED: {name}: {len(texts)} texts went in, {len(lines)} came out")
    for text, line in zip(texts, lines):
        expected = tokenizer.encode(text, add_special_tokens=False).ids
        if [int(i) for i in line.split()] != expected:
            sys.exit(f"FAILED: {name}: {text!r}\n  ours       {line}\n  tokenizers {expected}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--probe", type=Path, required=True)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    tokenizers = import_package("tokenizers", options.packages)
    if not hasattr(tokenizers.Tokenizer, "encode_special_tokens"):
        skip(f"tokenizers {tokenizers.__version__} cannot read special tokens as text")
    prose = [p.read_text() for p in sorted((ROOT / "docs").rglob("*.md"))]
    texts = list(random_texts(options.seed, options.texts)) + prose
    for name, tokenizer in kinds(tokenizers, prose):
        check(name, tokenizer, options.probe, texts)
        print(f"{name}: {len(texts)} texts, {sum(map(len, texts))} characters agree with tokenizers {tokenizers.__version__}")


main()
