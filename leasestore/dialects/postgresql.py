"""PostgreSQL: read-committed transactions, rows locked as they are chosen, errors by SQLSTATE."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial, reduce
from typing import Any, Literal

from sqlalchemy import (
    ARRAY,
    JSON,
    Column,
    ColumnElement,
    Connection,
    Engine,
    FromClause,
    Select,
    Table,
    Update,
    any_,
    case,
    cast,
    column,
    func,
    inspect,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import insert as insert
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

from leasestore.errors import UnsupportedEngine

_BUSY = frozenset({
    "40001",  # serialization_failure
    "40P01",  # deadlock_detected
    "55P03",  # lock_not_available: lock_timeout, NOWAIT
})  # fmt: skip
# Any number will do that nobody else's advisory locks are likely to have.
_SCHEMA_LOCK = 0x6C656173652D7374
_LEVEL: Literal["READ COMMITTED"] = "READ COMMITTED"
_DRIVERS = frozenset({"asyncpg", "psycopg", "psycopg2"})
# Events of an engine with the transaction around a statement; at the first, each connection may get
# listeners of its own.
_AROUND = (
    "engine_connect",
    "begin",
    "before_execute",
    "before_cursor_execute",
    "after_cursor_execute",
    "after_execute",
    "commit",
)
_ABSENT = frozenset({
    "3F000",  # invalid_schema_name
    "42703",  # undefined_column
    "42P01",  # undefined_table
})  # fmt: skip


def check_version() -> None:
    """Every PostgreSQL that SQLAlchemy 2 speaks to has SKIP LOCKED and RETURNING."""


def choose(
    key: Column[int],
    *questions: Select[Any],
    then: Select[Any] | None = None,
    fewer_than: ColumnElement[int] | None = None,
) -> ColumnElement[bool]:
    """Chosen and locked by sub-selects that refer to nothing outside: they run once, whatever the
    plan is.

    An `IN (SELECT ... LIMIT 1 FOR UPDATE SKIP LOCKED)` may be run again by the plan while it
    updates, and take more rows than were asked for; and of a join the planner may think that it
    yields many rows, and walk the whole table. An array is looked up by the key.
    """
    found = reduce(_both, map(_locked, questions))
    if then is None:
        return key == any_(found)
    # OFFSET keeps the planner from asking them wherever their answer is used.
    first = select(found.label("found")).offset(literal_column("0")).subquery("_ls_first").c.found
    both = case((func.cardinality(first) < fewer_than, _both(first, _locked(then))), else_=first)
    # The cast, since ANY (SELECT ...) would compare with each row of it.
    return key == any_(cast(select(both).scalar_subquery(), ARRAY(key.type)))


def _locked(question: Select[Any]) -> ColumnElement[Any]:
    # No stronger than what the update takes: a row of the application's that refers to a job is no
    # reason to pass the job over.
    locked = question.with_for_update(skip_locked=True, key_share=True).correlate(None)
    return func.array(locked.scalar_subquery())


def _both(one: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[Any]:
    return one.op("||")(other)


def lock_rows(connection: Connection, lock: Select[Any], bound: Mapping[str, object]) -> None:
    connection.execute(lock, bound).all()


def unpacked(packed: ColumnElement[str], columns: Mapping[str, TypeEngine[Any]]) -> FromClause:
    rows = func.json_to_recordset(cast(packed, JSON)).table_valued(
        *(column(name, kind) for name, kind in columns.items())
    )
    return rows.render_derived(name="_ls_items", with_types=True)


def now_ms(connection: Connection) -> int:
    """Of this statement: `now()` would stand still for the length of a transaction."""
    ms = "SELECT CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS bigint)"
    return int(connection.execute(text(ms)).scalar_one())


def notify(connection: Connection, job: Table) -> None:
    send = text("SELECT pg_notify(:channel, '')")
    connection.execute(send, {"channel": _channel(connection, job)})


def hearing(bind: Engine | Connection, job: Table) -> Callable[[DBAPIConnection], _Notices] | None:
    kind = None if bind.dialect.is_async else _NOTICES.get(bind.dialect.driver)
    return None if kind is None else partial(kind, _channel(bind, job))


def _channel(bind: Engine | Connection, job: Table) -> str:
    """One a table, whatever its name: PostgreSQL takes 63 bytes."""
    translated = bind.get_execution_options().get("schema_translate_map") or {}
    name = json.dumps([translated.get(job.schema, job.schema), job.name])
    return f"leasestore_{hashlib.sha256(name.encode()).hexdigest()[:40]}"


class _Notices(ABC):
    """A connection in autocommit, since a notice waits for the end of a transaction."""

    def __init__(self, channel: str, driver: Any) -> None:
        self._driver = driver
        try:
            driver.autocommit = True
            with closing(driver.cursor()) as cursor:
                cursor.execute(f"LISTEN {channel}")
        except BaseException:
            driver.close()
            raise

    def fileno(self) -> int:
        return int(self._driver.fileno())

    @abstractmethod
    def came(self) -> bool: ...

    def close(self) -> None:
        self._driver.close()


class _PsycopgNotices(_Notices):
    def came(self) -> bool:
        # What notifies() does, without its wait; older ones have no time limit there.
        libpq = self._driver.pgconn
        libpq.consume_input()
        return sum(1 for _ in iter(libpq.notifies, None)) > 0


class _Psycopg2Notices(_Notices):
    def came(self) -> bool:
        self._driver.poll()
        came = len(self._driver.notifies) > 0
        self._driver.notifies.clear()
        return came


_NOTICES: dict[str, type[_Notices]] = {"psycopg": _PsycopgNotices, "psycopg2": _Psycopg2Notices}


def lock_schema(connection: Connection) -> None:
    # For the transaction only: a session's lock would mean nothing behind a pooler.
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _SCHEMA_LOCK})


def make_own(connection: Connection, *, single: bool) -> None:
    """READ COMMITTED, whatever the engine has: each statement sees what was committed before it,
    and waits for a row instead of failing.

    One statement in autocommit is the same, and spares the server's answers to BEGIN and COMMIT.
    """
    # Not by execution_options: a borrowed connection would keep the option, and one more thing to
    # undo for each call.
    connection.dialect.set_isolation_level(
        _driver(connection),
        "AUTOCOMMIT" if single and _commits_alone(connection) else _LEVEL,
    )


def _commits_alone(connection: Connection) -> bool:
    """Whether a statement without a BEGIN has the level, may write if the application's may, and
    nobody listens who may count on the transaction around it: to undo it, or for a SET LOCAL."""
    dialect: Any = connection.dialect
    return (
        connection.default_isolation_level == _LEVEL
        # To ask these costs nothing.
        and dialect.driver in _DRIVERS
        # Told to the server by BEGIN only.
        and not dialect.get_readonly(_driver(connection))
        and not any(getattr(connection.engine.dispatch, name) for name in _AROUND)
    )


def restore(connection: Connection) -> None:
    """What the application asked for, for this connection or for all."""
    if connection.invalidated:
        return
    dialect, asked = connection.dialect, connection.get_execution_options().get("isolation_level")
    try:
        if asked is None:
            dialect.reset_isolation_level(_driver(connection))
        else:
            dialect.set_isolation_level(_driver(connection), asked)
    except Exception:  # noqa: BLE001
        # What the verb came to is what counts; this connection only has to go.
        connection.invalidate()


def refuse_shared(connection: Connection) -> None:
    """No pool for PostgreSQL hands out one connection twice, but a listener may have begun."""
    info = getattr(connection.connection.driver_connection, "info", None)
    # psycopg, the only one to mind, calls it that; 0 is IDLE.
    if getattr(info, "transaction_status", 0):
        raise UnsupportedEngine(
            "this connection came out of the pool with a transaction open: a listener, on "
            "`connect` say, ran a statement and left it so. Let it commit, or run it in autocommit"
        )


def refuse_private(engine: Engine) -> None:
    """A server's databases are everybody's."""


def check_still_begun(connection: Connection) -> None:
    """PostgreSQL's COMMIT says if the transaction has failed."""


def take_write_lock(connection: Connection) -> None:
    """There is none to take: rows are locked one by one."""


def wait_at_most(connection: Connection, patience_ms: int) -> None:
    # For this transaction only: behind a pooler the session is somebody else's afterwards.
    connection.execute(text(f"SET LOCAL lock_timeout = {patience_ms:d}"))


def begin_for_caller(connection: Connection) -> None:
    _refuse_autocommit(connection)


def join(connection: Connection, no_change: Update | None) -> None:
    _refuse_autocommit(connection)


def _refuse_autocommit(connection: Connection) -> None:
    # SQLAlchemy's own question, detect_autocommit_setting, is younger than the oldest supported.
    if getattr(_driver(connection), "autocommit", False):
        raise UnsupportedEngine(
            "this connection is in autocommit mode and has no transaction to join: use an engine "
            "with execution_options(isolation_level='READ COMMITTED'), or the repository outside"
        )


def uniques(connection: Connection, table: Table) -> list[list[str | None]]:
    indexes = inspect(connection).get_indexes(
        table.name, schema=connection.schema_for_object(table)
    )
    return [index["column_names"] for index in indexes if index["unique"]]


def unreflected(connection: Connection, table: Table) -> set[str] | None:
    return None


def differences(connection: Connection, table: Table) -> list[str]:
    """SQLAlchemy reflects all that matters here."""
    return []


def in_transaction(connection: Connection) -> bool:
    """SQLAlchemy's own bookkeeping is right for these drivers."""
    return False


def is_busy(error: BaseException) -> bool:
    return _state(error) in _BUSY


def is_not_a_database(error: BaseException) -> bool:
    return False


def may_lack_tables(error: BaseException) -> bool:
    return _state(error) in _ABSENT


def is_of_absent_tables(error: DBAPIError) -> bool:
    """Its place is in the text of the statement; that of a trigger's error is in the trigger's."""
    cause = error.orig
    assert cause is not None
    # psycopg has it in `diag`; asyncpg in its own error, behind the one that SQLAlchemy made.
    details = getattr(cause, "diag", cause.__cause__)
    place = "statement_position" if hasattr(details, "statement_position") else "position"
    return getattr(details, place, None) is not None


def _state(error: BaseException) -> str | None:
    """SQLSTATE, under the name that the driver has for it."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)


def _driver(connection: Connection) -> DBAPIConnection:
    driver = connection.connection.dbapi_connection
    assert driver is not None
    return driver
