"""How a statement is executed: by the driver's own cursor where nobody could tell the difference,
else by SQLAlchemy.

SQLAlchemy compiles the statement, gives the connection, and begins and ends the transaction, as
always. What is spared is its execution, which costs about as much as SQLite's. Whoever listens to
statements, logs them or translates schemas has each of them executed by SQLAlchemy, and so has a
statement whose values need more than the driver does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple, TypeAlias, cast
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Dialect, Insert, Select, Update, select
from sqlalchemy.exc import DBAPIError

Statement: TypeAlias = Select[Any] | Insert | Update

# One that is asynchronous, or ciphers, costs more than what is spared.
_DRIVERS = frozenset({"psycopg", "psycopg2", "pysqlite"})


class _Prepared(NamedTuple):
    sql: str
    places: Sequence[str] | None
    """The names of the values, in the order of their placeholders; None: they are named there."""
    constants: Mapping[str, object]
    sufficient: bool
    """Whether the driver alone brings the values to the database and back."""


_PREPARED: WeakKeyDictionary[Dialect, WeakKeyDictionary[Statement, _Prepared]] = WeakKeyDictionary()


def rows(
    connection: Connection, statement: Statement, bound: Mapping[str, object]
) -> Sequence[Any]:
    """All rows that the statement returns, as tuples."""
    prepared = _prepared(connection, statement)
    if prepared is None:
        return connection.execute(statement, bound).all()
    found: Sequence[Any] = _direct(connection, prepared, bound, methodcaller("fetchall"))
    return found


def count(connection: Connection, statement: Statement, bound: Mapping[str, object]) -> int:
    """How many rows the statement changed, if it returns none."""
    prepared = _prepared(connection, statement)
    if prepared is None:
        return connection.execute(statement, bound).rowcount
    changed: int = _direct(connection, prepared, bound, attrgetter("rowcount"))
    return changed


def as_sqlalchemy_raises(
    connection: Connection, error: Exception, sql: str, values: Any = None
) -> BaseException:
    """A driver's error as SQLAlchemy would raise it for this statement."""
    dialect = connection.dialect
    return DBAPIError.instance(
        sql,
        values,
        error,
        dialect.loaded_dbapi.Error,
        hide_parameters=connection.engine.hide_parameters,
        connection_invalidated=connection.invalidated,
        dialect=dialect,
    )


def _direct(
    connection: Connection,
    prepared: _Prepared,
    bound: Mapping[str, object],
    answer: Callable[[Any], Any],
) -> Any:
    values: Any = {**prepared.constants, **bound}
    if prepared.places is not None:
        values = tuple([values[name] for name in prepared.places])
    cursor = connection.connection.cursor()
    try:
        cursor.execute(prepared.sql, values)
        return answer(cursor)
    except connection.dialect.loaded_dbapi.Error as error:
        _discard_if_lost(connection, error)
        raise as_sqlalchemy_raises(connection, error, prepared.sql, values) from error
    except Exception:
        raise
    except BaseException as interruption:
        # Nobody knows how far the driver was.
        connection.invalidate(interruption)
        raise
    finally:
        if not connection.invalidated:
            cursor.close()


def _discard_if_lost(connection: Connection, error: Exception) -> None:
    """Where the connection is lost, the others of the pool may be as well."""
    driver: Any = connection.connection.dbapi_connection
    if connection.dialect.is_disconnect(cast("Any", error), driver, None):
        # SQLAlchemy throws them away when it comes upon the loss itself.
        with suppress(DBAPIError):
            connection.execute(select(1))


def _heard(connection: Connection) -> bool:
    """Whether somebody hears of statements, or has a say in them."""
    engine, of_dialect = connection.engine, connection.dialect.dispatch
    around = engine.dispatch
    return bool(
        around.before_execute
        or around.before_cursor_execute
        or around.after_cursor_execute
        or around.after_execute
        or of_dialect.do_execute
        or of_dialect.handle_error
        # What was set for this one connection. To ask by the public names costs what is spared;
        # without this one, all is as if somebody listened.
        or getattr(connection, "_has_events", True)
        or engine.logger.isEnabledFor(logging.INFO)
        or "schema_translate_map" in connection.get_execution_options()
    )


def _in_plain_transaction(connection: Connection) -> bool:
    """It is for SQLAlchemy to begin one, to refuse to go on in one that has failed, and to look
    after savepoints."""
    return connection.in_transaction() and not connection.in_nested_transaction()


def _prepared(connection: Connection, statement: Statement) -> _Prepared | None:
    """The statement for the driver; None where SQLAlchemy has to execute it."""
    if _heard(connection) or not _in_plain_transaction(connection):
        return None
    of_dialect = _PREPARED.get(connection.dialect)
    if of_dialect is None:
        of_dialect = _PREPARED.setdefault(connection.dialect, WeakKeyDictionary())
    prepared = of_dialect.get(statement)
    if prepared is None:
        prepared = of_dialect[statement] = _prepare(connection.dialect, statement)
    return prepared if prepared.sufficient else None


def _prepare(dialect: Dialect, statement: Statement) -> _Prepared:
    compiled = statement.compile(dialect=dialect)
    bound = [each.type for each in compiled.binds.values()]
    returned = [column.type for column in statement.exported_columns]
    sufficient = (
        dialect.driver in _DRIVERS
        and not dialect.is_async
        # Such as a list of unknown length after IN.
        and not compiled.post_compile_params
        and not compiled.literal_execute_params
        and not any(kind.dialect_impl(dialect).bind_processor(dialect) for kind in bound)
        and not any(kind.dialect_impl(dialect).result_processor(dialect, None) for kind in returned)
    )
    constants = {
        name: value for name, value in compiled.params.items() if not compiled.binds[name].required
    }
    return _Prepared(compiled.string, compiled.positiontup, constants, sufficient)
