"""What the conformance tests ask of a backend, and the backends on SQLite."""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import QueuePool

from leasestore import JobRepository, open_queue
from tests.conformance.faces import Awaited, Within
from tests.support import ENGINES, make_file, rows

TABLES = ("jobs", "redrives", "sqlite_sequence")
DOORS = ("engine", "connection")

READY: dict[str, Any] = {
    "id": "job-1",
    "qty": 1,
    "status": "pending",
    "attempts": 0,
    "max_attempts": 3,
    "token": 0,
    "available_at": 0,
    "deadline": 1000,
}


class Store(ABC):
    """A repository, and its tables as somebody else sees them."""

    repository: JobRepository

    @abstractmethod
    def rows(self, table: str = "jobs") -> list[dict[str, Any]]:
        """All rows, in order."""

    def row(self, job_id: str) -> dict[str, Any]:
        (found,) = (row for row in self.rows() if row["id"] == job_id)
        return found

    def insert(self, **columns: Any) -> None:
        """A row by hand: pending and ready at 0 with deadline 1000 unless said."""
        self._insert({**READY, **columns})

    @abstractmethod
    def _insert(self, row: dict[str, Any]) -> None: ...

    @abstractmethod
    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Everything that a call which changes nothing must leave as it is."""

    @abstractmethod
    def wipe(self) -> None: ...

    @abstractmethod
    def other_engine(self) -> Engine:
        """Another engine of the same database."""

    @contextmanager
    def somebody_else(self) -> Iterator[JobRepository]:
        engine = self.other_engine()
        try:
            yield JobRepository(engine)
        finally:
            engine.dispose()

    @abstractmethod
    def assert_clean(self) -> None:
        """No transaction is open, no connection is out, and anybody else may write at once."""


@dataclass(frozen=True)
class SQLiteStore(Store):
    repository: JobRepository
    path: Path
    assert_released: Callable[[], None]

    def rows(self, table: str = "jobs") -> list[dict[str, Any]]:
        return rows(self.path, table)

    def _insert(self, row: dict[str, Any]) -> None:
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        with unsynced(self.path) as plain:
            plain.execute(f"INSERT INTO jobs ({names}) VALUES ({marks})", list(row.values()))

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        return dump(self.path)

    def wipe(self) -> None:
        with unsynced(self.path) as plain:
            for table in TABLES:
                plain.execute(f"DELETE FROM {table}")

    def other_engine(self) -> Engine:
        return create_engine(f"sqlite:///{self.path}")

    def assert_clean(self) -> None:
        self.assert_released()
        assert can_lock(self.path), "a lock was left on the file"


@contextmanager
def unsynced(path: Path) -> Iterator[sqlite3.Connection]:
    """A plain connection in a transaction that does not wait for the disk."""
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.execute("PRAGMA synchronous = OFF")
        yield plain


def do_not_sync(engine: Engine) -> Engine:
    """Nothing here survives a loss of power, and waiting for the disk is most of the time."""

    @event.listens_for(engine, "connect")
    def leave_it_to_the_system(driver: Any, _: object) -> None:
        always_open = getattr(driver, "autocommit", None) is False
        if always_open:
            driver.autocommit = True
        cursor = driver.cursor()
        cursor.execute("PRAGMA synchronous = OFF")
        cursor.close()
        if always_open:
            driver.autocommit = False

    return engine


def dump(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    with closing(sqlite3.connect(path)) as plain:
        return {name: plain.execute(f"SELECT * FROM {name}").fetchall() for name in TABLES}


def can_lock(path: Path, how: str = "EXCLUSIVE") -> bool:
    """Whether another connection gets a lock at once; an exclusive one tolerates no reader."""
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as plain:
        try:
            plain.execute(f"BEGIN {how}")
        except sqlite3.OperationalError:
            return False
        return True


@contextmanager
def write_locked(path: Path) -> Iterator[sqlite3.Connection]:
    """Somebody else holds the write lock."""
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as plain:
        plain.execute("BEGIN IMMEDIATE")
        yield plain


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


def released(bind: Engine | Connection) -> Callable[[], None]:
    """A check that nothing of this engine or connection is held or open."""

    def engine_released(engine: Engine) -> None:
        assert isinstance(engine.pool, QueuePool)
        assert engine.pool.checkedout() == 0

    def connection_released(connection: Connection) -> None:
        assert not connection.closed
        assert not connection.invalidated
        assert not connection.in_transaction()
        # With autocommit=False the driver keeps a transaction open that has done nothing yet.
        if getattr(_driver(connection), "autocommit", None) is not False:
            assert not _driver(connection).in_transaction

    def check() -> None:
        if isinstance(bind, Engine):
            engine_released(bind)
        else:
            connection_released(bind)

    return check


@contextmanager
def bound(engine_name: str, door: str, path: Path) -> Iterator[Engine | Connection]:
    """An engine in one driver mode, or one connection of it."""
    engine = do_not_sync(ENGINES[engine_name](path))
    try:
        if door == "engine":
            yield engine
        else:
            with engine.connect() as connection:
                yield connection
    finally:
        engine.dispose()


def _through(engine_name: str, door: str) -> Callable[[Path], AbstractContextManager[SQLiteStore]]:
    @contextmanager
    def opened(path: Path) -> Iterator[SQLiteStore]:
        make_file(path)
        with bound(engine_name, door, path) as bind:
            yield SQLiteStore(JobRepository(bind), path, released(bind))

    return opened


@contextmanager
def _queue_file(path: Path) -> Iterator[SQLiteStore]:
    with open_queue(path) as queue:
        yield SQLiteStore(queue, path, released(queue._bind))


def _within(engine_name: str) -> Callable[[Path], AbstractContextManager[SQLiteStore]]:
    @contextmanager
    def opened(path: Path) -> Iterator[SQLiteStore]:
        make_file(path)
        with bound(engine_name, "engine", path) as bind:
            assert isinstance(bind, Engine)
            yield SQLiteStore(cast("JobRepository", Within(bind)), path, released(bind))

    return opened


@contextmanager
def _awaited(path: Path) -> Iterator[SQLiteStore]:
    make_file(path)
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    do_not_sync(engine.sync_engine)
    loop = asyncio.new_event_loop()
    try:
        repository = cast("JobRepository", Awaited(engine, loop))
        yield SQLiteStore(repository, path, released(engine.sync_engine))
    finally:
        loop.run_until_complete(engine.dispose())
        loop.close()


SQLITE: dict[str, Callable[[Path], AbstractContextManager[SQLiteStore]]] = {
    **{f"{name}-{door}": _through(name, door) for name in ENGINES for door in DOORS},
    **{f"{name}-within": _within(name) for name in ENGINES},
    "aiosqlite": _awaited,
    "open-queue": _queue_file,
}
