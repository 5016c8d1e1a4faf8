"""The SQLite file that holds a state.

A file is written in transactions: a kill at any moment leaves the last committed state, and
one more answer costs one row. Anyone can read it with SQL. Nothing in it is executed: it is
read as numbers and JSON, its schema must be exactly the one below, and SQLite's own triggers,
views and virtual tables are refused.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from botorch_delay.exceptions import InputTypeError, StorageError
from botorch_delay.history.differences import agree
from botorch_delay.history.states import FORMAT, brief, check_state, cut, is_whole
from botorch_delay.history.trials import Ledger, Trial

APPLICATION_ID = 0x42444C59  # "BDLY"
BUSY_SECONDS = 10.0

_SCHEMA = {
    "meta": "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "arrays": (
        "CREATE TABLE arrays (name TEXT PRIMARY KEY, dtype TEXT NOT NULL, shape TEXT NOT NULL, "
        "data BLOB NOT NULL)"
    ),
    "trials": (
        "CREATE TABLE trials (id INTEGER PRIMARY KEY, x TEXT NOT NULL, point INTEGER, "
        "round INTEGER NOT NULL, slot INTEGER NOT NULL, state TEXT NOT NULL, value REAL, "
        "noise_var REAL, late INTEGER NOT NULL, reason TEXT NOT NULL, asked_at REAL NOT NULL, "
        "answered_at REAL, answered_step INTEGER)"
    ),
    "attached": (
        "CREATE TABLE attached (id INTEGER PRIMARY KEY, x TEXT NOT NULL, point INTEGER, "
        "value REAL NOT NULL)"
    ),
    "rounds": "CREATE TABLE rounds (number INTEGER PRIMARY KEY, record TEXT NOT NULL)",
}
_DTYPES = {"float64": torch.float64, "float32": torch.float32, "int64": torch.int64}
_TRIAL_COLUMNS = (
    "id",
    "x",
    "point",
    "round",
    "slot",
    "state",
    "value",
    "noise_var",
    "late",
    "reason",
    "asked_at",
    "answered_at",
    "answered_step",
)


def dump_notes(notes: Any) -> str:
    """A user's notes as JSON.

    Raises:
        StorageError: if they are no dict of JSON-ready values.
    """
    try:
        if not isinstance(notes, dict):
            raise TypeError(f"they are a {type(notes).__name__}, not a dict")
        return json.dumps(notes, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise StorageError(f"notes must be JSON-ready: {error}.") from error


def save(
    path: str | os.PathLike[str],
    header: Mapping[str, Any],
    ledger: Ledger,
    *,
    overwrite: bool = False,
) -> None:
    """Write a state in one transaction; see ``Optimizer.save``."""
    file = _as_path(path)
    if not file.parent.is_dir():
        raise StorageError(f"Cannot write {file}: the folder {file.parent} does not exist.")
    with _errors(file, "write"), _transaction(file, "rwc") as db:
        _write(db, file, header, ledger, overwrite)


@contextmanager
def editing(path: str | os.PathLike[str]) -> Iterator[FileLock]:
    """Read a file and write it again with no other process in between.

    Yields:
        The state as read, and a way to write its continuation.

    Raises:
        StorageError: as ``read`` and ``save`` do, or if another process holds the file.
    """
    file = _existing(path)
    with ExitStack() as stack:
        with _errors(file, "write"):
            db = stack.enter_context(_transaction(file, "rw"))
            state = _read(db, file)

        def write(header: Mapping[str, Any], ledger: Ledger) -> None:
            with _errors(file, "write"):
                _write(db, file, header, ledger, overwrite=False)
                db.execute("COMMIT")

        yield FileLock(state, write)


@dataclass(frozen=True)
class FileLock:
    """A file that no other process can change.

    Attributes:
        state: what it holds.
        write: takes a header and a ledger that continue that state, and commits them; to be
            called once. Without it the file stays as it is.
    """

    state: dict[str, Any]
    write: Callable[[Mapping[str, Any], Ledger], None]


@contextmanager
def _transaction(file: Path, mode: str) -> Iterator[sqlite3.Connection]:
    with closing(_connect(f"{file.resolve().as_uri()}?mode={mode}")) as db:
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
            if db.in_transaction:
                db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


def _as_path(path: Any) -> Path:
    try:
        return Path(path)
    except TypeError:
        raise InputTypeError(f"path must be a str or a Path, got {type(path).__name__}.") from None


def _write(
    db: sqlite3.Connection, file: Path, header: Mapping[str, Any], ledger: Ledger, overwrite: bool
) -> None:
    since = -1
    if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        for statement in _SCHEMA.values():
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {FORMAT}")
    else:
        _check_schema(db, file)
        meta = _read_meta(db)
        if ledger.continues(meta.get("revision", -1), meta.get("digest", "")):
            since = meta["revision"]
        elif overwrite or _holds_earlier_state(db, header, ledger):
            for table in _SCHEMA:
                db.execute(f"DELETE FROM {table}")
        else:
            raise StorageError(
                f"{file} holds another study, or another continuation of this one; it was left as "
                "it is. Choose another file, or pass overwrite=True to replace it."
            )
    progress = header["progress"]
    first = db.execute("SELECT count(*) FROM rounds").fetchone()[0]
    rounds = progress["rounds"]
    db.executemany(
        "INSERT INTO rounds VALUES (?, ?)",
        [(record["number"], json.dumps(record)) for record in rounds[first:]],
    )
    if since < 0:
        key = "points" if "points" in header else "bounds"
        _write_array(db, key, header[key])
    if since < 0 or _read_meta(db)["arrays_version"] != progress["arrays_version"]:
        for name, array in progress["arrays"].items():
            _write_array(db, name, array)
    _write_meta(db, header, since)
    changed = ledger.trials if since < 0 else ledger.changed_since(since)
    marks = ", ".join("?" * len(_TRIAL_COLUMNS))
    db.executemany(
        f"INSERT OR REPLACE INTO trials VALUES ({marks})",
        [_trial_row(trial) for trial in changed],
    )
    first = db.execute("SELECT count(*) FROM attached").fetchone()[0]
    db.executemany(
        "INSERT INTO attached VALUES (?, ?, ?, ?)",
        [
            (first + number, json.dumps(result.x.tolist()), result.index, result.value)
            for number, result in enumerate(ledger.attached[first:])
        ],
    )


def _holds_earlier_state(db: sqlite3.Connection, header: Mapping[str, Any], ledger: Ledger) -> bool:
    """Whether what the file says is an earlier state of this ledger, row by row.

    It is asked where the chain of digests does not reach back to the file: after a state was
    moved to another optimizer, for instance.
    """
    meta = _read_meta(db)
    same = agree(header["config"], meta.get("config", {}))
    if meta.get("optimizer") != header["optimizer"] or not same:
        return False
    if meta.get("notes") != header["notes"] or (meta.get("finished") and not header["finished"]):
        return False
    own = [_trial_row(trial) for trial in ledger.trials]
    stored = db.execute(f"SELECT {', '.join(_TRIAL_COLUMNS)} FROM trials ORDER BY id").fetchall()
    if len(stored) > len(own):
        return False
    for ours, theirs in zip(own, stored, strict=False):
        now, then = (dict(zip(_TRIAL_COLUMNS, row, strict=True)) for row in (ours, theirs))
        if any(now[key] != then[key] for key in ("id", "x", "round", "slot", "asked_at")):
            return False
        open_then = then["state"] == "running" or (then["state"] == "abandoned" and now["late"])
        if now != then and not open_then:
            return False
    results = db.execute("SELECT x, value FROM attached ORDER BY id").fetchall()
    mine = [(json.dumps(result.x.tolist()), result.value) for result in ledger.attached]
    closed = [json.loads(row[0]) for row in db.execute("SELECT record FROM rounds ORDER BY number")]
    return results == mine[: len(results)] and closed == header["progress"]["rounds"][: len(closed)]


def _write_meta(db: sqlite3.Connection, header: Mapping[str, Any], since: int) -> None:
    keys = ["revision", "digest", "finished", "notes"]
    if since < 0:
        keys += ["optimizer", "config"]
    rows = [(key, json.dumps(header[key])) for key in keys]
    rows += [(key, json.dumps(header["progress"][key])) for key in ("values", "arrays_version")]
    db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)


def _write_array(db: sqlite3.Connection, name: str, array: Tensor) -> None:
    array = array.detach().cpu().contiguous()
    dtype = str(array.dtype).removeprefix("torch.")
    data = array.numpy().astype(array.numpy().dtype.newbyteorder("<"), copy=False).tobytes()
    db.execute(
        "INSERT OR REPLACE INTO arrays VALUES (?, ?, ?, ?)",
        (name, dtype, json.dumps(list(array.shape)), data),
    )


def _trial_row(trial: Trial) -> tuple[Any, ...]:
    record = trial.record()
    record["x"] = json.dumps(record["x"])
    record["late"] = int(record["late"])
    return tuple(record[column] for column in _TRIAL_COLUMNS)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The state in a file.

    Raises:
        StorageError: if the file does not exist, is truncated, is not a study, or is of a
            newer version.
    """
    file = _existing(path)
    with _errors(file, "read"), _reading(file) as db:
        return _read(db, file)


def holds_study(path: str | os.PathLike[str]) -> bool:
    """Whether there is anything in the file: not if it is missing, or was never committed to.

    Raises:
        StorageError: if it cannot be opened.
    """
    file = _as_path(path)
    if not file.exists():
        return False
    file = _existing(path)
    with _errors(file, "read"), _reading(file) as db:
        return db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] > 0


@contextmanager
def _reading(file: Path) -> Iterator[sqlite3.Connection]:
    """A connection that reads, and may roll back what a killed process left half written."""
    with closing(_connect(f"{file.resolve().as_uri()}?mode=rw")) as db:
        db.execute("BEGIN")
        yield db


def _existing(path: Any) -> Path:
    file = _as_path(path)
    if not file.is_file():
        what = "it is no file" if file.exists() else "there is no such file"
        raise StorageError(f"Cannot read {file}: {what}.")
    return file


def _read(db: sqlite3.Connection, file: Path) -> dict[str, Any]:
    _check_schema(db, file)
    problem = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise StorageError(f"{file} is damaged: {brief(problem)}.")
    meta = _read_meta(db)
    arrays = {row[0]: _read_array(*row) for row in db.execute("SELECT * FROM arrays")}
    rounds = []
    for number, text in db.execute("SELECT number, record FROM rounds ORDER BY number"):
        rounds.append(_parsed(text))
        if number != len(rounds):
            raise StorageError(f"{file} is damaged: round {len(rounds)} is missing.")
    trials = []
    for row in db.execute(f"SELECT {', '.join(_TRIAL_COLUMNS)} FROM trials ORDER BY id"):
        record = dict(zip(_TRIAL_COLUMNS, row, strict=True))
        record["x"] = _parsed(record["x"])
        record["late"] = {0: False, 1: True}.get(record["late"], record["late"])
        trials.append(record)
    attached = [
        {"x": _parsed(x), "point": point, "value": value}
        for x, point, value in db.execute("SELECT x, point, value FROM attached ORDER BY id")
    ]
    domain = {key: arrays.pop(key) for key in ("points", "bounds") if key in arrays}
    try:
        return check_state(
            {
                "format": FORMAT,
                **domain,
                "trials": trials,
                "attached": attached,
                "progress": {
                    "rounds": rounds,
                    "arrays": arrays,
                    "values": meta.pop("values"),
                    "arrays_version": meta.pop("arrays_version"),
                },
                **meta,
            }
        )
    except KeyError as error:
        raise StorageError(f"{file} is damaged: it has no {error.args[0]}.") from error


def _read_meta(db: sqlite3.Connection) -> dict[str, Any]:
    return {key: _parsed(value) for key, value in db.execute("SELECT key, value FROM meta")}


def _parsed(text: Any) -> Any:
    """The value of JSON; of text alone, since bytes would choose a codec."""
    if not isinstance(text, str):
        raise TypeError(f"{brief(text)} is no JSON")
    return json.loads(text)


def _read_array(name: str, dtype: str, shape: str, data: bytes) -> Tensor:
    sizes = _parsed(shape)
    if dtype not in _DTYPES or not isinstance(data, bytes) or not isinstance(sizes, list):
        raise StorageError(f"The stored array {name!r} is malformed.")
    if not all(is_whole(size, 0) for size in sizes):
        raise StorageError(f"The stored array {name!r} has shape {brief(sizes)}.")
    kind = _DTYPES[dtype]
    if math.prod(sizes) * kind.itemsize != len(data):
        raise StorageError(
            f"The stored array {name!r} has shape {brief(sizes)} and {len(data)} bytes."
        )
    if not data:
        return torch.empty(sizes, dtype=kind)
    return torch.frombuffer(bytearray(data), dtype=kind).reshape(sizes)


def _connect(uri: str) -> sqlite3.Connection:
    db = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    db.execute("PRAGMA trusted_schema = OFF")
    return db


def _check_schema(db: sqlite3.Connection, file: Path) -> None:
    """Refuse what is no study of this format, with our tables and nothing else in it."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID:
        raise StorageError(f"{file} is not a study of botorch_delay.")
    if version > FORMAT:
        raise StorageError(
            f"{file} has format {version}, newer than the {FORMAT} that this version of "
            "botorch_delay reads; upgrade it with pip install -U botorch-delay."
        )
    if version < FORMAT:
        raise StorageError(
            f"{file} has format {version}, of a version before the first release. Its results are "
            "in its table of trials: hand them to a new optimizer with attach(x, y)."
        )
    found = {
        name: sql
        for name, sql in db.execute("SELECT name, sql FROM sqlite_master")
        if not name.startswith("sqlite_autoindex_")
    }
    if found != _SCHEMA:
        odd = sorted(found.keys() ^ _SCHEMA.keys()) or sorted(_SCHEMA)
        raise StorageError(f"{file} is damaged or foreign: its schema differs in {odd[0]!r}.")


@contextmanager
def _errors(file: Path, verb: str) -> Iterator[None]:
    """Every failure of SQLite or of decoding as one StorageError."""
    try:
        yield
    except StorageError:
        raise
    except sqlite3.OperationalError as error:
        text = str(error)
        if "locked" in text:
            text += f" by another process for more than {BUSY_SECONDS:g} seconds; try again"
        raise StorageError(f"Cannot {verb} {file}: {text}.") from error
    except sqlite3.Error as error:
        raise StorageError(
            f"Cannot {verb} {file}, it is damaged or no study: {cut(error)}."
        ) from error
    except (ValueError, TypeError, RecursionError, OverflowError, OSError) as error:
        raise StorageError(f"Cannot {verb} {file}, it is damaged: {cut(error)}.") from error
