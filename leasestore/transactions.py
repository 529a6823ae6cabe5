"""Where a transaction of leasestore's own begins and ends, and nowhere else: no other module
begins, commits or rolls back (CONTRACT.md, "Transactions")."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Update
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session

from leasestore import dialects, validation
from leasestore.dialects import Dialect
from leasestore.errors import StoreBusy, UnsupportedEngine

# In which process an engine was used first.
_USED_IN: WeakKeyDictionary[Engine, int] = WeakKeyDictionary()
_CALL_AGAIN = (
    "the database was locked for longer than this engine waits; nothing was changed. Call again, "
    "or give the engine a longer timeout. (If it is a transaction of your own that has the lock, "
    "work inside it: repository.within(session))"
)
_RUN_AGAIN = (
    "your transaction could not take a lock that it needs: somebody else had it, waited for one of "
    "yours, or changed what the transaction had read before. Roll back and run the unit of work "
    "again; where the database has one write lock, begin with leasestore.immediate(session) and "
    "this cannot happen half-way"
)


def connected(
    bind: Engine | Connection, dialect: Dialect
) -> AbstractContextManager[Connection, None]:
    """A connection of the engine's pool, given back at the end; or the borrowed one, kept open."""
    return _Connected(bind, dialect) if isinstance(bind, Engine) else nullcontext(bind)


class _Connected(AbstractContextManager[Connection, None]):
    # No generator, and nor is a write transaction: that would be a tenth of what a verb costs here.

    def __init__(self, engine: Engine, dialect: Dialect) -> None:
        self._engine, self._dialect = engine, dialect

    def __enter__(self) -> Connection:
        _leave_the_parents(self._engine)
        try:
            self._connection = self._engine.connect()
        except DBAPIError as error:
            _name_busy(error, self._dialect)
            raise
        return self._connection

    def __exit__(self, *raised: object) -> None:
        self._connection.close()


def outside_the_pool(engine: Engine) -> DBAPIConnection:
    """A driver connection made as the engine makes them, in no transaction, for the caller to keep
    and to close.

    Of a pool of its own: the engine's may have given out all that it has, to keep this one would
    take it from others, and in a forked process it holds the parent's.
    """
    connection = engine.pool.recreate().connect()
    # What listens to the engine's connecting may have begun a transaction.
    connection.rollback()
    connection.detach()
    driver = connection.dbapi_connection
    assert driver is not None
    return driver


def _leave_the_parents(engine: Engine) -> None:
    """In a process that was forked, the pool's connections are the parent's: to use one, or to
    close it, would disturb the parent. They are left behind as they are."""
    here = os.getpid()
    if _USED_IN.setdefault(engine, here) != here:
        engine.dispose(close=False)
        _USED_IN[engine] = here


def write_transaction(
    connection: Connection,
    dialect: Dialect,
    patience_ms: int | None = None,
    *,
    single: bool = False,
) -> AbstractContextManager[None, None]:
    """One immediate transaction: the write lock first, then the block, then COMMIT.

    With `patience_ms`, where rows have locks, no statement waits for one longer than that. With
    `single`, each statement of the block is right whatever comes of the next, and nothing of
    leasestore's can fail after the last: where that makes no difference to anybody, each is a
    transaction by itself.

    Whatever goes wrong, the transaction is rolled back, the error goes on unchanged, and a
    connection that cannot be shown to be outside a transaction is thrown away.

    Raises:
        ValueError: the connection has a transaction open.
        StoreBusy: the lock was not free, or COMMIT not possible, in time. Nothing changed.
        UnsupportedEngine: this engine cannot hold an immediate transaction. Nothing changed.
    """
    return _WriteTransaction(connection, dialect, patience_ms, single)


class _WriteTransaction(AbstractContextManager[None, None]):
    def __init__(
        self, connection: Connection, dialect: Dialect, patience_ms: int | None, single: bool
    ) -> None:
        self._connection, self._dialect = connection, dialect
        self._patience_ms, self._single = patience_ms, single and patience_ms is None

    def __enter__(self) -> None:
        connection, dialect = self._connection, self._dialect
        _refuse_begun(connection)
        dialect.refuse_shared(connection)
        dialect.make_own(connection, single=self._single)
        try:
            self._transaction = connection.begin()
            dialect.take_write_lock(connection)
            if self._patience_ms is not None:
                dialect.wait_at_most(connection, self._patience_ms)
        except BaseException as error:
            self._fail(error)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._fail(error)
            return
        try:
            self._commit()
        except BaseException as failed:
            self._fail(failed)
            raise
        self._dialect.restore(self._connection)

    def _commit(self) -> None:
        self._dialect.check_still_begun(self._connection)
        self._transaction.commit()
        if self._dialect.in_transaction(self._connection):
            raise UnsupportedEngine(
                "the driver's commit() left the transaction open: leasestore cannot work with "
                "this driver setting. What was written has been rolled back"
            )

    def _fail(self, error: BaseException) -> None:
        try:
            _abandon(self._connection, self._dialect)
            _name_busy(error, self._dialect)
        finally:
            self._dialect.restore(self._connection)


@contextmanager
def read_transaction(
    connection: Connection, dialect: Dialect, *, single: bool = False
) -> Iterator[None]:
    """A transaction that takes no write lock and is rolled back in the end.

    With `single`, no two statements of the block have to see the same.

    Raises:
        ValueError: the connection has a transaction open.
        StoreBusy: the database could not be read in time.
        UnsupportedEngine: the pool gave out a connection that somebody else works on.
    """
    _refuse_begun(connection)
    dialect.refuse_shared(connection)
    dialect.make_own(connection, single=single)
    try:
        connection.begin()
        yield
    except DBAPIError as error:
        _name_busy(error, dialect)
        raise
    finally:
        _abandon(connection, dialect)
        dialect.restore(connection)


@contextmanager
def join(connection: Connection, dialect: Dialect, no_change: Update | None) -> Iterator[None]:
    """Take the write lock in a transaction of the caller's, which the caller ends, then the block.

    Raises:
        StoreBusy: the lock, or one of a row, could not be had. The caller's unit of work has to be
            run again.
        UnsupportedEngine: the caller's rollback would not undo a change made now.
    """
    with _busy_named(dialect, _RUN_AGAIN):
        dialect.join(connection, no_change)
        yield


@contextmanager
def join_for_reading(dialect: Dialect) -> Iterator[None]:
    """The same for a block that only reads; it takes no lock."""
    with _busy_named(dialect, _RUN_AGAIN):
        yield


def immediate(
    session_or_connection: Session | scoped_session[Any] | Connection,
    *,
    bind_arguments: Mapping[str, Any] | None = None,
) -> AbstractContextManager[None]:
    """Begin a unit of work of the application's with the write lock, commit it at the end.

        with leasestore.immediate(session):
            order = session.get(Order, 17)
            jobs.within(session).enqueue(...)

    Like `session.begin()`, it commits when the block ends and rolls back when it raises. On
    SQLite, nobody else can write from its first line on, so that what the block reads is still
    true when it writes, and no write in it fails because the database is busy.

    Args:
        session_or_connection: without an open transaction.
        bind_arguments: for a session with several engines, as `Session.connection` takes them.

    Raises:
        StoreBusy: the lock was not free in time; the block has not run.
        UnsupportedEngine: this engine cannot hold an immediate transaction.
        ValueError: a transaction is open already (a session that has only read has one too:
            `commit()` or `rollback()` it first), or no session or connection was given.
    """
    host = validation.host(session_or_connection)
    return _Immediate(host() if isinstance(host, scoped_session) else host, bind_arguments)


class _Immediate(AbstractContextManager[None]):
    # No generator: what the block raises goes on with nothing added, as from `session.begin()`.

    def __init__(
        self, host: Session | Connection, bind_arguments: Mapping[str, Any] | None
    ) -> None:
        self._host, self._arguments = host, bind_arguments

    def __enter__(self) -> None:
        self._begun = unbegun(self._host).begin()
        self._begun.__enter__()
        try:
            take_write_lock(self._host, self._arguments)
        except BaseException as error:
            self._begun.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self._begun.__exit__(kind, error, traceback)


class _Beginner(Protocol):
    def in_transaction(self) -> bool: ...


_B = TypeVar("_B", bound=_Beginner)


def unbegun(session_or_connection: _B) -> _B:
    """The same, if it has no transaction open."""
    if session_or_connection.in_transaction():
        raise ValueError(
            "session: expected one without an open transaction, got one that has begun, as every "
            "session has that has read something; commit() or rollback() it first"
        )
    return session_or_connection


def take_write_lock(begun: Session | Connection, bind_arguments: Mapping[str, Any] | None) -> None:
    """Make a transaction that was begun just now, and has done nothing yet, an immediate one.

    A session that is bound to a connection in a transaction of its own, as test suites have it,
    has begun nothing: it joins that one.
    """
    arguments = dict(bind_arguments or {})
    bind = begun if isinstance(begun, Connection) else begun.get_bind(**arguments)
    joined = bind is not begun and isinstance(bind, Connection) and bind.in_transaction()
    dialect = dialects.named(bind.dialect.name)
    with _busy_named(dialect):
        connection = (
            begun if isinstance(begun, Connection) else begun.connection(bind_arguments=arguments)
        )
        if joined:
            dialect.join(connection, None)
        else:
            dialect.begin_for_caller(connection)


def _refuse_begun(connection: Connection) -> None:
    if connection.in_transaction():
        raise ValueError(
            "connection: expected one without an open transaction, got one that is in a "
            "transaction (SQLAlchemy begins one at the first statement); commit or roll back "
            "first, or work inside it with repository.within(connection)"
        )


@contextmanager
def _busy_named(dialect: Dialect, message: str = _CALL_AGAIN) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        _name_busy(error, dialect, message)
        raise


def _name_busy(error: BaseException, dialect: Dialect, message: str = _CALL_AGAIN) -> None:
    if isinstance(error, DBAPIError) and dialect.is_busy(error):
        raise StoreBusy(message) from error


def _abandon(connection: Connection, dialect: Dialect) -> None:
    """Leave the connection outside a transaction, or throw it away."""
    try:
        transaction = connection.get_transaction()
        if transaction is not None:
            transaction.rollback()
        if connection.invalidated or connection.closed:
            return
        # After a failed COMMIT SQLAlchemy counts the transaction as over and sends nothing.
        connection.connection.rollback()
        sound = not dialect.in_transaction(connection)
    except Exception:  # noqa: BLE001
        # The error that led here is the one to report; this connection only has to go.
        sound = False
    except BaseException:
        connection.invalidate()
        raise
    if not sound:
        connection.invalidate()
