"""Files that earlier versions wrote."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import botorch_delay as bd
from botorch_delay.exceptions import StorageError
from botorch_delay.states import FORMAT

DATA = Path(__file__).parent / "data"


@pytest.fixture
def old(tmp_path):
    """A file of format 1, as the version of that format wrote it."""
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript((DATA / "format1.sql").read_text())
    return path


def rows(path, query):
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


def test_a_file_of_format_1_loads_and_goes_on(old):
    opt = bd.load(old)
    assert [t.state.value for t in opt.trials] == [
        *("completed", "abandoned", "completed", "running"),
        *("failed", "running", "completed", "running"),
    ]
    assert all(t.answered_step is None and t.delay is None for t in opt.trials)
    opt.tell(3, 0.2)
    assert (opt.trials[3].answered_step, opt.trials[3].delay) == (8, 4)
    opt.ask()
    opt.save(old)
    assert rows(old, "PRAGMA user_version") == [(FORMAT,)]
    again = bd.load(old)
    assert [t.record() for t in again.trials] == [t.record() for t in opt.trials]
    assert again.ask().record() | {"asked_at": 0} == opt.ask().record() | {"asked_at": 0}


def test_reading_a_file_of_format_1_leaves_it_as_it_is(old):
    before = old.read_bytes()
    bd.load(old)
    assert old.read_bytes() == before
    with bd.editing(old) as opt:
        opt.ask()
    assert rows(old, "PRAGMA user_version") == [(FORMAT,)]


def test_a_state_that_was_moved_continues_a_file_of_format_1(old):
    opt = bd.load(old)
    other = bd.load(old)
    other.tell(3, 0.2)
    opt.load_state_dict(other.state_dict())
    opt.save(old)
    assert bd.load(old).trials[3].value == 0.2


def test_a_state_of_format_1_loads(old):
    opt = bd.load(old)
    state = opt.state_dict() | {"format": 1}
    for record in state["trials"]:
        del record["answered_step"]
    other = bd.load(old)
    other.tell(3, 0.2)
    other.load_state_dict(state)
    assert [t.record() for t in other.trials] == [t.record() for t in opt.trials]
    for broken in (0, 1.5, "8", True):
        bad = opt.state_dict()
        bad["trials"][0]["answered_step"] = broken
        with pytest.raises(StorageError, match="answered_step"):
            other.load_state_dict(bad)


def test_a_file_brought_up_to_date_has_the_schema_of_a_new_one(old, tmp_path):
    opt = bd.load(old)
    opt.ask()
    opt.save(old)
    new = tmp_path / "new.db"
    opt.save(new)
    query = "SELECT name, sql FROM sqlite_master ORDER BY name"
    assert rows(old, query) == rows(new, query)


def test_a_column_of_the_wrong_format_is_refused(old):
    with closing(sqlite3.connect(old)) as db:
        db.execute("ALTER TABLE trials ADD COLUMN answered_step INTEGER")
        db.commit()
    with pytest.raises(StorageError, match="schema"):
        bd.load(old)
