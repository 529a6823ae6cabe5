"""Which databases the contract is kept on, and what SQLite's errors mean."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.exc import OperationalError

from leasestore import JobRepository, LeaseStoreError, UnsupportedEngine, dialects
from leasestore.dialects import sqlite


def test_sqlite_is_known_by_its_name() -> None:
    assert dialects.named("sqlite") is sqlite


@pytest.mark.parametrize("name", ["mysql", "mariadb", "oracle", "mssql", "", "SQLite"])
def test_another_database_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedEngine, match=rf"sqlite.*this engine is for {name}\.") as caught:
        dialects.named(name)
    assert isinstance(caught.value, LeaseStoreError)


@pytest.mark.parametrize("version", [(3, 34, 1), (3, 7, 17), (3, 34, 99)])
def test_a_sqlite_that_is_too_old_is_refused(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int]
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    monkeypatch.setattr(sqlite3, "sqlite_version", ".".join(map(str, version)))
    shown = r"\.".join(map(str, version))
    with pytest.raises(UnsupportedEngine, match=rf"SQLite 3\.35\.0 or newer.*has {shown}$"):
        dialects.named("sqlite")


@pytest.mark.parametrize("version", [(3, 35, 0), (3, 35, 5), (3, 51, 0), (4, 0, 0)])
def test_a_sqlite_that_is_new_enough_is_taken(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int]
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    assert dialects.named("sqlite") is sqlite


def driver_error(code: int | None) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("made up")
    if code is not None:
        error.sqlite_errorcode = code
    return error


BUSY = [
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_BUSY_SNAPSHOT,
    sqlite3.SQLITE_BUSY_RECOVERY,
    sqlite3.SQLITE_LOCKED_SHAREDCACHE,
]
OTHER = [
    *(sqlite3.SQLITE_ERROR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_IOERR),
    *(sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_READONLY, None),
]


@pytest.mark.parametrize("code", BUSY)
def test_busy_is_told_by_the_code_in_all_its_variants(code: int) -> None:
    assert sqlite.is_busy(driver_error(code))
    assert sqlite.is_busy(OperationalError("statement", None, driver_error(code)))


@pytest.mark.parametrize("code", OTHER)
def test_nothing_else_is_busy(code: int | None) -> None:
    assert not sqlite.is_busy(driver_error(code))
    assert not sqlite.is_busy(OperationalError("statement", None, driver_error(code)))


def test_a_message_alone_says_nothing() -> None:
    assert not sqlite.is_busy(sqlite3.OperationalError("database is locked"))
    assert not sqlite.is_busy(RuntimeError("database is locked"))


def test_no_database_is_told_by_the_code() -> None:
    assert sqlite.is_not_a_database(driver_error(sqlite3.SQLITE_NOTADB))
    for code in (*BUSY, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, None):
        assert not sqlite.is_not_a_database(driver_error(code))


def test_a_missing_table_is_a_general_error() -> None:
    assert sqlite.may_lack_tables(driver_error(sqlite3.SQLITE_ERROR))
    for code in (*BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CONSTRAINT, None):
        assert not sqlite.may_lack_tables(driver_error(code))


def test_an_engine_for_another_database_is_refused_before_it_connects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connected: list[object] = []
    engine = create_engine("sqlite://")
    event.listen(engine, "connect", lambda driver, _: connected.append(driver))
    monkeypatch.setattr(engine.dialect, "name", "mysql")
    with pytest.raises(UnsupportedEngine, match="mysql"):
        JobRepository(engine)
    assert connected == []
