"""What differs between databases, one file each; here only the choice of the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sqlalchemy import Column, ColumnElement, Connection, Engine, FromClause, Select, Table, Update
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

from leasestore.errors import UnsupportedEngine


class Notices(Protocol):
    """A driver connection that listens. Where it is lost, the methods raise the driver's error."""

    def fileno(self) -> int:
        """Of the socket: there is something to read when notices have come."""
        ...

    def came(self) -> bool:
        """Whether notices have come since it was asked last; it does not wait for any."""
        ...

    def close(self) -> None: ...


class Dialect(Protocol):
    """What the rest of the library asks of a database's module."""

    def check_version(self, /) -> None:
        """Raise `UnsupportedEngine` where the database is too old for the contract."""
        ...

    def insert(self, table: Table, /) -> Any:
        """An INSERT that knows `on_conflict_do_nothing`."""
        ...

    def choose(
        self,
        key: Column[int],
        /,
        *questions: Select[Any],
        then: Select[Any] | None = None,
        fewer_than: ColumnElement[int] | None = None,
    ) -> ColumnElement[bool]:
        """A condition that holds for the rows whose keys these questions find, which are all asked
        of the same state of the table, once and for all.

        `then` is one more question. Where a statement may be a transaction by itself, it is asked
        only if the others have found fewer keys than that.

        Where rows have locks, they are locked as they are chosen, in the state in which a question
        holds for them, and those that somebody else works on are passed over.
        """
        ...

    def lock_rows(
        self, connection: Connection, lock: Select[Any], bound: Mapping[str, object], /
    ) -> None:
        """Where rows have locks, take those that this statement takes, and wait for them.

        A clock that is read before such a wait would be old after it.
        """
        ...

    def unpacked(
        self, packed: ColumnElement[str], columns: Mapping[str, TypeEngine[Any]], /
    ) -> FromClause:
        """The rows that a JSON list of objects holds, with these keys as columns; an absent key is
        NULL."""
        ...

    def now_ms(self, connection: Connection, /) -> int:
        """Milliseconds by the database's clock, when this statement runs."""
        ...

    def notify(self, connection: Connection, job: Table, /) -> None:
        """Tell everybody who listens, if and when this transaction is committed, that there may be
        a job in this table; where the database has no such thing, nothing."""
        ...

    def hearing(
        self, bind: Engine | Connection, job: Table, /
    ) -> Callable[[DBAPIConnection], Notices] | None:
        """How a driver connection comes to listen to what is said about this table: it takes one
        that is in no transaction, which is its own then. None where this driver offers no such
        thing to a thread that waits."""
        ...

    def lock_schema(self, connection: Connection, /) -> None:
        """Keep others from making or changing tables, until the transaction ends."""
        ...

    def make_own(self, connection: Connection, /, *, single: bool) -> None:
        """From now on, transactions on this connection are as those of the verbs have to be.

        With `single`, no statement of the next one needs another to be right or to see the same,
        and nobody listens to this very connection. Where a statement is a transaction by itself,
        and nobody listens to the engine who could still undo it, each may be just that.
        """
        ...

    def restore(self, connection: Connection, /) -> None:
        """Afterwards, they are again as the application has them. It raises nothing."""
        ...

    def refuse_shared(self, connection: Connection, /) -> None:
        """Raise `UnsupportedEngine` if somebody else is in a transaction on the driver connection
        under this one, as a pool with a single connection can have it."""
        ...

    def refuse_private(self, engine: Engine, /) -> None:
        """Raise `UnsupportedEngine` where each connection of this engine, or each thread, has a
        database of its own."""
        ...

    def check_still_begun(self, connection: Connection, /) -> None:
        """Raise `UnsupportedEngine` if somebody else has ended the transaction meanwhile."""
        ...

    def take_write_lock(self, connection: Connection, /) -> None:
        """Make the transaction just begun the only writer; nothing has been read in it yet.

        Raises `UnsupportedEngine` where that cannot hold, and the driver's error where the
        lock was not free within the engine's timeout (`is_busy` tells).
        """
        ...

    def wait_at_most(self, connection: Connection, patience_ms: int, /) -> None:
        """Let no statement of this transaction wait longer than that for the lock of a row, where
        there are such locks; `is_busy` tells that one did."""
        ...

    def begin_for_caller(self, connection: Connection, /) -> None:
        """The same for a transaction that the application ends.

        Raises `UnsupportedEngine` also where SQLAlchemy's rollback would not undo it.
        """
        ...

    def join(self, connection: Connection, no_change: Update | None, /) -> None:
        """Make the caller's transaction hold the write lock, where the database has one.

        `no_change` is an UPDATE that changes nothing; without it, the lock may come with the next
        statement that writes.

        Raises `UnsupportedEngine` where the caller's rollback would not undo what follows, and
        the driver's error where the lock cannot be had (`is_busy` tells).
        """
        ...

    def uniques(self, connection: Connection, table: Table, /) -> list[list[str | None]]:
        """The columns of each unique index of this table, that of a constraint included."""
        ...

    def unreflected(self, connection: Connection, table: Table, /) -> set[str] | None:
        """The names of this table's indexes; None where SQLAlchemy's inspector knows them all."""
        ...

    def differences(self, connection: Connection, table: Table, /) -> list[str]:
        """What this table, which exists, lacks of what SQLAlchemy does not reflect."""
        ...

    def in_transaction(self, connection: Connection, /) -> bool:
        """Whether the driver still holds a transaction open that it did not open by itself."""
        ...

    def is_busy(self, error: BaseException, /) -> bool:
        """Whether this error says only that somebody else held a lock for too long."""
        ...

    def is_not_a_database(self, error: BaseException, /) -> bool:
        """Whether this error says that the file holds something else."""
        ...

    def may_lack_tables(self, error: BaseException, /) -> bool:
        """Whether this error can come from tables that are not there, or not even a database."""
        ...

    def is_of_absent_tables(self, error: DBAPIError, /) -> bool:
        """Whether such an error ended the transaction, and shows by itself that it comes from a
        table or column of the statement's own."""
        ...


def _postgresql() -> Dialect:
    from leasestore.dialects import postgresql

    return postgresql


def _sqlite() -> Dialect:
    from leasestore.dialects import sqlite

    return sqlite


# Imported by whoever has such an engine: SQLAlchemy's PostgreSQL is a sixth of its whole import.
_DIALECTS: dict[str, Callable[[], Dialect]] = {"postgresql": _postgresql, "sqlite": _sqlite}


def named(name: str) -> Dialect:
    """The dialect of a database, by SQLAlchemy's name for it."""
    if name not in _DIALECTS:
        raise UnsupportedEngine(
            f"leasestore keeps its contract on {', '.join(sorted(_DIALECTS))}; this engine is for "
            f"{name}. Give the jobs an engine of their own"
        )
    dialect = _DIALECTS[name]()
    dialect.check_version()
    return dialect
