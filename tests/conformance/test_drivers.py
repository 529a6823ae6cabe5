"""Drivers that do not do what they are told: nothing is half done, and the first error is told."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool

from leasestore import (
    JobRepository,
    SchemaError,
    StoreBusy,
    UnsupportedEngine,
    open_queue,
    operations,
    queue_file,
)
from leasestore.dialects import sqlite
from tests.support import make_file, rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_file(tmp_path / "queue.db")


@contextmanager
def opened(path: Path, **settings: Any) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{path}", **settings)
    try:
        yield engine
    finally:
        engine.dispose()


def enqueue(bind: Any) -> bool:
    return JobRepository(bind).enqueue({"id": "a", "qty": 1}, 0, 1000)


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def can_write(path: Path) -> bool:
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as plain:
        plain.execute("BEGIN IMMEDIATE")
        return True


# The driver modes that came with Python 3.12, as every Python can tell them


def test_a_driver_that_commits_by_itself_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_autocommit", lambda _: True)
    with opened(path) as engine:
        with pytest.raises(UnsupportedEngine, match="'autocommit': True"):
            enqueue(engine)
        with Session(engine) as session, pytest.raises(UnsupportedEngine, match="leave autocommit"):
            JobRepository(engine).within(session).enqueue({"id": "a", "qty": 1}, 0, 1000)
    assert rows(path) == []


def test_busy_leaves_a_driver_that_always_has_a_transaction_with_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_autocommit", lambda _: False)
    with opened(path, connect_args={"timeout": 0}) as engine, engine.connect() as connection:
        with closing(sqlite3.connect(path, isolation_level=None)) as plain:
            plain.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreBusy):
                enqueue(connection)
        assert not connection.invalidated
        assert enqueue(connection) is True


def test_a_begin_that_begins_nothing_is_noticed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_begin_immediate", lambda _: None)
    with opened(path) as engine, pytest.raises(UnsupportedEngine, match="outside a transaction"):
        enqueue(engine)
    assert rows(path) == []


# Commit and rollback that fail


class NoCommit(sqlite3.Connection):
    def commit(self) -> None:
        pass


def test_a_commit_that_does_nothing_is_noticed_and_undone(path: Path) -> None:
    with opened(path, connect_args={"factory": NoCommit}) as engine:
        with pytest.raises(UnsupportedEngine, match="left the transaction open"):
            enqueue(engine)
        assert isinstance(engine.pool, QueuePool)
        assert engine.pool.checkedout() == 0
        assert can_write(path)
    assert rows(path) == []


@pytest.mark.parametrize("error", [sqlite3.OperationalError("made up"), KeyboardInterrupt()])
def test_a_rollback_that_fails_costs_the_connection_and_not_the_first_error(
    error: BaseException, path: Path
) -> None:
    class NoRollback(sqlite3.Connection):
        def rollback(self) -> None:
            if self.in_transaction:
                raise error

    first = KeyError("the first")
    with opened(path, connect_args={"factory": NoRollback}) as engine:
        enqueue(engine)
        with engine.connect() as connection:
            with pytest.raises((KeyError, KeyboardInterrupt)) as caught:
                JobRepository(connection).claim("me", 0, fault=raising(first))
            assert caught.value is first or isinstance(error, KeyboardInterrupt)
            assert connection.invalidated
            assert can_write(path)
            assert rows(path)[0]["status"] == "pending"
            assert JobRepository(connection).claim("me", 0) is not None


def test_a_connection_that_is_lost_meanwhile_is_left_alone(path: Path) -> None:
    with opened(path) as engine, engine.connect() as connection:
        jobs = JobRepository(connection)
        jobs.enqueue({"id": "a", "qty": 1}, 0, 1000)

        def lose(point: str) -> None:
            connection.invalidate()
            raise KeyError(point)

        with pytest.raises(KeyError, match="after-claim"):
            jobs.claim("me", 0, fault=lose)
        assert jobs.claim("me", 0) is not None


# Files that are something else, behind an application's engine


def test_no_database_is_named_by_every_verb(tmp_path: Path) -> None:
    file = tmp_path / "noise.db"
    file.write_bytes(noise := os.urandom(8192))
    with opened(file) as engine:
        for call in (enqueue, lambda engine: JobRepository(engine).get("a")):
            with pytest.raises(SchemaError, match=r"noise\.db is not a database"):
                call(engine)
    assert file.read_bytes() == noise


@pytest.mark.parametrize("reachable", [True, False])
def test_an_error_of_the_same_kind_as_a_missing_table_goes_on_as_it_is(
    reachable: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(path)) as plain:
        plain.execute("CREATE TRIGGER odd BEFORE UPDATE ON jobs BEGIN SELECT no_such(1); END")
    if not reachable:
        gone = OperationalError("gone", None, sqlite3.OperationalError("gone"))
        monkeypatch.setattr(operations, "missing", raising(gone))
    with opened(path) as engine:
        enqueue(engine)
        with pytest.raises(OperationalError, match="no such function"):
            JobRepository(engine).claim("me", 0)


def test_a_database_that_may_only_be_read_is_sqlites_own_error(path: Path) -> None:
    engine = create_engine(f"sqlite:///file:{path}?mode=ro&uri=true")
    with pytest.raises(OperationalError, match="readonly"):
        enqueue(engine)
    assert JobRepository(engine).get("a") is None
    engine.dispose()


# The journal mode of a queue file


def test_a_journal_mode_that_cannot_change_now_says_which_one_can(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    open_queue(path).close()
    with closing(sqlite3.connect(path)) as plain:
        plain.execute("PRAGMA journal_mode = WAL")
        plain.execute("SELECT * FROM jobs").fetchall()
        with pytest.raises(StoreBusy, match="open it with journal_mode='WAL'"):
            open_queue(path, timeout_ms=0)
    open_queue(path).close()
    with closing(sqlite3.connect(path)) as plain:
        assert plain.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_a_file_system_without_wal_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What SQLite does where WAL cannot be had: it stays as it is, and says so.
    monkeypatch.setattr(queue_file, "text", lambda _: text("PRAGMA journal_mode"))
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 51, 3))
    with pytest.raises(UnsupportedEngine, match="in journal mode delete"):
        open_queue(tmp_path / "queue.db", journal_mode="WAL")


def test_another_error_at_the_journal_mode_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_file, "text", lambda sql: text(sql.replace("= WAL", "no sql")))
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 51, 3))
    with pytest.raises(OperationalError, match="syntax error"):
        open_queue(tmp_path / "queue.db", journal_mode="WAL")


# A process that was forked


def test_the_parents_connections_are_left_as_they_are(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path) as engine:
        enqueue(engine)
        parents = engine.pool
        connection = parents.connect()
        driver = connection.driver_connection
        connection.close()
        monkeypatch.setattr(os, "getpid", lambda: -1)
        assert JobRepository(engine).get("a") is not None
        assert engine.pool is not parents
        assert isinstance(driver, sqlite3.Connection)
        assert driver.execute("SELECT 1").fetchone() == (1,), "a connection was closed"
        parents.dispose()
