"""The backends on PostgreSQL: every driver, door and isolation level."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import psycopg
from psycopg import sql
from psycopg.rows import dict_row, tuple_row
from sqlalchemy import URL, Connection, Engine, create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import QueuePool

from leasestore import JobRepository
from tests.conformance.faces import Awaited, Within
from tests.conformance.stores import DOORS, Store
from tests.postgresql import libpq

TABLES = ("jobs", "redrives")

MODES: dict[str, tuple[str, dict[str, Any]]] = {
    "psycopg": ("psycopg", {}),
    "psycopg2": ("psycopg2", {}),
    **{
        f"psycopg-{level.lower().replace(' ', '-')}": ("psycopg", {"isolation_level": level})
        for level in ("SERIALIZABLE", "REPEATABLE READ", "AUTOCOMMIT")
    },
}
"""Each driver, and what an application may have set its engine to."""

# In the application's transaction there has to be one: an autocommit engine is refused.
JOINABLE = [name for name in MODES if name != "psycopg-autocommit"]

ASYNCHRONOUS = {"psycopg-async": "psycopg_async", "asyncpg": "asyncpg"}

_HELD = """
    SELECT pid, 'is ' || state FROM pg_stat_activity
    WHERE datname = current_database() AND state LIKE 'idle in transaction%'
    UNION ALL
    SELECT pid, 'has ' || mode || ' on ' || relation::regclass FROM pg_locks
    WHERE relation IN ('jobs'::regclass, 'redrives'::regclass)
"""


Plain = psycopg.Connection[Any]


@dataclass(frozen=True)
class PostgreSQLStore(Store):
    repository: JobRepository
    url: URL
    plain: Plain
    assert_released: Callable[[], None]

    def rows(self, table: str = "jobs") -> list[dict[str, Any]]:
        with self.plain.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(_all_of(table)).fetchall()

    def _insert(self, row: dict[str, Any]) -> None:
        insert_row(self.plain, row)

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        with self.plain.cursor(row_factory=tuple_row) as cursor:
            return {name: cursor.execute(_all_of(name)).fetchall() for name in TABLES}

    def wipe(self) -> None:
        wipe(self.plain)

    def other_engine(self) -> Engine:
        return create_engine(self.url)

    def assert_clean(self) -> None:
        self.assert_released()
        held = self.plain.execute(_HELD).fetchall()
        assert not held, "; ".join(f"session {pid} {what}" for pid, what in held)


def _all_of(table: str) -> sql.Composed:
    return sql.SQL("SELECT * FROM {} ORDER BY seq").format(sql.Identifier(table))


def insert_row(plain: Plain, row: dict[str, Any]) -> None:
    names = sql.SQL(", ").join(map(sql.Identifier, row))
    values = sql.SQL(", ").join(sql.Placeholder() * len(row))
    command = sql.SQL("INSERT INTO jobs ({}) VALUES ({})").format(names, values)
    plain.execute(command, list(row.values()))


def wipe(plain: Plain) -> None:
    # Many times as fast as TRUNCATE, for so few rows.
    plain.execute("""DO $$ BEGIN
        DELETE FROM jobs;
        DELETE FROM redrives;
        PERFORM setval('jobs_seq_seq', 1, false), setval('redrives_seq_seq', 1, false);
    END $$""")


@contextmanager
def beside(url: URL) -> Iterator[Plain]:
    """A connection of the tests' own, past everything that is under test."""
    # A lock that was left behind, or is waited for, shall be a failure, not a standstill.
    patience = "-c lock_timeout=5s -c idle_in_transaction_session_timeout=10s"
    with psycopg.connect(libpq(url), autocommit=True, options=patience) as plain:
        yield plain


def released(bind: Engine | Connection) -> Callable[[], None]:
    """A check that nothing of this engine or connection is held or open."""

    def check() -> None:
        if isinstance(bind, Engine):
            assert isinstance(bind.pool, QueuePool)
            assert bind.pool.checkedout() == 0
            return
        assert not bind.closed
        assert not bind.invalidated
        assert not bind.in_transaction()
        driver: Any = bind.connection.driver_connection
        assert driver.info.transaction_status == psycopg.pq.TransactionStatus.IDLE

    return check


def engine_in(mode: str, url: URL) -> Engine:
    driver, settings = MODES[mode]
    return create_engine(url.set(drivername=f"postgresql+{driver}"), **settings)


@contextmanager
def bound(mode: str, door: str, url: URL) -> Iterator[Engine | Connection]:
    """An engine in one mode, or one connection of it."""
    engine = engine_in(mode, url)
    try:
        if door == "engine":
            yield engine
        else:
            with engine.connect() as connection:
                yield connection
    finally:
        engine.dispose()


def _through(mode: str, door: str) -> Callable[[URL], AbstractContextManager[Store]]:
    @contextmanager
    def opened(url: URL) -> Iterator[Store]:
        with bound(mode, door, url) as bind, beside(url) as plain:
            yield PostgreSQLStore(JobRepository(bind), url, plain, released(bind))

    return opened


def _within(mode: str) -> Callable[[URL], AbstractContextManager[Store]]:
    @contextmanager
    def opened(url: URL) -> Iterator[Store]:
        with bound(mode, "engine", url) as bind, beside(url) as plain:
            assert isinstance(bind, Engine)
            repository = cast("JobRepository", Within(bind))
            yield PostgreSQLStore(repository, url, plain, released(bind))

    return opened


def _awaited(driver: str) -> Callable[[URL], AbstractContextManager[Store]]:
    @contextmanager
    def opened(url: URL) -> Iterator[Store]:
        engine = create_async_engine(url.set(drivername=f"postgresql+{driver}"))
        loop = asyncio.new_event_loop()
        try:
            with beside(url) as plain:
                repository = cast("JobRepository", Awaited(engine, loop))
                yield PostgreSQLStore(repository, url, plain, released(engine.sync_engine))
        finally:
            loop.run_until_complete(engine.dispose())
            loop.close()

    return opened


POSTGRESQL: dict[str, Callable[[URL], AbstractContextManager[Store]]] = {
    **{f"{mode}-{door}": _through(mode, door) for mode in MODES for door in DOORS},
    **{f"{mode}-within": _within(mode) for mode in JOINABLE},
    **{name: _awaited(driver) for name, driver in ASYNCHRONOUS.items()},
}

OLDEST = "psycopg-engine-oldest_postgresql"
"""One of them, on the oldest server at hand."""
