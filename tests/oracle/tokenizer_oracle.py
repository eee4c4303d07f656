#!/usr/bin/env python3
"""Compares our GPT-2 tokenizer with tiktoken: the class of every code point, and the ids of random text.

tiktoken gets our rank file, so the script needs only the package itself. If that is not installed, pip fetches it once
into --packages. Exit code 77 and a reason if it is not available.
"""
import argparse
import random
import subprocess
import sys
from pathlib import Path

from python_package import import_package, skip

PATTERN = (r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""")


def read_ranks(path):
    import base64
    lines = path.read_bytes().splitlines()
    return {base64.b64decode(token): int(rank) for token, rank in (l.split() for l in lines)}


def check_classes(tiktoken, probe):
    """tiktoken drops what its pattern does not match, so a pattern with one class shows the members of the class."""
    classes = subprocess.run([probe, "--classes"], capture_output=True, text=True, check=True).stdout
    bytes_only = {bytes([i]): i for i in range(256)}
    for letter, pattern in (("L", r"\p{L}"), ("N", r"\p{N}"), ("S", r"\s")):
        encoding = tiktoken.Encoding("class", pat_str=pattern, mergeable_ranks=bytes_only,
                                     special_tokens={})
        for code in range(0x110000):
            if 0xD800 <= code < 0xE000:
                continue
            expected = bool(encoding.encode_ordinary(chr(code)))
            if expected != (classes[code] == letter):
                sys.exit(f"FAILED: U+{code:04X} is {classes[code]}, tiktoken's {pattern} says "
                         f"{expected}")
    print("classes of all 1,112,064 code points agree")


def random_texts(seed, count):
    """Returns mixtures that stress the pre-tokenizer: scripts, runs of white space, contractions, digits."""
    rng = random.Random(seed)
    spaces = [" ", "  ", "\n", "\r\n", "\t", "\n\n", "   \n", "\u00a0", "\u3000", "\u2028",
              "\u0085", "\x1c"]
    words = ["the", "The", "attention", "don't", "we'll", "I've", "you're", "he'd", "'S", "'tis",
             "'", "''", "'re", "'lling", "naïve", "Größe", "дом", "中文", "日本語", "한국어", "עברית",
             "👩‍👩‍👧", "é", "e\u0301", "x²", "½", "١٢٣", "Ⅷ", "123456", "3.14", "...", "<|endoftext|>",
             "--", "_", "http://a.b/c?d=e", "\ufeff", "\ufffd", "a" * 200, "=" * 150, "ab" * 300]

    def any_character():
        while True:
            code = rng.choice((rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x10000),
                               rng.randrange(0x110000)))
            if not 0xD800 <= code < 0xE000:
                return chr(code)

    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(1, 60)):
            kind = rng.random()
            if kind < 0.45:
                parts.append(rng.choice(words))
            elif kind < 0.8:
                parts.append(rng.choice(spaces) * rng.choice((1, 1, 1, 2, 5)))
            else:
                parts.extend(any_character() for _ in range(rng.randrange(1, 12)))
        yield "".join(parts)


def check_ids(encoding, probe, ranks, texts):
    data = b"".join(b"%d\n%s" % (len(t), t) for t in (text.encode() for text in texts))
    done = subprocess.run([probe, str(ranks)], input=data, capture_output=True, check=True)
    lines = done.stdout.decode().splitlines()
    if len(lines) != len(texts):
        sys.exit(f"FAILED: {len(texts)} texts went in, {len(lines)} came out")
    for text, line in zip(texts, lines):
        expected = encoding.encode_ordinary(text)
        if [int(i) for i in line.split()] != expected:
            sys.exit(f"FAILED: {text!r}\n  ours     {line}\n  tiktoken {expected}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--probe", type=Path, required=True)
    parser.add_argument("--ranks", type=Path, required=True)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--file", type=Path, help="also compare this file, in 64 KiB pieces")
    options = parser.parse_args()
    if not options.ranks.exists():
        skip(f"{options.ranks} is not there: run tools/fetch-tokenizer")
    tiktoken = import_package("tiktoken", options.packages)
    check_classes(tiktoken, options.probe)
    encoding = tiktoken.Encoding("gpt2", pat_str=PATTERN,
                                 mergeable_ranks=read_ranks(options.ranks), special_tokens={})
    texts = list(random_texts(options.seed, options.texts))
    if options.file:
        whole = options.file.read_bytes().decode(errors="replace")
        texts += [whole[i:i + 65536] for i in range(0, len(whole), 65536)]
    check_ids(encoding, options.probe, options.ranks, texts)
    print(f"{len(texts)} texts, {sum(map(len, texts))} characters: all ids agree with tiktoken "
          f"{tiktoken.__version__}")


main()
