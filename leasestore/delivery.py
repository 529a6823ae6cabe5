"""One job from claim to finish, with the sending outside any transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Literal, Self

from sqlalchemy import Connection

from leasestore import validation
from leasestore.backoff import retry_delay
from leasestore.clock import Clock, read
from leasestore.errors import BadAck, Permanent, Retryable
from leasestore.repository import JobRepository
from leasestore.tickets import Delivered, Event, Outcome, Status, Ticket

_BASE_MS, _CAP_MS = 100, 1000
_LAST_DOUBLING = 16


def run_once(
    repository: JobRepository,
    owner: str,
    clock: Clock,
    send: Callable[[Event], object],
    jitter: float,
    lease_ms: int = 1000,
) -> Delivered | None:
    """Claim one job, send it, finish it (CONTRACT.md, "run_once").

    Claim and finish are a transaction each; while `send` runs none is open, so it may take as
    long as the lease, use the queue through another connection, and must tolerate to be called
    again for the same id (at-least-once delivery).

    Args:
        repository: where the jobs are.
        owner: this worker's name, 1 to 64 characters out of `A-Z a-z 0-9 _ -`.
        clock: gives milliseconds; read once under the write lock of the claim, and once under
            that of the finish.
        send: called once with a new dict of `id` and `qty`. It returns the literal `True` once
            the effect is done; it raises `Retryable` or `Permanent` to classify a failure.
            `Retryable("why", delay_ms=5000)` says when to try again.
        jitter: 0 to 1, scales the delay before a retry: 100 ms doubled at each attempt, at most
            1000 ms.
        lease_ms: 1 to 60000, how long the job is this worker's.

    Returns:
        The job's id, the token of this run, and the status it left: `done`, `pending` (to be
        tried again), `dead`, or `stale` (the lease ended meanwhile; nothing was written). None
        if there was nothing to do.

    Raises:
        ValueError: a bad argument, with nothing changed; or the clock's second value is invalid
            or below its first, or a `Retryable` asks for a longer delay than `Limits` allows (and
            is its cause), with the claim made: its lease ends by itself.
        BadAck: `send` returned something else. Like every other error of `send`, it leaves the
            claim as it is, and the lease ends by itself.
        StoreBusy: the write lock was not free in time for the claim, or for the finish; in the
            latter case the lease ends by itself and the job is sent again.
    """
    validation.jitter(jitter)
    validation.send(send)
    validation.queue(repository)
    forward = Forward(clock)
    ticket = repository.claim(owner, forward, lease_ms)
    if ticket is None:
        return None
    with Attempt(ticket, jitter) as attempt:
        attempt.acknowledge(send(attempt.event))
    with attempt.as_cause():
        status = repository.finish(ticket, attempt.outcome, forward, attempt.delay_ms)
    return attempt.delivered(status)


class Attempt:
    """One sending of a claimed job: the event to send, and what came of it.

    The middle of `run_once`, for those who claim and finish themselves, say because the finish
    belongs into a transaction of the application's:

        with Attempt(ticket, jitter) as attempt:
            attempt.acknowledge(send(attempt.event))
        with immediate(session):
            jobs.within(session).finish(ticket, attempt.outcome, clock, attempt.delay_ms)

    As a context manager it takes `Retryable` and `Permanent`; every other error goes on.

    Args:
        ticket: of the claimed job.
        jitter: 0 to 1, scales the delay before a retry, as in `run_once`.

    Attributes:
        event: a new dict of the job's `id` and `qty`.
        outcome: `ok`, `retry` or `permanent`, once the block has ended.
        delay_ms: for the finish; 0 unless the outcome is `retry`.
        error: the `Retryable` or `Permanent` that ended the block, without its traceback; or None.

    Raises:
        ValueError: the block ended well without `acknowledge`.
    """

    outcome: Outcome
    delay_ms = 0
    error: Retryable | Permanent | None = None

    def __init__(self, ticket: Ticket, jitter: float) -> None:
        self._ticket, self._jitter = ticket, validation.jitter(jitter)
        # A dict of its own: whatever `send` does to it, the ticket in hand is unharmed.
        self.event: Event = {"id": ticket["id"], "qty": ticket["qty"]}

    def acknowledge(self, answer: object) -> None:
        """Take the answer of `send`: only the literal True is one."""
        if answer is not True:
            raise BadAck(answer)
        self.outcome = "ok"

    def retry(self, delay_ms: int | None = None) -> None:
        """Count this attempt as failed, to be tried again: after `delay_ms`, or else after the
        delay that doubles at each attempt. The block does it for `Retryable`."""
        # Wider limits allow more attempts than the formula takes; its cap comes long before.
        attempt = min(self._ticket["attempt"], _LAST_DOUBLING)
        usual = retry_delay(attempt, _BASE_MS, _CAP_MS, self._jitter)
        self.outcome, self.delay_ms = "retry", usual if delay_ms is None else delay_ms

    @contextmanager
    def as_cause(self) -> Iterator[None]:
        """While it lasts, what is refused, a delay say, comes from what `send` raised, which is
        told nowhere else."""
        try:
            yield
        except ValueError as refused:
            raise refused from self.error

    def delivered(self, status: Status | Literal[False]) -> Delivered:
        """What `run_once` answers, once the finish has answered."""
        return {
            "id": self._ticket["id"],
            "token": self._ticket["token"],
            "status": status or "stale",
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if isinstance(error, Retryable):
            self.retry(error.delay_ms)
        elif isinstance(error, Permanent):
            self.outcome = "permanent"
        elif error is None and not hasattr(self, "outcome"):
            raise ValueError("Attempt: acknowledge what send answered before its block ends")
        else:
            return False
        # Its traceback leads to a frame that has this attempt: they would keep each other.
        self.error = error.with_traceback(None)
        return True


class Forward:
    """The same clock, refusing a value below its first one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = validation.clock(clock)
        self._first: int | None = None

    def __call__(self) -> int:
        return self._forward(self._clock())

    def on(self, connection: Connection) -> int:
        return self._forward(read(self._clock, connection))

    def _forward(self, now: int) -> int:
        if self._first is None:
            self._first = now
            return now
        return validation.integer("clock, read again", now, self._first, validation.LAST_MS)
