"""A queue in a SQLite file of its own: `open_queue`, and `run_file` for one job of it."""

from __future__ import annotations

import os
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from sqlalchemy import URL, Engine, create_engine, event, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from leasestore import dialects, operations, validation
from leasestore.clock import Clock
from leasestore.delivery import run_once
from leasestore.errors import SchemaError, StoreBusy, UnsupportedEngine
from leasestore.repository import JobRepository
from leasestore.tickets import Delivered, Event
from leasestore.transactions import connected
from leasestore.validation import Limits

JournalMode = Literal["DELETE", "WAL"]
Synchronous = Literal["FULL", "EXTRA"]


class QueueFile(JobRepository):
    """A repository that owns its engine: close it, or use it in a `with` statement."""

    _bind: Engine

    def close(self) -> None:
        """Close the engine's connections. May be called more than once."""
        self._bind.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _missing(self) -> list[str]:
        """Which tables and columns are absent, asked without the write lock."""
        return self._read(lambda connection: operations.missing(connection, self._queue.tables))


def open_queue(
    path: str | os.PathLike[str],
    *,
    journal_mode: JournalMode = "DELETE",
    synchronous: Synchronous = "FULL",
    timeout_ms: int = 1000,
    limits: Limits = Limits(),
) -> QueueFile:
    """Open, and where missing create, a queue in a SQLite file (CONTRACT.md, "open_queue").

    The tables that are absent are made through the migrations in one transaction; rows that are
    there stay. Where both tables exist, no write lock is taken.

    Args:
        path: of a file; never an in-memory database and no URI. Its directory must exist.
        journal_mode: `DELETE`, or `WAL`: faster and readers never wait, but three files, one
            host, and a warning where this SQLite has the WAL-reset fault.
        synchronous: `FULL`, or `EXTRA`: in DELETE mode, FULL can lose a transaction that was
            acknowledged just before a loss of power; EXTRA cannot.
        timeout_ms: 0 to 600000, how long a call waits for the write lock.
        limits: wider bounds than the contract's, see `Limits`.

    Raises:
        FileNotFoundError: the directory does not exist.
        IsADirectoryError: the path is one.
        SchemaError: the file is no database, or holds other tables of these names.
        StoreBusy: the file was locked for longer than the timeout.
    """
    file = validation.queue_path(path)
    if file.is_dir():
        raise IsADirectoryError(f"path: expected the path of a file, got the directory {file}")
    if not file.parent.is_dir():
        raise FileNotFoundError(
            f"path: the directory {file.parent} does not exist; create it first"
        )
    if file.exists() and not file.is_file():
        raise ValueError(f"path: expected a regular file, got {file}, which is none")
    validation.choice("journal_mode", journal_mode, ("DELETE", "WAL"))
    validation.choice("synchronous", synchronous, ("FULL", "EXTRA"))
    validation.integer("timeout_ms", timeout_ms, 0, 600_000)
    if journal_mode == "WAL" and _has_wal_reset_fault(sqlite3.sqlite_version_info):
        warnings.warn(
            f"SQLite {sqlite3.sqlite_version} can corrupt a WAL database when a checkpoint resets "
            "the log; use 3.51.3, 3.50.7 or 3.44.6 or newer, or journal_mode='DELETE'",
            stacklevel=2,
        )
    with _opening(file, "rwc", synchronous, timeout_ms) as engine:
        queue = QueueFile(engine, limits=limits)
        if queue._missing():
            # Only here: opening a queue that exists takes a few ms, importing Alembic many.
            from leasestore import schema

            schema.upgrade(engine)
        # Last, since it stays with the file: a file that is refused must not change.
        _set_journal_mode(engine, file, journal_mode)
    return queue


def run_file(
    path: str | os.PathLike[str],
    owner: str,
    clock: Clock,
    send: Callable[[Event], object],
    jitter: float,
    lease_ms: int = 1000,
    *,
    limits: Limits = Limits(),
) -> Delivered | None:
    """`run_once` on a queue file, opened for this one job and closed again (CONTRACT.md,
    "run_file"). Arguments, answer and errors are those of `run_once`, `limits` those under which
    the jobs were enqueued, and:

    Raises:
        FileNotFoundError: there is no regular file at `path`; none is made.
        SchemaError: the file is no database, or has no job tables; none are made.
    """
    validation.jitter(jitter)
    file = validation.path(path)
    if not file.is_file():
        raise FileNotFoundError(
            f"path: there is no queue file at {file}; open_queue makes one where that is meant"
        )
    with _opening(file, "rw", "FULL", 1000) as engine:
        queue = QueueFile(engine, limits=limits)
        missing = queue._missing()
        if missing:
            raise operations.schema_error(missing)
    with queue:
        return run_once(queue, owner, clock, send, jitter, lease_ms)


@contextmanager
def _opening(file: Path, mode: str, synchronous: str, timeout_ms: int) -> Iterator[Engine]:
    """An engine for this file, closed again if the block that sets it up fails."""
    engine = _engine(file, mode, synchronous, timeout_ms)
    try:
        yield engine
    except DBAPIError as error:
        engine.dispose()
        if not dialects.named("sqlite").is_not_a_database(error):
            raise
        raise SchemaError(f"{file} is not a database", (), "give a queue file's path") from error
    except BaseException:
        engine.dispose()
        raise


def _engine(file: Path, mode: str, synchronous: str, timeout_ms: int) -> Engine:
    # As a URI, so that `rw` can forbid SQLite to make a file, whatever happens to it meanwhile.
    url = URL.create("sqlite", database=file.as_uri(), query={"mode": mode, "uri": "true"})
    engine = create_engine(
        url, isolation_level="AUTOCOMMIT", connect_args={"timeout": timeout_ms / 1000}
    )

    @event.listens_for(engine, "connect")
    def set_synchronous(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        try:
            cursor = connection.cursor()
            cursor.execute(f"PRAGMA synchronous = {synchronous}")
            cursor.close()
        except BaseException:
            # Older SQLAlchemy forgets a connection that fails here.
            connection.close()
            raise

    return engine


def _set_journal_mode(engine: Engine, file: Path, journal_mode: JournalMode) -> None:
    """Asked first and set only where it differs: setting it wants the file for itself."""
    dialect = dialects.named("sqlite")
    with connected(engine, dialect) as connection:
        found = connection.scalar(text("PRAGMA journal_mode"))
        if found != journal_mode.lower():
            try:
                found = connection.scalar(text(f"PRAGMA journal_mode = {journal_mode}"))
            except DBAPIError as error:
                if not dialect.is_busy(error):
                    raise
                raise StoreBusy(
                    f"{file} is in journal mode {found} and in use, so that it cannot change to "
                    f"{journal_mode} now: open it with journal_mode={found.upper()!r}, or when "
                    "nobody else has it open"
                ) from error
    if found != journal_mode.lower():
        raise UnsupportedEngine(f"SQLite keeps {file} in journal mode {found}")


def _has_wal_reset_fault(version: tuple[int, ...]) -> bool:
    mended = (3, 44, 6) <= version < (3, 45) or (3, 50, 7) <= version < (3, 51)
    return not mended and version < (3, 51, 3)
