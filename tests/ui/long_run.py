"""Runs that are too long to be trained in a test: a metrics.jsonl of many steps, its index, and many runs in the
ledger."""
import json
import sqlite3


def add_runs(node, template, count):
    """Copies an ended run in the ledger, as if it had been submitted many times. nsad must not run meanwhile."""
    database = sqlite3.connect(next(node.state.rglob("ledger.db")))
    database.row_factory = sqlite3.Row
    row = dict(database.execute("SELECT * FROM runs WHERE id = ?", (template,)).fetchone())
    letters = "abcdefghijkmnpqrstuvwxyz"
    columns = ",".join(row)
    copies = []
    for number in range(count):
        name = "k" + "".join(letters[number // 24 ** place % 24] for place in range(4, -1, -1))
        copy = {k: v.replace(template, name) if isinstance(v, str) else v for k, v in row.items()}
        copy.update(submitted_at=row["submitted_at"] - (number + 1) * 10 ** 9)
        copies.append(tuple(copy.values()))
    with database:
        database.executemany(f"INSERT INTO runs ({columns}) VALUES ({','.join('?' * len(row))})", copies)
    database.close()


class Index:
    """The index that rank 0 keeps beside a metrics.jsonl (common/curves/curve_index.h), for records with these
    members."""

    SEGMENT, CHECKED = 256 << 10, 4096

    def __init__(self, path):
        self.out, self.begin, self.end = open(path, "w", encoding="ascii"), 0, 0
        self.start()

    def start(self):
        self.records, self.first, self.last, self.extremes, self.tail = 0, None, None, {}, []

    def add(self, line, step, varying, constant):
        values = {**constant, **varying} if self.records == 0 else varying
        place = [1, step, step * 512, "2026-11-24T03:00:00.000Z"]
        for metric, value in values.items():
            least, greatest = self.extremes.setdefault(metric, [None, None])
            if least is None or value < least[4]:
                self.extremes[metric][0] = [*place, value]
            if greatest is None or value > greatest[4]:
                self.extremes[metric][1] = [*place, value]
        self.records, self.first, self.last, self.end = self.records + 1, self.first or step, step, self.end + len(line)
        self.tail = [*self.tail[-7:], line]
        if self.end - self.begin >= self.SEGMENT:
            self.write()

    def write(self):
        for metric, (least, greatest) in self.extremes.items():
            self.out.write(json.dumps({"kind": "step", "metric": metric, "least": least, "greatest": greatest},
                                      separators=(",", ":")) + "\n")
        check = 14695981039346656037
        for byte in "".join(self.tail).encode()[-min(self.CHECKED, self.end - self.begin):]:
            check = (check ^ byte) * 1099511628211 % 2 ** 64
        self.out.write(json.dumps({"begin": self.begin, "end": self.end, "check": check, "unreadable": 0,
                                   "kinds": {"step": [self.records, self.first, self.last]}}, separators=(",", ":")) + "\n")
        self.begin = self.end
        self.start()


def numbers_of(record, prefix=""):
    """Returns its numbers by name, as the index has them."""
    found = {}
    for name, value in record.items():
        if isinstance(value, dict):
            found.update(numbers_of(value, f"{prefix}{name}."))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[prefix + name] = value
    return found


def lengthen(folder, steps, spike, with_index=True):
    """Makes a metrics.jsonl of so many steps, with the members of a real record. The greatest loss is at `spike`."""
    path = folder / "metrics.jsonl"
    (folder / "curves.jsonl").unlink(missing_ok=True)  # it covers only the steps that were really made
    index = Index(folder / "curves.jsonl") if with_index else None
    record = next(r for r in map(json.loads, path.read_text().splitlines()) if r["kind"] == "step")
    numbers = numbers_of(record)
    mark = {"step": "\"@step\"", "loss": "\"@loss\"", "tokens": "\"@tokens\""}
    # In the format of ranks.
    text = json.dumps({**record, **{k: v.strip('"') for k, v in mark.items()}}, separators=(",", ":"))
    with open(path, "w", encoding="ascii") as out:
        for step in range(1, steps + 1):
            loss = 99.5 if step == spike else 5 - 3 * step / steps + (step % 7) / 100
            line = (text.replace(mark["step"], str(step), 1).replace(mark["loss"], repr(loss), 1)
                    .replace(mark["tokens"], str(step * 512), 1) + "\n")
            out.write(line)
            if index:
                index.add(line, step, {"step": step, "tokens": step * 512, "loss": loss}, numbers)
    if index:
        index.out.close()
