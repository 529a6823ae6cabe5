"""The verbs of the contract, as every repository has them: each checks what it is given and says
what has to be done; whose transaction it is done in, the repository decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, Self, TypeVar

from sqlalchemy import Column, Connection, Table

from leasestore import dialects, operations, validation
from leasestore.batch_statements import BatchStatements
from leasestore.clock import Clock
from leasestore.dialects import Dialect
from leasestore.errors import CallersError
from leasestore.models import Job, JobMixin, Redrive, RedriveMixin, own_columns, table_of
from leasestore.statements import parameters
from leasestore.tickets import Event, JobState, Outcome, Recovered, Status, Ticket
from leasestore.validation import Fault, Limits, Moment

_T = TypeVar("_T")
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Queue:
    """A pair of tables on one kind of database, and the bounds of what may be asked of it."""

    database: str
    dialect: Dialect
    job: type[JobMixin]
    tables: tuple[Table, Table]
    own: Mapping[str, Column[Any]]
    statements: BatchStatements
    limits: Limits
    notify: bool

    @classmethod
    def of(
        cls,
        database: str,
        job: type[JobMixin],
        redrive: type[RedriveMixin],
        limits: Limits,
        notify: bool,
    ) -> Self:
        dialect = dialects.named(database)
        tables = table_of(job, JobMixin), table_of(redrive, RedriveMixin)
        if (job is Job) is not (redrive is Redrive):
            raise ValueError(
                "job, redrive: expected a pair of your own models or neither, since a queue is a "
                f"pair of tables; got {job.__name__} and {redrive.__name__}"
            )
        own = own_columns(job)
        statements = _statements(database, *tables, tuple(own.items()))
        return cls(
            *(database, dialect, job, tables, own, statements),
            limits=validation.limits(limits),
            notify=validation.flag("notify", notify),
        )


# An application may make a repository at each request; to build the statements takes as long as
# some claims.
@lru_cache(maxsize=64)
def _statements(
    database: str, job: Table, redrive: Table, own: tuple[tuple[str, Column[Any]], ...]
) -> BatchStatements:
    dialect = dialects.named(database)
    made_by = dialect.insert, dialect.choose, dialect.unpacked
    return BatchStatements(job, redrive, dict(own), *made_by)


class Verbs(ABC):
    """What can be asked of a queue; `JobRepository` says what is common to the verbs."""

    _queue: Queue

    @abstractmethod
    def _do_write(
        self,
        work: Callable[[Connection], _T],
        points: Fault | None,
        own: Mapping[str, Any],
        *,
        single: bool,
    ) -> _T:
        """Do this work, which may set these columns of the application's own, in a transaction
        that holds the write lock. `single`: each of its statements is right whatever comes of
        the next, and nothing can fail after the last."""

    @abstractmethod
    def _do_read(self, work: Callable[[Connection], _T]) -> _T:
        """Do this work where it sees what is committed; it takes no write lock."""

    def _write(
        self,
        work: Callable[[Connection], _T],
        points: Fault | None = None,
        own: Mapping[str, Any] = _NOTHING,
        *,
        frees: Callable[[_T], bool] | None = None,
        single: bool = False,
    ) -> _T:
        """`frees` says of an answer whether there is now a job that can be claimed. `single`: what
        each statement of the work changes may be true before the next, whatever comes of that."""
        if frees is not None and self._queue.notify:
            work, single = self._announced(work, frees), False
        try:
            return self._do_write(work, points, own, single=single and points is None)
        except CallersError as carried:
            error = carried.error
        # Raised out here, so that it goes on with nothing added to it.
        raise error

    def _announced(
        self, work: Callable[[Connection], _T], frees: Callable[[_T], bool]
    ) -> Callable[[Connection], _T]:
        def announced(connection: Connection) -> _T:
            answer = work(connection)
            if frees(answer):
                self._queue.dialect.notify(connection, self._queue.tables[0])
            return answer

        return announced

    def _read(self, work: Callable[[Connection], _T]) -> _T:
        try:
            return self._do_read(work)
        except CallersError as carried:
            error = carried.error
        raise error

    def _moment(self, now_ms: int | Clock, *job_ids: str) -> Moment:
        """A time; or a clock, to be read when nobody else has the rows of these jobs."""
        now, queue = validation.moment(now_ms, self._queue.limits), self._queue
        if not callable(now_ms):
            return now

        def when_they_are_ours(connection: Connection) -> int:
            queue.dialect.lock_rows(connection, queue.statements.lock, parameters(ids=job_ids))
            return now(connection)

        return when_they_are_ours

    def enqueue(
        self,
        event: Event,
        now_ms: int | Clock,
        ttl_ms: int,
        max_attempts: int = 3,
        *,
        delay_ms: int = 0,
        values: Mapping[str, Any] | None = None,
    ) -> bool:
        """Store a new job, pending, to be done before now_ms + ttl_ms (CONTRACT.md, "enqueue").

        Args:
            event: a dict of exactly `id` and `qty` (1 to 1000): the job's content.
            ttl_ms: 1 to 60000, the time that all attempts together have.
            max_attempts: 1 to 16, the claims that the job may have.
            delay_ms: 0 to 60000 and less than `ttl_ms`, before the first claim.
            values: for the model's own columns, by attribute; stored with a new job only.

        Returns:
            True for a new job. False if a job of this id and qty exists, in whatever state: its
            row stays as it is, budget and values included.

        Raises:
            Conflict: a job of this id exists with another qty.

        On PostgreSQL, an enqueue that has to wait for a transaction which has enqueued the same id,
        and which is then rolled back, has read its clock before that wait.
        """
        checked = validation.event(event, self._queue.limits)
        now = validation.moment(now_ms, self._queue.limits)
        ttl = validation.ttl_ms(ttl_ms, self._queue.limits)
        attempts = validation.max_attempts(max_attempts, self._queue.limits)
        delay = validation.first_delay_ms(delay_ms, ttl, self._queue.limits)
        own = validation.values(values, self._queue.own)
        return self._write(
            lambda connection: operations.enqueue(
                connection,
                self._queue.statements,
                checked,
                now(connection),
                ttl,
                delay,
                attempts,
                own,
            ),
            own=own,
            frees=lambda new: new and not delay,
            single=True,
        )

    def claim(
        self,
        owner: str,
        now_ms: int | Clock,
        lease_ms: int = 1000,
        fault: Fault | None = None,
        *,
        job_id: str | None = None,
    ) -> Ticket | None:
        """Take the first job whose time has come, for `lease_ms` (CONTRACT.md, "claim").

        Jobs with no time or no attempts left become dead first, and stay so whatever is found.
        On PostgreSQL, where there are twenty or more of them, they may do so in transactions of
        their own right before, and stay so even if the claim then fails.

        Args:
            lease_ms: 1 to 60000; the lease never outlasts the job's deadline.
            fault: points `after-claim` and `after-commit`.
            job_id: this job or none.

        Returns:
            A ticket, to be shown whole at every later write, or None if there is nothing to
            take. The caller may work until the ticket's `lease_until`, exclusive.
        """
        validation.identifier("owner", owner)
        now = validation.moment(now_ms, self._queue.limits)
        lease = validation.lease_ms(lease_ms, self._queue.limits)
        points = validation.fault(fault)
        if job_id is not None:
            validation.identifier("job_id", job_id)
        return self._write(
            lambda connection: operations.claim(
                connection, self._queue.statements, owner, now(connection), lease, job_id, points
            )[0],
            points,
            single=True,
        )

    def finish(
        self,
        ticket: Ticket,
        outcome: Outcome,
        now_ms: int | Clock,
        delay_ms: int = 0,
        fault: Fault | None = None,
        *,
        values: Mapping[str, Any] | None = None,
    ) -> Status | Literal[False]:
        """End this run of the job by one conditional UPDATE (CONTRACT.md, "finish").

        Args:
            outcome: `ok`: the job is done. `retry`: again in `delay_ms`, while attempts and
                time are left, else dead. `permanent`: dead.
            delay_ms: 0 to 60000, for `retry`.
            fault: points `after-finish` and `after-commit`.
            values: for the model's own columns, by attribute; written in the same UPDATE, so
                that those of a stale run never land.

        Returns:
            The new status, or False, with nothing changed, if the ticket is stale.
        """
        checked = validation.ticket(ticket, self._queue.limits)
        validation.outcome(outcome)
        now = self._moment(now_ms, checked["id"])
        delay = validation.delay_ms(delay_ms, self._queue.limits)
        points = validation.fault(fault)
        own = validation.values(values, self._queue.own)
        status: Status | None = self._write(
            lambda connection: operations.finish(
                connection,
                self._queue.statements,
                checked,
                outcome,
                now(connection),
                delay,
                own,
                points,
            ),
            points,
            own,
            frees=lambda status: status == "pending" and not delay,
            single=not callable(now_ms),
        )
        return status or False

    def renew(
        self,
        ticket: Ticket,
        now_ms: int | Clock,
        lease_ms: int = 1000,
        fault: Fault | None = None,
    ) -> Ticket | None:
        """Let a lease that has not ended last until now_ms + lease_ms (CONTRACT.md, "renew").

        Args:
            lease_ms: 1 to 60000; the lease never outlasts the job's deadline.
            fault: points `after-renew` and `after-commit`.

        Returns:
            The ticket to show from now on; where `lease_until` changed, the old one is stale.
            None, with nothing changed, if the ticket is stale: an ended lease never comes back.
        """
        checked = validation.ticket(ticket, self._queue.limits)
        now = self._moment(now_ms, checked["id"])
        lease = validation.lease_ms(lease_ms, self._queue.limits)
        points = validation.fault(fault)
        return self._write(
            lambda connection: operations.renew(
                connection, self._queue.statements, checked, now(connection), lease, points
            ),
            points,
            single=not callable(now_ms),
        )

    def release(self, ticket: Ticket, fault: Fault | None = None) -> bool:
        """Give a leased job back unworked, its attempt with it (CONTRACT.md, "release").

        For a job whose work has not begun; the token stays, so the next claim has a higher one.

        Args:
            fault: points `after-release` and `after-commit`.

        Returns:
            True, or False with nothing changed if the ticket does not match its row.
        """
        checked = validation.ticket(ticket, self._queue.limits)
        points = validation.fault(fault)
        return self._write(
            lambda connection: operations.release(
                connection, self._queue.statements, checked, points
            ),
            points,
            frees=bool,
            single=True,
        )

    def redrive(
        self,
        job_id: str,
        now_ms: int | Clock,
        ttl_ms: int,
        note: str,
        fault: Fault | None = None,
    ) -> bool:
        """Give a dead job a new budget, on record (CONTRACT.md, "redrive").

        The audit row and the new budget are one transaction. The token stays.

        Args:
            ttl_ms: 1 to 60000, the time that the new attempts together have.
            note: who or why, as an identifier.
            fault: points `after-audit`, `after-redrive` and `after-commit`.

        Returns:
            True.

        Raises:
            NotDead: there is no such job, or it is not dead; a `ValueError`, like bad arguments.
        """
        validation.identifier("job_id", job_id)
        now = self._moment(now_ms, job_id)
        ttl = validation.ttl_ms(ttl_ms, self._queue.limits)
        validation.identifier("note", note)
        points = validation.fault(fault)
        return self._write(
            lambda connection: operations.redrive(
                connection, self._queue.statements, job_id, now(connection), ttl, note, points
            ),
            points,
            frees=bool,
        )

    def get(self, job_id: str) -> JobState | None:
        """The job's row as a dict of its twelve columns, or None (CONTRACT.md, "get").

        Read from the database at each call; takes no write lock.
        """
        validation.identifier("job_id", job_id)
        return self._read(
            lambda connection: operations.get(connection, self._queue.statements, job_id)
        )

    def stuck(self, now_ms: int | Clock, limit: int = 100) -> list[JobState]:
        """The rows of leased jobs whose lease has ended, the longest ended first (CONTRACT.md,
        "stuck"). It reads only, and takes no write lock.

        Args:
            limit: 1 to 100000, the most rows returned.
        """
        now = validation.moment(now_ms, self._queue.limits)
        most = validation.limit(limit)
        return self._read(
            lambda connection: operations.stuck(
                connection, self._queue.statements, now(connection), most
            )
        )

    def recover(self, now_ms: int | Clock) -> Recovered:
        """Free every job whose lease has ended (CONTRACT.md, "recover").

        Those with no time or no attempts left become dead, as at a claim; the others pending,
        with reason `expired`. A job with a live lease is never touched.

        Returns:
            How many were given back (`recovered`), and how many died, by reason.
        """
        now = validation.moment(now_ms, self._queue.limits)
        return self._write(
            lambda connection: operations.recover(
                connection, self._queue.statements, now(connection)
            ),
            frees=lambda freed: freed["recovered"] > 0,
        )
