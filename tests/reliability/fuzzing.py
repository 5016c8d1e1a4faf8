"""Study files that somebody has damaged or forged, and what becomes of loading them.

Run in a process of its own, whose memory is limited and whose audit hook sees every import, every
file that is opened and everything that is executed.
"""

from __future__ import annotations

import copy
import json
import math
import random
import resource
import shutil
import signal
import sqlite3
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from test_every_optimizer import OPTIMIZERS

import botorch_delay as bd
from botorch_delay.exceptions import BotorchDelayError

SEEDS = ["BPE, few design points", "BPE, all evidence", "BPE, budget", "BPE, geometric, TS"]
SEEDS += ["BPE, learned", "BPE, delay law", "UCB, censor", "TS, hallucinate", "botorch", "threds"]
SEEDS += ["random set", "random box", "queued BPE", "BPE, box", "UCB, box"]
MEMORY = 2**30  # most bytes that loading may add to the process
TIMES = 100  # most time for a damaged file, relative to the slowest undamaged study
SECONDS = 20.0  # of processor time, after which a load that hangs is stopped

NUMBERS = [0, 1, -1, 2, 7, 0.5, -0.0, 1e-320, 1e-12, 1e12, 1e308, -1e308, math.nan, math.inf]
NUMBERS += [2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**30, 10**400]
VALUES: list[Any] = [*NUMBERS, None, True, False, "", "x", "1", "\u0000", "RBFKernel", "os.system"]
VALUES += [[], {}, [[]], [0] * 50, [math.nan], {"class": "x"}, ["x"] * 3, {"": None}, [10**400]]


def deep(levels: int = 20_000) -> str:
    """JSON that is nested too deeply."""
    return "[" * levels + "]" * levels


# Bytes


def flip_bits(rng: random.Random, data: bytearray) -> bytearray:
    for _ in range(rng.randint(1, 8)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def overwrite(rng: random.Random, data: bytearray) -> bytearray:
    start = rng.randrange(len(data))
    length = rng.choice([1, 4, 64, 4096])
    data[start : start + length] = rng.randbytes(min(length, len(data) - start))
    return data


def truncate(rng: random.Random, data: bytearray) -> bytearray:
    return data[: rng.randrange(len(data))]


def swap_pages(rng: random.Random, data: bytearray) -> bytearray:
    one, two = (4096 * rng.randrange(len(data) // 4096) for _ in range(2))
    pages = data[one : one + 4096], data[two : two + 4096]
    data[one : one + 4096], data[two : two + 4096] = pages[1], pages[0]
    return data


def spoil_header(rng: random.Random, data: bytearray) -> bytearray:
    data[rng.randrange(100)] = rng.randrange(256)
    return data


def append(rng: random.Random, data: bytearray) -> bytearray:
    return data + rng.randbytes(rng.choice([1, 100, 4096]))


BYTES: list[Callable[[random.Random, bytearray], bytearray]] = [
    flip_bits,
    overwrite,
    truncate,
    swap_pages,
    spoil_header,
    append,
]

# Contents of valid SQLite

COLUMNS = {
    "meta": ["key", "value"],
    "arrays": ["name", "dtype", "shape", "data"],
    "events": ["number", "kind", "time", "trial", "value", "data"],
}


def storable(value: Any) -> Any:
    """The value in a form that SQLite can store."""
    if isinstance(value, list | dict):
        return json.dumps(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)
    return value


def some_cell(rng: random.Random, db: sqlite3.Connection) -> tuple[str, str, int, Any]:
    table = rng.choice(["meta", "meta", "arrays", "events", "events", "events"])
    column = rng.choice(COLUMNS[table])
    rows = db.execute(f"SELECT rowid, {column} FROM {table}").fetchall()
    if not rows:
        return some_cell(rng, db)
    return (table, column, *rng.choice(rows))


def wrong_value(rng: random.Random, db: sqlite3.Connection) -> None:
    table, column, row, _ = some_cell(rng, db)
    value = rng.choice([*map(storable, VALUES), rng.randbytes(40), "x" * 100_000, deep()])
    db.execute(f"UPDATE OR REPLACE {table} SET {column} = ? WHERE rowid = ?", (value, row))


def swap_cells(rng: random.Random, db: sqlite3.Connection) -> None:
    table, column, row, value = some_cell(rng, db)
    other = rng.choice(COLUMNS[table]) if rng.random() < 0.3 else column
    rows = db.execute(f"SELECT rowid, {other} FROM {table}").fetchall()
    there, theirs = rng.choice(rows)
    db.execute(f"UPDATE OR REPLACE {table} SET {column} = ? WHERE rowid = ?", (theirs, row))
    db.execute(f"UPDATE OR REPLACE {table} SET {other} = ? WHERE rowid = ?", (value, there))


def some_document(rng: random.Random, db: sqlite3.Connection) -> tuple[str, str, int, Any]:
    table, column = rng.choice(
        [("meta", "value")] * 4 + [("events", "data")] * 6 + [("arrays", "shape")]
    )
    rows = db.execute(f"SELECT rowid, {column} FROM {table}").fetchall()
    if not rows:
        return some_document(rng, db)
    row, text = rng.choice(rows)
    return table, column, row, json.loads(text)


def places(document: Any) -> list[tuple[Any, Any]]:
    """Every container in a document with each of its keys."""
    found: list[tuple[Any, Any]] = []
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        found.append((document, key))
        if isinstance(value, dict | list):
            found += places(value)
    return found


def wrong_document(rng: random.Random, db: sqlite3.Connection) -> None:
    table, column, row, document = some_document(rng, db)
    holder = [document]
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        inside = places(holder)
        container, key = rng.choice(inside)
        kind = rng.random()
        if kind < 0.1 and isinstance(container, dict):
            del container[key]
        elif kind < 0.2:
            other, place = rng.choice(inside)
            container[key], other[place] = other[place], container[key]
        elif kind < 0.3 and isinstance(container[key], int | float):
            container[key] = container[key] * rng.choice([-1, 10, 10**6]) + rng.choice([0, 1])
        elif kind < 0.35 and isinstance(container, dict):
            container[str(rng.choice(VALUES))[:40]] = copy.deepcopy(rng.choice(VALUES))
        else:
            container[key] = copy.deepcopy(rng.choice(VALUES))
        try:
            json.dumps(holder)
        except (ValueError, RecursionError):  # it contains itself now
            return wrong_document(rng, db)
    text = json.dumps(holder[0])
    db.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (text, row))
    return None


def wrong_array(rng: random.Random, db: sqlite3.Connection) -> None:
    name, shape, data = rng.choice(db.execute("SELECT name, shape, data FROM arrays").fetchall())
    sizes = json.loads(shape)
    huge = [2**62, 2**40, 10**9, 2**31, 10**30, -1, 0]
    kind = rng.randrange(6)
    if kind == 0:
        sizes[rng.randrange(len(sizes))] = rng.choice(huge)
    elif kind == 1:
        sizes = sizes[::-1] if rng.random() < 0.5 else [math.prod(sizes), 0, rng.choice(huge)]
    elif kind == 2:
        number = torch.tensor([rng.choice([math.nan, math.inf, 1e308, -1.0])], dtype=torch.double)
        place = 8 * rng.randrange(max(len(data) // 8, 1))
        data = data[:place] + number.numpy().tobytes() + data[place + 8 :]
    elif kind == 3:
        data = rng.randbytes(len(data))
    elif kind == 4:
        data = data[: rng.randrange(len(data) + 1)]
    else:
        dtype = rng.choice(["float32", "float64", "int64", "object", "complex128", "O"])
        db.execute("UPDATE arrays SET dtype = ? WHERE name = ?", (dtype, name))
    db.execute(
        "UPDATE arrays SET shape = ?, data = ? WHERE name = ?", (json.dumps(sizes), data, name)
    )


def wrong_rows(rng: random.Random, db: sqlite3.Connection) -> None:
    table, _, row, _ = some_cell(rng, db)
    names = ", ".join(COLUMNS[table][1:])
    kind = rng.randrange(3)
    if kind == 0:
        db.execute(f"DELETE FROM {table} WHERE rowid = ?", (row,))
    elif kind == 1:
        db.execute(f"DELETE FROM {table}")
    elif table == "events":
        first = COLUMNS[table][0]
        copied = rng.choice([10**6, -1, 2**62, 50])
        select = f"SELECT ?, {names} FROM {table} WHERE rowid = ?"
        db.execute(f"INSERT OR REPLACE INTO {table} ({first}, {names}) {select}", (copied, row))


HARMFUL = "DELETE FROM events; UPDATE events SET value = 9; INSERT INTO meta VALUES ('x', 'y');"
SCHEMAS = [
    f"CREATE TRIGGER t AFTER INSERT ON events BEGIN {HARMFUL} END",
    f"CREATE TRIGGER t BEFORE UPDATE ON meta BEGIN {HARMFUL} END",
    "CREATE TRIGGER t AFTER INSERT ON meta BEGIN SELECT load_extension('/tmp/evil.so'); END",
    "CREATE VIEW v AS SELECT * FROM trials",
    "ALTER TABLE events RENAME TO hidden; CREATE VIEW events AS SELECT * FROM hidden",
    "DROP VIEW trials; CREATE VIEW trials AS SELECT load_extension('/tmp/evil.so')",
    "DROP VIEW trials; CREATE VIEW trials AS SELECT 1 AS number, readfile('/etc/passwd') AS x",
    "DROP VIEW trials; CREATE VIRTUAL TABLE trials USING fts5(id, x, point, value)",
    "DROP TABLE arrays; CREATE TABLE arrays (name TEXT PRIMARY KEY, "
    "data BLOB AS (hex(randomblob(1000000))))",
    "CREATE INDEX i ON events (abs(value))",
    "CREATE TABLE extra (x)",
    "CREATE TEMP TABLE trials2 (x); CREATE TABLE sqlite_stat (x)",
    "DROP TABLE events",
    "DROP TABLE meta; CREATE TABLE meta (key, value)",
    "ALTER TABLE events ADD COLUMN extra",
    "ALTER TABLE meta RENAME COLUMN value TO payload",
    "PRAGMA user_version = 2",
    "PRAGMA user_version = 0",
    "PRAGMA user_version = -7",
    "PRAGMA application_id = 7",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'CREATE TABLE meta (x)' "
    "WHERE name = 'meta'",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET rootpage = 2",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET rootpage = 999 WHERE name = 'events'",
    "PRAGMA writable_schema = ON; DELETE FROM sqlite_master WHERE name = 'arrays'",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET name = 'x' || name",
    "PRAGMA journal_mode = WAL",
    "DROP VIEW trials; CREATE TABLE trials AS WITH RECURSIVE n(number) AS (SELECT 1 UNION ALL "
    "SELECT number + 1 FROM n LIMIT 20000) SELECT number, '{}' AS record FROM n",
]


def wrong_schema(rng: random.Random, db: sqlite3.Connection) -> None:
    try:
        db.executescript(rng.choice(SCHEMAS))
    except sqlite3.Error:  # this SQLite does not know it
        wrong_schema(rng, db)


def many_rows(rng: random.Random, db: sqlite3.Connection) -> None:
    """More of everything than there can be."""
    table = rng.choice(["events", "events", "meta"])
    (row,) = rng.choice(db.execute(f"SELECT rowid FROM {table}").fetchall() or [(0,)])
    names = ", ".join(COLUMNS[table][1:])
    key = "'k' || n" if table == "meta" else "n + 1000"
    db.execute(
        "WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c LIMIT 5000) "
        f"INSERT INTO {table} ({COLUMNS[table][0]}, {names}) "
        f"SELECT {key}, {names} FROM c, (SELECT * FROM {table} WHERE rowid = {row})"
    )


CONTENTS: list[Callable[[random.Random, sqlite3.Connection], None]] = [
    wrong_value,
    swap_cells,
    wrong_document,
    wrong_document,
    wrong_document,
    wrong_array,
    wrong_rows,
    wrong_schema,
    many_rows,
]


def mutate(rng: random.Random, source: Path, target: Path) -> str:
    """Write a damaged or forged copy; returns what was done to it."""
    for rest in target.parent.glob(f"{target.name}-*"):
        rest.unlink()
    if rng.random() < 0.4:
        change = rng.choice(BYTES)
        target.write_bytes(change(rng, bytearray(source.read_bytes())))
        return change.__name__
    shutil.copyfile(source, target)
    forge = rng.choice(CONTENTS)
    with closing(sqlite3.connect(target, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = OFF")
        for _ in range(rng.choice([1, 1, 2])):
            try:
                forge(rng, db)
            except sqlite3.Error:  # what an earlier change has broken
                break
    return forge.__name__


def make_seeds(folder: Path) -> list[Path]:
    """A study of each kind, in the middle of its life."""
    paths = []
    for name in SEEDS:
        rng, opt = random.Random(name), OPTIMIZERS[name]()
        for number in range(14):
            opt.ask()
            for trial in opt.pending[:-2]:
                if rng.random() < 0.1:
                    opt.mark_failed(trial, "crash")
                elif rng.random() < 0.1:
                    opt.mark_abandoned(trial)
                else:
                    opt.tell(trial, float(trial.x.sin().sum()))
            if number == 7:
                opt.attach(opt.domain.bounds[0], 0.5)
        opt.notes["who"] = ["Ada", {"age": 36}]
        paths.append(folder / f"{len(paths)}.db")
        opt.save(paths[-1])
    return paths


class Watch:
    """An audit hook: what must not happen while a file is loaded."""

    FORBIDDEN = (
        "exec",
        "compile",
        "import",
        "os.",
        "subprocess.",
        "socket.",
        "ctypes.",
        "marshal.",
    )
    FORBIDDEN += ("pickle.", "shutil.", "sqlite3.load_extension", "sqlite3.enable_load_extension")
    ALLOWED = ("os.putenv", "os.listdir", "os.scandir")

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.active = False
        self.seen: list[str] = []
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event.startswith(self.FORBIDDEN) and event not in self.ALLOWED:
            self.seen.append(f"{event} {str(arguments)[:80]}")
        if event == "open" and not str(arguments[0]).startswith((self.folder, "/proc", "/sys")):
            self.seen.append(f"{event} {str(arguments)[:80]}")


def resident() -> int:
    """Bytes of memory in use."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmSize")))


def goes_on(opt: Any) -> None:
    """Check that a loaded optimizer asks valid points and recommends numbers, or says why not."""
    try:
        trial = opt.ask()
        assert bool(opt.domain.contains(trial.x.unsqueeze(0)))
        best = opt.recommend()
        assert math.isfinite(best.mean), best
        assert best.lower <= best.mean <= best.upper, best
    except BotorchDelayError:
        pass


class Hangs(BaseException):
    """Loading took much more time than is allowed."""


def stop(*_: object) -> None:
    """Stop a load that hangs."""
    raise Hangs


def seconds_to_load(path: Path) -> float:
    """Processor time to load an undamaged study, the reference for damaged ones.

    Both are measured in one process, so that a slow machine does not fail it.
    """
    begun = time.process_time()
    for _ in range(5):
        bd.load(path)
    return (time.process_time() - begun) / 5


def fuzz(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Load ``count`` mutated files; returns what became of them."""
    warnings.simplefilter("ignore")
    sources, watch = make_seeds(folder), Watch(folder)
    for path in sources:  # so that whatever is imported late is imported now
        goes_on(bd.load(path))
    whole = max(seconds_to_load(path) for path in sources)
    target = folder / "mutated.db"
    signal.signal(signal.SIGPROF, stop)
    limit = resident() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = {"mutations": 0, "valid": 0, "refused": 0, "loaded": 0, "slowest": 0.0}
    problems: list[str] = []
    for number in range(count):
        rng = random.Random(seed * 1_000_003 + number)
        kind = mutate(rng, rng.choice(sources), target)
        before, opt, problem = target.read_bytes(), None, ""
        begun, watch.active = time.process_time(), True
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            opt = bd.load(target)
        except BotorchDelayError as error:
            if not str(error) or len(str(error)) > 1500:
                problem = f"a message of {len(str(error))} letters"
        except BaseException:
            problem = traceback.format_exc(limit=-4)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        spent, watch.active = time.process_time() - begun, False
        if spent > TIMES * whole:
            problem += f" it took {spent:.1f} s, and a whole study {whole:.3f} s"
        if watch.seen:
            problem += f" it did {watch.seen[:3]}"
            watch.seen.clear()
        if target.read_bytes() != before:
            problem += " the file was changed"
        if opt is not None and not problem and rng.random() < 0.5:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                goes_on(opt)
            except BaseException:
                problem = "later: " + traceback.format_exc(limit=-4)
            signal.setitimer(signal.ITIMER_PROF, 0.0)
        if problem:
            problems.append(f"{number} {kind}: {problem}")
            shutil.copyfile(target, folder / f"problem-{number}.db")
        result["mutations"] += 1
        result["valid"] += kind not in {change.__name__ for change in BYTES}
        result["loaded" if opt is not None else "refused"] += 1
        result["slowest"] = max(result["slowest"], spent)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    result["times"] = round(result["slowest"] / whole, 1)
    return {**result, "megabytes": grown // 1024, "problems": problems}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(fuzz(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
