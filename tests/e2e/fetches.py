"""Shared by the tests of nsactl data fetch: text, its rows, and calls of the program."""
import hashlib
import json

from harness import expect


def words(dice, count):
    return " ".join("".join(dice.choices("etaoinshrdlué", k=dice.randrange(1, 9))) for _ in range(count))


def shards_of(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.glob("*.bin"))}


def rows(documents):
    return "".join(json.dumps({"id": i, "text": d}, ensure_ascii=False) + "\n" for i, d in enumerate(documents)).encode()


class Fetches:
    """Calls nsactl data fetch with folders of the node as output."""

    def __init__(self, node):
        self.node, self.number = node, 0

    def folder(self):
        self.number += 1
        return self.node.folder / f"set-{self.number}"

    def words(self, target, *sources):
        share = () if "--heldout-fraction" in sources else ("--heldout-fraction", "0.1")
        return ("data", "fetch", "--tokenizer", "bytes", *share, "--shard-tokens", "100000", "--out", target, *sources)

    def fetch(self, *sources):
        target = self.folder()
        made = self.node.json(*self.words(target, *sources))
        return target, made

    def refused(self, what, remedy, code, *sources):
        target = self.folder()
        done = self.node.run(*self.words(target, *sources), check=False)
        expect(done.returncode == code, f"{sources}: exit code {done.returncode}, {code} expected: {done.stderr}")
        expect(what in done.stderr and remedy in done.stderr.split("hint:")[-1], f"{sources}: {done.stderr}")
        expect(not target.exists(), f"{sources}: a data set was made")
        return done.stderr
