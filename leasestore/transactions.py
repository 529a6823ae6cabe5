"""Where a transaction of leasestore's own begins and ends, and nowhere else: no other module
begins, commits or rolls back (CONTRACT.md, "Transactions")."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, RootTransaction
from sqlalchemy.exc import DBAPIError

from leasestore.dialects import Dialect
from leasestore.errors import StoreBusy, UnsupportedEngine


@contextmanager
def connected(bind: Engine | Connection, dialect: Dialect) -> Iterator[Connection]:
    """A connection of the engine's pool, given back at the end; or the borrowed one, kept open."""
    if isinstance(bind, Connection):
        yield bind
        return
    with _busy_named(dialect):
        connection = bind.connect()
    with connection:
        yield connection


@contextmanager
def write_transaction(connection: Connection, dialect: Dialect) -> Iterator[None]:
    """One immediate transaction: the write lock first, then the block, then COMMIT.

    Whatever goes wrong, the transaction is rolled back, the error goes on unchanged, and a
    connection that cannot be shown to be outside a transaction is thrown away.

    Raises:
        ValueError: the connection has a transaction open.
        StoreBusy: the lock was not free, or COMMIT not possible, in time. Nothing changed.
        UnsupportedEngine: this engine cannot hold an immediate transaction. Nothing changed.
    """
    transaction = _begin(connection)
    try:
        with _busy_named(dialect):
            dialect.take_write_lock(connection)
        yield
        with _busy_named(dialect):
            transaction.commit()
        if dialect.in_transaction(connection):
            raise UnsupportedEngine(
                "the driver's commit() left the transaction open: leasestore cannot work with "
                "this driver setting. What was written has been rolled back"
            )
    except BaseException:
        _abandon(connection, transaction, dialect)
        raise


@contextmanager
def read_transaction(connection: Connection, dialect: Dialect) -> Iterator[None]:
    """A transaction that takes no write lock and is rolled back in the end.

    Raises:
        ValueError: the connection has a transaction open.
        StoreBusy: the database could not be read in time.
    """
    transaction = _begin(connection)
    try:
        with _busy_named(dialect):
            yield
    finally:
        _abandon(connection, transaction, dialect)


def _begin(connection: Connection) -> RootTransaction:
    if connection.in_transaction():
        raise ValueError(
            "connection: expected one without an open transaction, got one that is in a "
            "transaction (SQLAlchemy begins one at the first statement); commit or roll back first"
        )
    return connection.begin()


@contextmanager
def _busy_named(dialect: Dialect) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        if not dialect.is_busy(error):
            raise
        raise StoreBusy(
            "the database was locked by somebody else for longer than this engine waits; nothing "
            "was changed. Call again, or give the engine a longer timeout"
        ) from error


def _abandon(connection: Connection, transaction: RootTransaction, dialect: Dialect) -> None:
    try:
        transaction.rollback()
        if connection.invalidated:
            return
        # After a failed COMMIT SQLAlchemy counts the transaction as over and sends nothing.
        connection.connection.rollback()
        sound = not dialect.in_transaction(connection)
    except Exception:  # noqa: BLE001
        # The error that led here is the one to report; this connection only has to go.
        sound = False
    if not sound:
        connection.invalidate()
