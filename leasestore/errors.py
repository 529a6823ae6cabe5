"""What can go wrong, as types. Bad arguments are `ValueError`; errors that are not ours stay as
they are."""

from __future__ import annotations

from collections.abc import Sequence

from leasestore.tickets import JobState, Status, Ticket


class CallersError(BaseException):
    """Carries an error of a caller's clock or fault point past our own handlers, so that it is
    taken for nothing else on its way. It never reaches a caller itself."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class LeaseStoreError(Exception):
    """Above every error of leasestore's own."""


class Conflict(LeaseStoreError):
    """A job of this id exists with another qty: the same id was given to different work.

    Attributes: `job_id`, `stored_qty` (what the table holds), `qty` (what was enqueued).
    """

    def __init__(self, job_id: str, stored_qty: int, qty: int) -> None:
        super().__init__(
            f"job {job_id!r} exists with qty {stored_qty}, enqueued now with qty {qty}: "
            "give other work another id"
        )
        self.job_id, self.stored_qty, self.qty = job_id, stored_qty, qty

    def __reduce__(self) -> tuple[type[Conflict], tuple[str, int, int]]:
        return type(self), (self.job_id, self.stored_qty, self.qty)


class Retryable(LeaseStoreError):
    """Raised by `send`: this attempt failed, another may succeed. The job is tried again after
    a delay, as long as attempts and time are left.

        raise Retryable("the carrier asks for patience", delay_ms=5000)

    Attribute: `delay_ms`, how long to wait before the next attempt, from 0 to 60000 (or what
    `Limits` allows; the finish refuses more, and a `Worker` cuts it to that); None for the usual
    delay, doubled at each attempt.
    """

    # For subclasses that do not call this constructor.
    delay_ms: int | None = None

    def __init__(self, *args: object, delay_ms: int | None = None) -> None:
        if delay_ms is not None and (type(delay_ms) is not int or delay_ms < 0):
            raise ValueError(
                f"delay_ms: expected int from 0, in milliseconds, or None; got "
                f"{type(delay_ms).__name__} {delay_ms!r:.80}"
            )
        super().__init__(*args)
        self.delay_ms = delay_ms


class Permanent(LeaseStoreError):
    """Raised by `send`: no attempt can succeed. The job becomes dead, reason `permanent`."""


class BadAck(LeaseStoreError):
    """`send` answered with something other than the literal `True`; the lease stays as it is.

    Attribute: `answer`, what came instead.
    """

    def __init__(self, answer: object) -> None:
        super().__init__(
            f"send must return True once the effect is done, got {type(answer).__name__}; "
            "raise Retryable or Permanent to report a failure"
        )
        self.answer = answer

    def __reduce__(self) -> tuple[type[BadAck], tuple[object]]:
        return type(self), (self.answer,)


class StaleTicket(LeaseStoreError):
    """A ticket no longer matches its row, or its lease or deadline has passed.

    Attributes: `ticket`, and `row`, what the table says now (`None`: no such job).
    """

    def __init__(self, ticket: Ticket, row: JobState | None) -> None:
        now = "no such job" if row is None else f"{row['status']}, token {row['token']}"
        super().__init__(
            f"ticket of job {ticket['id']!r} with token {ticket['token']} is stale; the table "
            f"says: {now}. Roll back what this run did: another run may own the job"
        )
        self.ticket, self.row = ticket, row

    def __reduce__(self) -> tuple[type[StaleTicket], tuple[Ticket, JobState | None]]:
        return type(self), (self.ticket, self.row)


class NotDead(LeaseStoreError, ValueError):
    """Only a dead job can be redriven.

    Attributes: `job_id`, and `status`, what the job is instead (`None`: there is no such job).
    """

    def __init__(self, job_id: str, status: Status | None) -> None:
        found = "there is no such job" if status is None else f"it is {status}"
        super().__init__(f"job_id: expected the id of a dead job, got {job_id!r}: {found}")
        self.job_id = job_id
        self.status: Status | None = status

    def __reduce__(self) -> tuple[type[NotDead], tuple[str, Status | None]]:
        return type(self), (self.job_id, self.status)


class StoreBusy(LeaseStoreError):
    """The write lock was not free in time. Nothing was changed and nothing is known about any
    job: call again, or give the engine a longer timeout."""


class SchemaError(LeaseStoreError):
    """The database does not hold the tables that leasestore needs.

    Attributes: `missing`, the absent tables and columns (`table` or `table.column`; empty where
    only the message tells, in a transaction of the application's on PostgreSQL), and `remedy`, what
    mends it.
    """

    def __init__(self, problem: str, missing: Sequence[str], remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem, self.missing, self.remedy = problem, tuple(missing), remedy

    def __reduce__(self) -> tuple[type[SchemaError], tuple[str, tuple[str, ...], str]]:
        return type(self), (self.problem, self.missing, self.remedy)


class UnsupportedEngine(LeaseStoreError):
    """The engine cannot keep the contract: its database, version or driver setting is named."""
