"""One job from claim to finish, with the sending outside any transaction."""

from __future__ import annotations

from collections.abc import Callable

from leasestore import validation
from leasestore.backoff import retry_delay
from leasestore.clock import Clock
from leasestore.errors import BadAck, Permanent, Retryable
from leasestore.repository import JobRepository
from leasestore.tickets import Delivered, Event, Outcome, Ticket

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
        jitter: 0 to 1, scales the delay before a retry: 100 ms doubled at each attempt, at most
            1000 ms.
        lease_ms: 1 to 60000, how long the job is this worker's.

    Returns:
        The job's id, the token of this run, and the status it left: `done`, `pending` (to be
        tried again), `dead`, or `stale` (the lease ended meanwhile; nothing was written). None
        if there was nothing to do.

    Raises:
        ValueError: a bad argument, with nothing changed; or the clock's second value is invalid
            or below its first, with the claim made: its lease ends by itself.
        BadAck: `send` returned something else. Like every other error of `send`, it leaves the
            claim as it is, and the lease ends by itself.
        StoreBusy: the write lock was not free in time for the claim, or for the finish; in the
            latter case the lease ends by itself and the job is sent again.
    """
    validation.jitter(jitter)
    clock = _forward(validation.clock(clock))
    validation.send(send)
    ticket = repository.claim(owner, clock, lease_ms)
    if ticket is None:
        return None
    outcome, delay_ms = _send(send, ticket, jitter)
    status = repository.finish(ticket, outcome, clock, delay_ms)
    return {"id": ticket["id"], "token": ticket["token"], "status": status or "stale"}


def _send(send: Callable[[Event], object], ticket: Ticket, jitter: float) -> tuple[Outcome, int]:
    """What came of the sending: the outcome, and the delay before another attempt."""
    try:
        answer = send({"id": ticket["id"], "qty": ticket["qty"]})
    except Retryable:
        # Widened limits allow more attempts than the formula takes; the cap is reached long before.
        attempt = min(ticket["attempt"], _LAST_DOUBLING)
        return "retry", retry_delay(attempt, _BASE_MS, _CAP_MS, jitter)
    except Permanent:
        return "permanent", 0
    if answer is not True:
        raise BadAck(answer)
    return "ok", 0


def _forward(clock: Clock) -> Clock:
    """The same clock, refusing a value below its first one."""
    first: list[int] = []

    def read() -> int:
        now = clock()
        if first:
            return validation.integer("clock, read again", now, first[0], validation.LAST_MS)
        first.append(now)
        return now

    return read
