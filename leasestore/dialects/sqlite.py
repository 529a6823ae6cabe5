"""SQLite: the immediate transaction, under every driver mode, and what its errors mean."""

from __future__ import annotations

import random
import sqlite3
import weakref
from collections.abc import Mapping
from typing import Any, cast

from sqlalchemy import (
    CheckConstraint,
    Column,
    ColumnClause,
    ColumnElement,
    Connection,
    Engine,
    FromClause,
    RootTransaction,
    Select,
    Table,
    Update,
    column,
    func,
    literal_column,
    select,
    text,
    union_all,
)
from sqlalchemy import table as table_clause
from sqlalchemy.dialects.sqlite import insert as insert
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

from leasestore.backoff import lock_steps
from leasestore.clock import system_clock
from leasestore.errors import UnsupportedEngine
from leasestore.execution import as_sqlalchemy_raises

_OLDEST = (3, 35, 0)  # RETURNING
# In the connection's info: the transaction that has the write lock, taken outside any savepoint.
_LOCKED = "leasestore_locked"
_SHARED = (
    "somebody else is in a transaction on this driver connection: a listener that wrote when this "
    "one began, or a pool that hands out the same connection to several, as for an in-memory "
    "database. Use a file, or work inside that transaction with repository.within(session)"
)


def check_version() -> None:
    if sqlite3.sqlite_version_info < _OLDEST:
        raise UnsupportedEngine(
            f"leasestore needs SQLite {'.'.join(map(str, _OLDEST))} or newer (RETURNING); this "
            f"Python has {sqlite3.sqlite_version}"
        )


def choose(
    key: Column[int],
    *questions: Select[Any],
    then: Select[Any] | None = None,
    fewer_than: ColumnElement[int] | None = None,
) -> ColumnElement[bool]:
    """Nobody else writes meanwhile: to ask is to choose."""
    if then is not None:
        questions = *questions, then
    if len(questions) == 1:
        return key.in_(questions[0].correlate(None))
    # As sub-selects, since an order and a limit of its own are not for a part of a UNION.
    apart = (question.correlate(None).subquery() for question in questions)
    return key.in_(union_all(*(select(each.c[key.name]) for each in apart)))


def lock_rows(connection: Connection, lock: Select[Any], bound: Mapping[str, object]) -> None:
    """The write lock is all there is, and held by now."""


def unpacked(packed: ColumnElement[str], columns: Mapping[str, TypeEngine[Any]]) -> FromClause:
    each = func.json_each(packed).table_valued("value", name="_ls_each")
    return select(
        *(
            func.json_extract(each.c.value, literal_column(f"'$.{name}'"), type_=kind).label(name)
            for name, kind in columns.items()
        )
    ).subquery("_ls_items")


def now_ms(connection: Connection) -> int:
    """SQLite runs in this process: its clock is the host's."""
    return system_clock()


def notify(connection: Connection, job: Table) -> None:
    """Nobody can listen to a file: they look again and again."""


def hearing(bind: Engine | Connection, job: Table) -> None:
    """Not on SQLite."""


def lock_schema(connection: Connection) -> None:
    """The write lock does that."""


def make_own(connection: Connection, *, single: bool) -> None:
    """Whatever the mode, the lock makes them what they have to be."""


def restore(connection: Connection) -> None:
    """Nothing was changed."""


def refuse_shared(connection: Connection) -> None:
    """For a pool that gives the same driver connection to several (`sqlite://` in memory).

    Asked before anything is begun: nobody has a transaction there but the driver itself.
    """
    holder = _holder(connection)
    if in_transaction(connection) or (holder is not None and holder.is_active):
        raise UnsupportedEngine(_SHARED)


def refuse_private(engine: Engine) -> None:
    name, mode = engine.url.database or ":memory:", engine.url.query.get("mode")
    if ":memory:" in name or "mode=memory" in name or mode == "memory":
        raise UnsupportedEngine(
            "this engine is for a SQLite database in memory, of which each thread would have its "
            "own, empty one; use a file, in tests one in a temporary directory"
        )


def check_still_begun(connection: Connection) -> None:
    if not _driver(connection).in_transaction:
        raise UnsupportedEngine(
            "somebody else ended this transaction, on the same driver connection or from within a "
            "fault point: what was written in it is lost. Give each its own connection"
        )


def take_write_lock(connection: Connection) -> None:
    """BEGIN IMMEDIATE, whatever the driver or the application began before."""
    driver = _driver(connection)
    _refuse_autocommit(driver)
    begun = driver.in_transaction
    if begun and _autocommit(driver) is not False and not connection.dispatch.begin:
        raise UnsupportedEngine(_SHARED)
    # Begun by the application's own hook, or by a driver that always has one open: nothing was
    # read in it yet, and it may be a deferred one.
    _begin(connection, driver, instead=begun)
    if not driver.in_transaction:
        raise UnsupportedEngine(
            "BEGIN IMMEDIATE left the driver outside a transaction: something between SQLAlchemy "
            "and SQLite ends transactions by itself"
        )
    _note_lock(connection)


def wait_at_most(connection: Connection, patience_ms: int) -> None:
    """The one lock is held already; for how long to wait for it, the engine's timeout says."""


def begin_for_caller(connection: Connection) -> None:
    """The same for a transaction that the application ends, by SQLAlchemy's rollback if need be."""
    skips_rollback = getattr(connection.dialect, "skip_autocommit_rollback", False)
    if skips_rollback and _driver(connection).isolation_level is None:
        raise UnsupportedEngine(
            "this engine has skip_autocommit_rollback=True, so that a rollback would undo nothing: "
            "leave it out, or use the repository outside of your transaction"
        )
    take_write_lock(connection)


def join(connection: Connection, no_change: Update | None) -> None:
    """Take the write lock in the caller's transaction, which has to be a real one.

    The driver's default mode begins only at the first change: begun here instead, it is the
    same transaction, with the lock, and a savepoint cannot become the whole of it.
    """
    driver, root = _driver(connection), connection.get_transaction()
    _refuse_autocommit(driver)
    if not driver.in_transaction:
        if driver.isolation_level is None:
            raise UnsupportedEngine(
                "this engine is in autocommit mode and has no transaction to join: begin the unit "
                "of work with leasestore.immediate(session), or use the repository outside of it"
            )
        _begin(connection, driver)
    elif _holder(connection) is root:
        return
    elif connection.in_nested_transaction() and _autocommit(driver) is not False:
        raise UnsupportedEngine(
            "this transaction may have begun with its SAVEPOINT, whose release would commit what "
            "your rollback should undo: begin the unit of work with leasestore.immediate(session)"
        )
    elif no_change is None:
        return
    else:
        connection.execute(no_change)
    if not connection.in_nested_transaction():
        _note_lock(connection)


def _note_lock(connection: Connection) -> None:
    root = connection.get_transaction()
    connection.info[_LOCKED] = None if root is None else weakref.ref(root)


def _holder(connection: Connection) -> RootTransaction | None:
    """The transaction that was last known to have the lock of this driver connection."""
    noted: weakref.ref[RootTransaction] | None = connection.info.get(_LOCKED)
    return noted() if noted else None


def _refuse_autocommit(driver: sqlite3.Connection) -> None:
    if _autocommit(driver) is True:
        raise UnsupportedEngine(
            "this engine has connect_args={'autocommit': True}, where the driver's commit() and "
            "rollback() do nothing: leave autocommit out, or use isolation_level='AUTOCOMMIT'"
        )


def _begin(connection: Connection, driver: sqlite3.Connection, *, instead: bool = False) -> None:
    """BEGIN IMMEDIATE, instead of another transaction if need be, by the driver's own cursor, with
    errors as SQLAlchemy raises them."""
    cursor = connection.connection.cursor()
    try:
        if instead:
            cursor.execute("ROLLBACK")
        try:
            _begin_immediate(cursor)
        except sqlite3.Error:
            if _autocommit(driver) is False:
                # Such a driver takes it for granted that one is open, and fails without.
                cursor.execute("BEGIN")
            raise
    except sqlite3.Error as error:
        raise as_sqlalchemy_raises(connection, error, "BEGIN IMMEDIATE") from error
    finally:
        cursor.close()


def _begin_immediate(cursor: DBAPICursor) -> None:
    """Ask for the lock in short uneven steps, as long as the engine's own timeout allows.

    SQLite's own wait pauses longer and longer and starves whoever came first.
    """
    cursor.execute("PRAGMA busy_timeout")
    ((timeout_ms,),) = cursor.fetchall()
    try:
        busy = _refused(cursor, 0)
        if busy is None:
            return
        for step_ms in lock_steps(timeout_ms, random.randint):
            busy = _refused(cursor, step_ms)
            if busy is None:
                return
        raise busy
    finally:
        cursor.execute(f"PRAGMA busy_timeout = {timeout_ms}")


def _refused(cursor: DBAPICursor, patience_ms: int) -> sqlite3.Error | None:
    """Ask for the lock once; the error, if somebody else has kept it for so long."""
    cursor.execute(f"PRAGMA busy_timeout = {patience_ms}")
    try:
        cursor.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        if not is_busy(error):
            raise
        return error
    return None


def uniques(connection: Connection, table: Table) -> list[list[str | None]]:
    # SQLAlchemy's inspector warns about every index that is over an expression.
    listed = text(
        "SELECT i.name, c.name FROM pragma_index_list(:table, :schema) AS i, "
        'pragma_index_info(i.name, :schema) AS c WHERE i."unique" AND NOT i.partial '
        "ORDER BY i.seq, c.seqno"
    )
    bound = {"table": table.name, "schema": connection.schema_for_object(table) or "main"}
    columns: dict[str, list[str | None]] = {}
    for index, name in connection.execute(listed, bound):
        columns.setdefault(index, []).append(name)
    return list(columns.values())


def unreflected(connection: Connection, table: Table) -> set[str] | None:
    """Those over expressions the inspector leaves out."""
    listed = text("SELECT name FROM pragma_index_list(:table, :schema)")
    bound = {"table": table.name, "schema": connection.schema_for_object(table) or "main"}
    return set(connection.execute(listed, bound).scalars().all())


def differences(connection: Connection, table: Table) -> list[str]:
    columns: list[ColumnClause[Any]] = [column(name) for name in ("sql", "type", "name")]
    master = table_clause("sqlite_master", *columns, schema=connection.schema_for_object(table))
    definition = select(master.c.sql).where(master.c.type == "table", master.c.name == table.name)
    made_by = connection.execute(definition).scalar_one_or_none()
    if made_by is None:
        return [f"{table.name}: expected a table, found something else of that name"]
    wanted = ["AUTOINCREMENT"]
    wanted += [str(rule.sqltext) for rule in table.constraints if isinstance(rule, CheckConstraint)]
    return [
        f"{table.name}: expected {part}, which it lacks"
        for part in wanted
        if _squeezed(part) not in _squeezed(made_by)
    ]


def _squeezed(ddl: str) -> str:
    return "".join(ddl.split()).upper()


def in_transaction(connection: Connection) -> bool:
    # With autocommit=False the driver opens the next one itself, without a lock.
    driver = _driver(connection)
    return driver.in_transaction and _autocommit(driver) is not False


def is_busy(error: BaseException) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_not_a_database(error: BaseException) -> bool:
    return _code(error) == sqlite3.SQLITE_NOTADB


def may_lack_tables(error: BaseException) -> bool:
    return _code(error) in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_NOTADB)


def is_of_absent_tables(error: DBAPIError) -> bool:
    """A statement that fails ends no transaction."""
    return False


def _code(error: BaseException) -> int:
    """SQLite's primary result code."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    # Errors that the driver makes itself carry no code.
    return getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF


def _driver(connection: Connection) -> sqlite3.Connection:
    driver: Any = connection.connection.dbapi_connection
    if not isinstance(driver, sqlite3.Connection):
        # aiosqlite wraps the one that it works on in its own thread; only attributes are read.
        driver = connection.connection.driver_connection
        driver = getattr(driver, "_conn", driver)
    return cast("sqlite3.Connection", driver)


def _autocommit(driver: sqlite3.Connection) -> bool | int | None:
    """The attribute that Python 3.12 brought: True, False, or -1 for the modes before it."""
    return getattr(driver, "autocommit", None)
