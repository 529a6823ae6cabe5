"""A database without the tables: one error that names them and what mends it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from leasestore import JobRepository, SchemaError
from tests.conformance.scene import NOW, WRITES
from tests.conformance.stores import DOORS, SQLiteStore, bound, can_lock, released
from tests.support import ENGINES, make_file

CALLS: dict[str, Callable[[JobRepository], object]] = {
    **WRITES,
    "get": lambda repository: repository.get("a"),
    "stuck": lambda repository: repository.stuck(NOW),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", ENGINES)
def test_every_verb_says_which_tables_are_missing(tmp_path: Path, name: str, door: str) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as plain:
        plain.execute("CREATE TABLE orders(id)")
    before = path.read_bytes()
    with bound(name, door, path) as bind:
        repository = JobRepository(bind)
        for call in CALLS.values():
            with pytest.raises(SchemaError, match=r"jobs, redrives.*upgrade") as caught:
                call(repository)
            assert caught.value.missing == ("jobs", "redrives")
            released(bind)()
            assert can_lock(path)
    assert path.read_bytes() == before


def test_the_absent_audit_table_shows_at_a_redrive(tmp_path: Path) -> None:
    path = make_file(tmp_path / "queue.db")
    with bound("default", "engine", path) as bind:
        store = SQLiteStore(JobRepository(bind), path, released(bind))
        store.insert(id="a", status="dead", reason="permanent")
        with closing(sqlite3.connect(path)) as plain:
            plain.execute("DROP TABLE redrives")
        with pytest.raises(SchemaError) as caught:
            store.repository.redrive("a", NOW, 1000, "by-hand")
        assert caught.value.missing == ("redrives",)
        assert store.row("a")["status"] == "dead"


def test_an_absent_column_is_named(tmp_path: Path) -> None:
    path = make_file(tmp_path / "queue.db")
    with closing(sqlite3.connect(path)) as plain:
        plain.execute("ALTER TABLE jobs RENAME COLUMN reason TO cause")
    with bound("default", "engine", path) as bind:
        with pytest.raises(SchemaError, match=r"jobs\.reason") as caught:
            JobRepository(bind).claim("me", NOW)
        assert caught.value.missing == ("jobs.reason",)


def test_the_same_repository_works_once_the_tables_are_there(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    with bound("default", "engine", path) as bind:
        repository = JobRepository(bind)
        with pytest.raises(SchemaError):
            repository.enqueue({"id": "a", "qty": 1}, 0, 1000)
        make_file(path)
        assert repository.enqueue({"id": "a", "qty": 1}, 0, 1000) is True
