"""The application's side of a shared transaction: its session or connection, used as it is.
Nothing here begins, commits, rolls back, expires or closes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from sqlalchemy import ClauseElement, Connection, inspect
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.orm.attributes import set_committed_value

from leasestore import operations, validation
from leasestore.models import JobMixin
from leasestore.tickets import JobState


class Host(Protocol):
    """Where an enlisted verb works, and who else looks at the rows there."""

    def connection(self) -> Connection:
        """The connection of the application's transaction, with its own work flushed to it."""
        ...

    def show(self, own: Sequence[str]) -> None:
        """Let the application's loaded objects have the values that their rows have now: the
        contract's, and those of its own attributes that a verb has set."""
        ...


class ConnectionHost:
    """A `Connection` that is in a transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def connection(self) -> Connection:
        if not self._connection.in_transaction():
            raise ValueError(
                "within: expected a connection that is in a transaction, got one that is not; "
                "begin one, or use JobRepository(connection) for transactions of the verbs' own"
            )
        return self._connection

    def show(self, own: Sequence[str]) -> None:
        """Nothing: a connection has no objects."""


class SessionHost:
    """A `Session`, or the calling thread's session of a `scoped_session`."""

    def __init__(
        self,
        session: Session | scoped_session[Any],
        job: type[JobMixin],
        change: ClauseElement,
    ) -> None:
        self._session, self._job = session, job
        # With the statement, so that a session which routes sees that it is one that writes.
        self._arguments = {"mapper": inspect(job), "clause": change}

    def connection(self) -> Connection:
        # Before anything of ours, so that an error of the application's own rows is its own.
        self._session.flush()
        return self._session.connection(bind_arguments=dict(self._arguments))

    def show(self, own: Sequence[str]) -> None:
        # Set as loaded values: a refresh would load more, and an expired object would load when
        # the application touches it, which an asynchronous one cannot.
        loaded = {
            state.identity[0]: state
            for state in map(inspect, self._session.identity_map.values())
            if isinstance(state.obj(), self._job) and state.identity
        }
        if not loaded:
            return
        columns = inspect(self._job).local_table.c
        contract = {name: columns[name] for name in JobState.__annotations__}
        for row in operations.rows_of(self.connection(), contract, list(loaded)):
            state = loaded[row["seq"]]
            for key in state.dict.keys() & row.keys():
                set_committed_value(state.obj(), key, row[key])
            # These have types of the application's own, and listeners to their loading.
            also = state.dict.keys() & set(own)
            if also:
                self._session.refresh(state.obj(), attribute_names=also)


def host_of(value: object, job: type[JobMixin], change: ClauseElement) -> Host:
    host = validation.host(value)
    return ConnectionHost(host) if isinstance(host, Connection) else SessionHost(host, job, change)
