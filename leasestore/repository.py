"""Whose transaction is it: `JobRepository` opens one of its own for each verb; `within` joins the
application's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from typing import Any, Literal, NoReturn, Self, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session

from leasestore import batch_operations, operations, validation
from leasestore.batches import Batches
from leasestore.clock import Clock
from leasestore.errors import SchemaError, StaleTicket, StoreBusy
from leasestore.host import Host, host_of
from leasestore.models import Job, JobMixin, Redrive, RedriveMixin
from leasestore.tickets import Outcome, Status, SweptJob, Ticket, Watched
from leasestore.transactions import (
    connected,
    join,
    join_for_reading,
    read_transaction,
    write_transaction,
)
from leasestore.validation import Fault, Limits
from leasestore.verbs import Queue

_T = TypeVar("_T")


class JobRepository(Batches):
    """Jobs with leases, in the application's own database.

    Each write is one short immediate transaction (CONTRACT.md, "Transactions"): with an engine
    on a pooled connection of its own; with a connection on that one, which must have no
    transaction open, is never closed, and is outside a transaction again when the call ends.
    Whatever a call raises, nothing was changed, unless it says otherwise. `within` offers the
    same verbs inside a transaction of the application's.

    Common to the verbs: times are integer milliseconds on one time base of the caller's.
    `now_ms` is such a time, from 0 to 10**15 - 60000, or a clock, a callable without arguments,
    read once when the write lock is held. `id`, `owner`, `job_id` and `note` are 1 to 64 characters
    out of `A-Z a-z 0-9 _ -`. `fault` is for tests: a callable given the name of each point
    passed; what it raises before COMMIT undoes the call. Types are strict: a bool is no int.

    Every verb raises `ValueError` for a bad argument, before anything is sent; `StoreBusy`
    where the lock was not free in time; `SchemaError` where the tables are missing;
    `UnsupportedEngine` where this engine cannot hold the transaction that is needed. Errors of
    the database itself are SQLAlchemy's. "CONTRACT.md" is in the folder `docs`.

    Args:
        bind: the application's `Engine` or `Connection`; its settings and events stay as they are.
        job: the model of the job table, a mapped class with `JobMixin`.
        redrive: the model of its audit table, a mapped class with `RedriveMixin`.
        limits: wider bounds than the contract's, see `Limits`.
        notify: on PostgreSQL, verbs that leave a job to be claimed at once (`enqueue`, `redrive`,
            `release`, `recover`, `finish` with `retry`, and those made of these) say so when
            their transaction is committed, to every `Wakeup` that listens. Not in a two-phase
            transaction, which PostgreSQL refuses then. On SQLite it changes nothing.
    """

    def __init__(
        self,
        bind: Engine | Connection,
        *,
        job: type[JobMixin] = Job,
        redrive: type[RedriveMixin] = Redrive,
        limits: Limits = Limits(),
        notify: bool = False,
    ) -> None:
        self._bind = validation.bind(bind)
        self._queue = Queue.of(self._bind.dialect.name, job, redrive, limits, notify)
        self._patience_ms: int | None = None

    def within(
        self, session_or_connection: Session | scoped_session[Any] | Connection
    ) -> EnlistedRepository:
        """The same verbs, inside the transaction of this session or connection.

        The application's commit makes the change true, its rollback undoes it. Nothing is
        begun, committed, rolled back, expired or closed here. See `EnlistedRepository`.

        Args:
            session_or_connection: a `Session`, a `scoped_session` (the calling thread's session
                is taken at each call), or a `Connection` that is in a transaction.
        """
        return EnlistedRepository(
            self._queue,
            host_of(session_or_connection, self._queue.job, self._queue.statements.no_change),
        )

    def _on(self, connection: Connection) -> JobRepository:
        """The same queue through a borrowed connection."""
        other = copy(self)
        other._bind = connection
        return other

    def _patient(self, patience_ms: int) -> Self:
        """The same queue, where no statement waits for a row longer than that."""
        other = copy(self)
        other._patience_ms = patience_ms
        return other

    def _claim_and_sweep(
        self, owner: str, now_ms: int | Clock, limit: int, lease_ms: int
    ) -> tuple[list[Ticket], list[SweptJob]]:
        """What `claim_batch` does, and which jobs its sweep found dead."""
        now = validation.moment(now_ms, self._queue.limits)
        return self._write(
            lambda connection: batch_operations.claim_up_to(
                connection, self._queue.statements, owner, now(connection), limit, lease_ms
            ),
            single=True,
        )

    def _finish_and_claim(
        self,
        ends: Sequence[tuple[Ticket, Outcome, int]],
        owner: str,
        now_ms: int | Clock,
        lease_ms: int,
        *,
        claims: Callable[[], bool],
    ) -> tuple[list[Status | None], list[Ticket], list[SweptJob]]:
        """What `finish_batch` does; then, if it `claims`, `_claim_and_sweep` for as many jobs as
        were ended, in the same transaction."""
        statements = self._queue.statements
        now = self._moment(now_ms, *(ticket["id"] for ticket, _, _ in ends))

        def work(
            connection: Connection,
        ) -> tuple[list[Status | None], list[Ticket], list[SweptJob]]:
            moment = now(connection)
            statuses = batch_operations.finish_all(connection, statements, ends, moment)
            ended = len(statuses) - statuses.count(None)
            if not (ended and claims()):
                return statuses, [], []
            claimed = batch_operations.claim_up_to(
                connection, statements, owner, moment, ended, lease_ms
            )
            return statuses, *claimed

        def frees(answer: tuple[list[Status | None], list[Ticket], list[SweptJob]]) -> bool:
            pairs = zip(answer[0], ends, strict=True)
            return any(status == "pending" and not delay for status, (_, _, delay) in pairs)

        return self._write(work, frees=frees)

    def _watch(self, now_ms: int | Clock, limit: int) -> Watched:
        """What `recover` does, for at most so many stuck jobs, and which ones they were."""
        now = validation.moment(now_ms, self._queue.limits)
        return self._write(
            lambda connection: operations.watch(
                connection, self._queue.statements, now(connection), limit
            ),
            frees=lambda found: any(job["status"] == "pending" for job in found["stuck"]),
        )

    @contextmanager
    def _keeping_connection(self) -> Iterator[JobRepository]:
        """The same queue through one connection of the pool, which is given back at the end."""
        with connected(self._bind, self._queue.dialect) as connection:
            yield self._on(connection)

    def _own_of(self, job_id: str) -> tuple[int, dict[str, Any]] | None:
        """The deadline of a job, and the application's own columns, by attribute; or None."""
        return self._read(
            lambda connection: operations.own_of(connection, self._queue.statements, job_id)
        )

    @property
    def _pooled(self) -> bool:
        """Whether each verb has a connection of its own; to another one somebody may listen."""
        return isinstance(self._bind, Engine)

    def _do_write(
        self,
        work: Callable[[Connection], _T],
        points: Fault | None,
        own: Mapping[str, Any],
        *,
        single: bool,
    ) -> _T:
        dialect = self._queue.dialect
        single = single and self._pooled
        with connected(self._bind, dialect) as connection:
            try:
                with write_transaction(connection, dialect, self._patience_ms, single=single):
                    answer = work(connection)
            except DBAPIError as error:
                _raise_named(self._queue, connection, error)
        if points is not None and _changed(answer):
            points("after-commit")
        return answer

    def _do_read(self, work: Callable[[Connection], _T]) -> _T:
        dialect = self._queue.dialect
        with connected(self._bind, dialect) as connection:
            try:
                with read_transaction(connection, dialect, single=self._pooled):
                    return work(connection)
            except DBAPIError as error:
                _raise_named(self._queue, connection, error)


class EnlistedRepository(Batches):
    """The verbs inside a transaction of the application's, from `JobRepository.within`.

    Two differences from `JobRepository`, both on purpose: a stale ticket raises `StaleTicket`
    instead of answering False or None, because an ignored answer would commit the stale
    worker's own data; and there is no point `after-commit`, the commit being the application's.

    The session is flushed first, and what that raises is the application's own error; loaded
    objects of the job model have the new values when a verb returns.

    On SQLite a verb that writes takes the write lock for the rest of the transaction.
    `StoreBusy` says that the lock could not be had: roll back and run the unit of work again.
    `leasestore.immediate` begins a unit of work with the lock, so that this cannot happen.
    """

    enlisted = True

    def __init__(self, queue: Queue, host: Host) -> None:
        self._queue, self._host = queue, host

    def finish(
        self,
        ticket: Ticket,
        outcome: Outcome,
        now_ms: int | Clock,
        delay_ms: int = 0,
        fault: Fault | None = None,
        *,
        values: Mapping[str, Any] | None = None,
    ) -> Status:
        """As `JobRepository.finish`; point `after-finish` only.

        Raises:
            StaleTicket: nothing of the job was changed; let it fail the whole transaction.
        """
        status = super().finish(ticket, outcome, now_ms, delay_ms, fault, values=values)
        return status or self._refuse(ticket)

    def renew(
        self,
        ticket: Ticket,
        now_ms: int | Clock,
        lease_ms: int = 1000,
        fault: Fault | None = None,
    ) -> Ticket:
        """As `JobRepository.renew`; point `after-renew` only.

        Raises:
            StaleTicket: nothing of the job was changed; let it fail the whole transaction.
        """
        return super().renew(ticket, now_ms, lease_ms, fault) or self._refuse(ticket)

    def release(self, ticket: Ticket, fault: Fault | None = None) -> Literal[True]:
        """As `JobRepository.release`; point `after-release` only.

        Raises:
            StaleTicket: nothing of the job was changed; let it fail the whole transaction.
        """
        return super().release(ticket, fault) or self._refuse(ticket)

    def _refuse(self, ticket: Ticket) -> NoReturn:
        raise StaleTicket(ticket, self.get(ticket["id"]))

    def _do_write(
        self,
        work: Callable[[Connection], _T],
        points: Fault | None,
        own: Mapping[str, Any],
        *,
        single: bool,
    ) -> _T:
        connection, dialect = self._connection(), self._queue.dialect
        try:
            with join(connection, dialect, self._queue.statements.no_change):
                answer = work(connection)
                self._host.show(tuple(own))
        except DBAPIError as error:
            _raise_named(self._queue, connection, error)
        return answer

    def _do_read(self, work: Callable[[Connection], _T]) -> _T:
        connection = self._connection()
        try:
            with join_for_reading(self._queue.dialect):
                return work(connection)
        except DBAPIError as error:
            _raise_named(self._queue, connection, error)

    def _connection(self) -> Connection:
        connection = self._host.connection()
        if connection.dialect.name != self._queue.database:
            raise ValueError(
                f"within: expected a connection to {self._queue.database}, as the repository has, "
                f"got one to {connection.dialect.name}; give each database its own repository"
            )
        return connection


def _changed(answer: object) -> bool:
    if isinstance(answer, (list, tuple)):
        return any(map(_changed, answer))
    return answer is not None and answer is not False


def _raise_named(queue: Queue, connection: Connection, error: DBAPIError) -> NoReturn:
    """Raise an error again; one that comes from absent tables as one that names them.

    The database is asked once more, where that is possible: the same kind of error may come from a
    trigger of the application's, and then belongs to the application.
    """
    problem = None
    if queue.dialect.may_lack_tables(error):
        problem = _schema_problem(queue, connection, error)
    if problem is None:
        raise error
    raise problem from error


def _schema_problem(queue: Queue, connection: Connection, error: DBAPIError) -> SchemaError | None:
    inside = connection.in_transaction()
    if inside and queue.dialect.is_of_absent_tables(error):
        # The application's transaction has failed with it: nothing more can be asked there.
        (told, *_) = str(error.orig).splitlines()
        return operations.schema_error_as_told(queue.tables, told)
    try:
        with nullcontext() if inside else read_transaction(connection, queue.dialect):
            missing = operations.missing(connection, queue.tables)
    except (DBAPIError, StoreBusy) as unanswered:
        if not queue.dialect.is_not_a_database(unanswered):
            return None
        found = f"{connection.engine.url.render_as_string()} is not a database"
        return SchemaError(found, (), "give the path of a queue file")
    return operations.schema_error(missing) if missing else None
