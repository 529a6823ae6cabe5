"""SQLite: the immediate transaction, under every driver mode, and what its errors mean."""

from __future__ import annotations

import random
import sqlite3
from itertools import chain
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.dialects.sqlite import insert as insert
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.exc import DBAPIError

from leasestore.backoff import lock_steps
from leasestore.errors import UnsupportedEngine

_OLDEST = (3, 35, 0)  # RETURNING


def check_version() -> None:
    if sqlite3.sqlite_version_info < _OLDEST:
        raise UnsupportedEngine(
            f"leasestore needs SQLite {'.'.join(map(str, _OLDEST))} or newer (RETURNING); this "
            f"Python has {sqlite3.sqlite_version}"
        )


def take_write_lock(connection: Connection) -> None:
    """BEGIN IMMEDIATE, whatever the driver or the application began before."""
    if _autocommit(connection) is True:
        raise UnsupportedEngine(
            "this engine has connect_args={'autocommit': True}, where the driver's commit() and "
            "rollback() do nothing: leave autocommit out, or use isolation_level='AUTOCOMMIT'"
        )
    cursor = connection.connection.cursor()
    try:
        if _driver(connection).in_transaction:
            # Begun by the application's own hook, or by a driver that always has one open:
            # nothing was read in it yet, and it may be a deferred one.
            cursor.execute("ROLLBACK")
        _begin_immediate(cursor)
    except sqlite3.Error as error:
        raise DBAPIError.instance(
            "BEGIN IMMEDIATE", None, error, sqlite3.Error, dialect=connection.dialect
        ) from error
    finally:
        cursor.close()
    if not _driver(connection).in_transaction:
        raise UnsupportedEngine(
            "BEGIN IMMEDIATE left the driver outside a transaction: something between SQLAlchemy "
            "and SQLite ends transactions by itself"
        )


def _begin_immediate(cursor: DBAPICursor) -> None:
    """Ask for the lock in short uneven steps, as long as the engine's own timeout allows.

    SQLite's own wait pauses longer and longer and starves whoever came first.
    """
    timeout_ms: int = cursor.execute("PRAGMA busy_timeout").fetchone()[0]
    busy: sqlite3.OperationalError | None = None
    try:
        for step_ms in chain((0,), lock_steps(timeout_ms, random.randint)):
            cursor.execute(f"PRAGMA busy_timeout = {step_ms}")
            try:
                cursor.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                busy = error
            else:
                return
    finally:
        cursor.execute(f"PRAGMA busy_timeout = {timeout_ms}")
    assert busy is not None
    raise busy


def in_transaction(connection: Connection) -> bool:
    # With autocommit=False the driver opens the next one itself, without a lock.
    return _driver(connection).in_transaction and _autocommit(connection) is not False


def is_busy(error: BaseException) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_not_a_database(error: BaseException) -> bool:
    return _code(error) == sqlite3.SQLITE_NOTADB


def may_lack_tables(error: BaseException) -> bool:
    return _code(error) == sqlite3.SQLITE_ERROR


def _code(error: BaseException) -> int:
    """SQLite's primary result code."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    # Errors that the driver makes itself carry no code.
    return getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


def _autocommit(connection: Connection) -> bool | int | None:
    """The attribute that Python 3.12 brought: True, False, or -1 for the modes before it."""
    return getattr(_driver(connection), "autocommit", None)
