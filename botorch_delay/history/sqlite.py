"""The SQLite file that holds a state.

A file is a table of events that only grows, written in transactions: one more answer is one row,
and a kill at any moment leaves the last committed state. Anyone can read it with SQL; the view
``trials`` sums up the events. A file holds an earlier state of a run if its last event is also an
event of that run, with the same number and time.

Nothing in a file is executed: it is read as numbers and JSON from its tables, never from its view,
and its schema must be exactly the one below, apart from SQLite's own statistics tables.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.exceptions import InputTypeError, StorageError
from botorch_delay.history.events import excerpt, truncated
from botorch_delay.history.states import FORMAT, check_format, check_state, difference
from botorch_delay.history.trials import Ledger

APPLICATION_ID = 0x42444C59  # "BDLY"
BUSY_SECONDS = 10.0  # for which one attempt to read or write waits for a locked file
POLL_SECONDS = 0.005  # between two looks whether another process has ended its transaction
LONGEST_LOCK = 120.0  # seconds for which a run keeps trying to save to a locked file

_SCHEMA = {
    "meta": "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "arrays": (
        "CREATE TABLE arrays (name TEXT PRIMARY KEY, dtype TEXT NOT NULL, shape TEXT NOT NULL, "
        "data BLOB NOT NULL)"
    ),
    "events": (
        "CREATE TABLE events (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, time REAL NOT NULL, "
        "trial INTEGER, value REAL, data TEXT NOT NULL)"
    ),
    "trials": """CREATE VIEW trials AS SELECT
        asked.trial AS id,
        json_extract(asked.data, '$.x') AS x,
        json_extract(asked.data, '$.point') AS point,
        json_extract(asked.data, '$.round') AS round,
        json_extract(asked.data, '$.slot') AS slot,
        CASE WHEN fixed.number IS NULL THEN coalesce(ended.kind, 'running')
        WHEN fixed.value IS NULL THEN 'failed' ELSE 'completed' END AS state,
        CASE WHEN fixed.number IS NULL THEN ended.value ELSE fixed.value END AS value,
        json_extract(ended.data, '$.noise_var') AS noise_var,
        CASE WHEN fixed.number IS NULL THEN json_extract(ended.data, '$.reason')
        WHEN fixed.value IS NULL THEN json_extract(fixed.data, '$.reason') END AS reason,
        asked.time AS asked_at,
        ended.time AS told_at,
        ended.value AS first_value,
        fixed.time AS corrected_at
        FROM events AS asked LEFT JOIN
        (SELECT max(number), kind, time, trial, value, data FROM events
        WHERE kind IN ('completed', 'failed', 'abandoned') GROUP BY trial) AS ended
        ON ended.trial = asked.trial LEFT JOIN
        (SELECT max(number) AS number, time, trial, value, data FROM events
        WHERE kind = 'corrected' GROUP BY trial) AS fixed
        ON fixed.trial = asked.trial WHERE asked.kind = 'asked'""",
}
# Tables that ANALYZE adds, which graphical tools run: only SQLite reads them, to plan queries.
_STATISTICS = {
    ("sqlite_stat1", "CREATE TABLE sqlite_stat1(tbl,idx,stat)"),
    ("sqlite_stat4", "CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)"),
}
# Files being edited, with the editing threads: a thread must not wait for its own edit.
_edited: set[tuple[int, Path]] = set()
_in_use: dict[Path, object] = {}  # files in use by runs of this process, with their optimizers
_DTYPES = {"float64": torch.float64, "float32": torch.float32}
_COLUMNS = ("kind", "time", "trial", "value", "data")


def is_locked(error: StorageError) -> bool:
    """Whether the cause is another program's lock on the file, which may be temporary."""
    return getattr(error.__cause__, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY


@contextmanager
def in_use(path: str | os.PathLike[str], user: object) -> Iterator[Path]:
    """Reserve a file for one optimizer until the block or the process ends.

    It is marked by a lock file beside it. Waits for an edit that is under way. Yields the absolute
    path of the file.

    Raises:
        StorageError: if another run uses it, or if it is edited for too long.
    """
    file = _as_path(path)
    if _edit_of(file) in _edited:
        raise StorageError(
            f"{file} is being edited by this program; start the run after the editing block."
        )
    if file.is_dir() or not file.parent.is_dir():  # reported when it is read or written
        yield file.absolute()
        return
    file = file.resolve()
    with ExitStack() as stack:
        # SQLite's locks end with their process, even if it is killed, and are not inherited by
        # forked processes: a pool's workers may outlive it.
        try:
            # The timeout is for another program that only checks whether the file is in use.
            connection = sqlite3.connect(f"{file}.lock", timeout=1.0, isolation_level=None)
            stack.enter_context(closing(connection)).execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise StorageError(f"Cannot lock {file} with {file}.lock: {error}.") from error
            spawned = ""
            if multiprocessing.parent_process() is not None:
                spawned = (
                    " If this is a worker process that has imported your program anew, put what "
                    'calls run under if __name__ == "__main__".'
                )
            raise StorageError(
                f"Another run uses {file} ({error}). Wait for its end, or give this one "
                "a file of its own; for many processes on one study see the guides to Optuna and "
                f"Ray.{spawned}"
            ) from error
        if file.is_file():  # wait for an edit that began before
            with _transaction(file, "write"):
                pass
        _in_use[file] = user
        try:
            yield file
        finally:
            del _in_use[file]


@contextmanager
def _writing(
    file: Path, *, user: object = None, create: bool = False
) -> Iterator[sqlite3.Connection]:
    """Write to a file in one transaction; StorageError if a run uses it, but for ``user``'s own.

    A run that starts meanwhile waits for the end of the transaction.
    """
    is_users = user is not None and _in_use.get(file.resolve()) is user
    if not (is_users or file.exists()):
        _check_not_in_use(file)  # before it is created
    with _transaction(file, "write", create=create) as db:
        if not is_users:
            _check_not_in_use(file)
        yield db


def _check_not_in_use(file: Path) -> None:
    lock = Path(f"{file.resolve()}.lock")
    if not lock.exists():
        return
    try:
        with closing(sqlite3.connect(lock, timeout=0.0, isolation_level=None)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
            raise StorageError(
                f"A run uses {file}; the file was left as it is. Wait for the end of the run, "
                "stop it (Ctrl-C), or change its optimizer in on_result."
            ) from error
    except sqlite3.DatabaseError as error:
        raise StorageError(
            f"{lock}, which says whether a run uses {file}, is not a file of this library "
            f"({error}); move it away if no other program needs it."
        ) from error


def save(
    path: str | os.PathLike[str],
    header: Mapping[str, Any],
    ledger: Ledger,
    *,
    overwrite: bool = False,
    user: object = None,
) -> None:
    """Write a header and the events of a ledger in one transaction; see ``Optimizer.save``.

    ``user`` is the optimizer that saves, as it may while a run of its own uses the file.
    """
    file = _as_path(path)
    validation.flag(overwrite, "overwrite")
    if _edit_of(file) in _edited:
        raise StorageError(
            f"{file} is being edited by this program, and is saved when the editing block ends; "
            "leave out this save."
        )
    if not file.parent.is_dir():
        raise StorageError(f"Cannot write {file}: the folder {file.parent} does not exist.")
    with _writing(file, user=user, create=True) as db, _errors(file, "write"):
        _write(db, file, header, ledger, overwrite)


@contextmanager
def editing(
    path: str | os.PathLike[str],
) -> Iterator[tuple[dict[str, Any], Callable[[Mapping[str, Any], Ledger], None]]]:
    """Read a file and write it again with no other process in between.

    Yields the state, and a function that writes header and ledger of its continuation, to be
    committed at the end of the block unless that raises.
    """
    file = _existing(path)
    if (edit := _edit_of(file)) in _edited:
        raise StorageError(f"{file} is already being edited by this program; use that block.")
    with _writing(file) as db:
        with _errors(file, "read"):
            state = _read(db, file)

        def write(header: Mapping[str, Any], ledger: Ledger) -> None:
            with _errors(file, "write"):
                _write(db, file, header, ledger, overwrite=False)

        _edited.add(edit)
        try:
            yield state, write
        finally:
            _edited.discard(edit)


def _edit_of(file: Path) -> tuple[int, Path]:
    return threading.get_ident(), file.resolve()


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The state in a file; StorageError if there is none, or none that this version can read."""
    file = _existing(path)
    with _transaction(file, "read") as db, _errors(file, "read"):
        return _read(db, file)


def holds_study(path: str | os.PathLike[str]) -> bool:
    """Whether anything is in the file; false if it is missing or nothing was ever committed."""
    file = _as_path(path)
    if not file.exists():
        return False
    with _transaction(_existing(path), "read") as db, _errors(file, "read"):
        return not _is_blank(db)


def _write(
    db: sqlite3.Connection, file: Path, header: Mapping[str, Any], ledger: Ledger, overwrite: bool
) -> None:
    count: int | None = None  # events in the file, if this run continues them
    if _is_blank(db):
        for statement in _SCHEMA.values():
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {FORMAT}")
    else:
        with _errors(file, "read"):
            _check_schema(db, file)
            count = _known_events(db, header, ledger)
        if count is None:
            if not overwrite:
                if _is_of(db, header):
                    raise StorageError(
                        f"{file} holds another continuation of this study, or another run with its "
                        "settings; it was left as it is. If the study has gone on elsewhere, load "
                        "it again and tell it what is new (botorch_delay.editing does both at "
                        "once); overwrite=True would lose what the file holds."
                    )
                raise StorageError(
                    f"{file} holds another study; it was left as it is. Choose another file, or "
                    "pass overwrite=True to replace it."
                )
            for table in ("meta", "arrays", "events"):
                db.execute(f"DELETE FROM {table}")
    if count is None:
        _write_array(db, header)
        for part in ("optimizer", "config"):
            _write_meta(db, part, header[part])
    rows = [event.row() for event in ledger.events(count or 0)]
    numbered = ((number, *row) for number, row in enumerate(rows, (count or 0) + 1))
    db.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", numbered)
    if count is None or any(row[0] == "noted" for row in rows):
        _write_meta(db, "notes", header["notes"])


def _known_events(db: sqlite3.Connection, header: Mapping[str, Any], ledger: Ledger) -> int | None:
    """How many events of this run a file holds; None if it holds another run."""
    query = f"SELECT number, {', '.join(_COLUMNS)} FROM events ORDER BY number DESC LIMIT 1"
    count, *last = db.execute(query).fetchone() or (0,)
    if count > ledger.event_count or not _is_of(db, header, arrays=not count):
        return None
    if not count:
        return 0
    return count if tuple(last) == next(ledger.events(count - 1)).row() else None


def _is_of(db: sqlite3.Connection, header: Mapping[str, Any], *, arrays: bool = True) -> bool:
    """Whether a file holds a study made with the same arguments."""
    stored, made_with = _read_meta(db), ("optimizer", "config")
    own, other = ({name: known.get(name) for name in made_with} for known in (header, stored))
    if difference(own, other, 1e-5) is not None:
        return False
    there = _read_arrays(db) if arrays else {}
    return difference({name: header.get(name) for name in there}, there) is None


def _read(db: sqlite3.Connection, file: Path) -> dict[str, Any]:
    _check_schema(db, file)
    problem = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise StorageError(f"{file} is damaged: {excerpt(problem)}.")
    records: list[dict[str, Any]] = []
    query = f"SELECT number, {', '.join(_COLUMNS)} FROM events ORDER BY number"
    for number, *fields in db.execute(query):
        if number != len(records) + 1:
            raise StorageError(f"{file} is damaged: event {len(records) + 1} is missing.")
        record = dict(zip(_COLUMNS, fields, strict=True))
        record["data"] = _parsed(record["data"])
        records.append(record)
    state = {"format": FORMAT, **_read_arrays(db), **_read_meta(db), "events": records}
    check_state(state)
    return state


def _read_arrays(db: sqlite3.Connection) -> dict[str, Tensor]:
    found = {}
    for name, dtype, shape, data in db.execute("SELECT * FROM arrays"):
        flat = torch.frombuffer(bytearray(memoryview(data)), dtype=_DTYPES[dtype])
        found[name] = flat.reshape(_parsed(shape))
    return found


def _read_meta(db: sqlite3.Connection) -> dict[str, Any]:
    return {key: _parsed(value) for key, value in db.execute("SELECT key, value FROM meta")}


def _write_meta(db: sqlite3.Connection, key: str, value: Any) -> None:
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))


def _parsed(text: Any) -> Any:
    """The value of JSON text; bytes are refused, since ``json`` would guess their encoding."""
    if not isinstance(text, str):
        raise TypeError(f"{excerpt(text)} is not JSON")
    return json.loads(text)


def _write_array(db: sqlite3.Connection, header: Mapping[str, Any]) -> None:
    name = "points" if "points" in header else "bounds"
    array = header[name].detach().cpu().contiguous()
    dtype, shape = str(array.dtype).removeprefix("torch."), json.dumps(list(array.shape))
    row = name, dtype, shape, array.numpy().tobytes()
    db.execute("INSERT INTO arrays VALUES (?, ?, ?, ?)", row)


def _is_blank(db: sqlite3.Connection) -> bool:
    return not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def _check_schema(db: sqlite3.Connection, file: Path) -> None:
    """Refuse all but a study in this format: our tables and view, and no more."""
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StorageError(f"{file} is not a study of botorch_delay.")
    check_format(db.execute("PRAGMA user_version").fetchone()[0], str(file))
    found = set(db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    if odd := (found - _STATISTICS) ^ set(_SCHEMA.items()):
        name = min(str(name) for name, _ in odd)
        raise StorageError(
            f"{file} is damaged or foreign: its schema differs in {name!r}; drop whatever you "
            "have added to it."
        )


def _as_path(path: Any) -> Path:
    try:
        file = Path(path)
        file.resolve().exists()
    except TypeError:
        raise InputTypeError(f"path must be a str or a Path, got {type(path).__name__}.") from None
    except PermissionError as error:
        raise StorageError(f"Cannot use {path}: {error.strerror}.") from error
    except (OSError, ValueError, RuntimeError) as error:  # too long, a circle of links, a null byte
        raise StorageError(f"{path!r} cannot name a file: {truncated(error)}.") from error
    return file


def _existing(path: Any) -> Path:
    file = _as_path(path)
    if not file.is_file():
        what = "it is not a file" if file.exists() else "there is no such file"
        raise StorageError(f"Cannot read {file}: {what}.")
    return file


def _connect(uri: str) -> sqlite3.Connection:
    db = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    db.execute("PRAGMA trusted_schema = OFF")
    return db


@contextmanager
def _transaction(file: Path, verb: str, *, create: bool = False) -> Iterator[sqlite3.Connection]:
    """A transaction that reads or writes; if the block raises, SQLite rolls it back.

    Reading needs write access, too, to roll back what a killed process left half written.
    """
    with _errors(file, verb):
        db = _connect(f"{file.resolve().as_uri()}?mode={'rwc' if create else 'rw'}")
    with closing(db):
        with _errors(file, verb):
            if verb == "write":
                _begin_to_write(db)
            else:
                db.execute("BEGIN")
        yield db
        with _errors(file, verb):
            db.execute("COMMIT")


def _begin_to_write(db: sqlite3.Connection) -> None:
    """Begin once no other process writes, or raise as SQLite does after ``BUSY_SECONDS``.

    SQLite itself looks ten times a second, too seldom where several processes take turns.
    """
    db.execute("PRAGMA busy_timeout = 0")
    patience = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            db.execute("BEGIN IMMEDIATE")
            break
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() > patience:
                raise
        time.sleep(POLL_SECONDS)
    db.execute(f"PRAGMA busy_timeout = {round(1000 * BUSY_SECONDS)}")


@contextmanager
def _errors(file: Path, verb: str) -> Iterator[None]:
    """Raise every failure of SQLite, or of encoding or decoding, as a StorageError."""
    try:
        yield
    except StorageError:
        raise
    except sqlite3.OperationalError as error:
        text = str(error)
        if "locked" in text:
            text += f" by another process for more than {BUSY_SECONDS:g} seconds; try again"
        elif "unable to open" in text:
            text += f"; check that {file.parent} is a folder where you may write"
        raise StorageError(f"Cannot {verb} {file}: {text}.") from error
    except sqlite3.Error as error:
        raise StorageError(
            f"Cannot {verb} {file}, it is damaged or not a study: {truncated(error)}."
        ) from error
    except (ValueError, TypeError, LookupError, RuntimeError, ArithmeticError, OSError) as error:
        cause = "its new content cannot be stored" if verb == "write" else "it is damaged"
        raise StorageError(f"Cannot {verb} {file}, {cause}: {truncated(error)}.") from error
