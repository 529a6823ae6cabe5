"""A job in hand: its ticket, for how long this process may count on it, and how far it has got."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sqlalchemy import Connection

from leasestore.clock import Clock, monotonic_ms, read
from leasestore.tickets import JobState, Outcome, Status, Ticket

NEVER = float("inf")

_LEFT_BY: dict[Outcome, set[tuple[Status, str | None]]] = {
    "ok": {("done", None)},
    "permanent": {("dead", "permanent")},
    "retry": {("pending", "retry"), ("dead", "exhausted"), ("dead", "deadline")},
}


def was_left_by(row: JobState, outcome: Outcome) -> bool:
    """Whether the row is as a finish with this outcome leaves it."""
    return (row["status"], row["reason"]) in _LEFT_BY[outcome]


def in_hand_still(ticket: Ticket, row: JobState | None) -> Ticket | None:
    """The ticket that the row would ask for, if it is this run that has the job."""
    if row is None or row["lease_until"] is None:
        return None
    ours = row["owner"], row["token"], row["attempts"], row["qty"]
    if ours != (ticket["owner"], ticket["token"], ticket["attempt"], ticket["qty"]):
        return None
    return {**ticket, "lease_until": row["lease_until"]}


class Sighting:
    """A clock that notes when it was read, so that the end of a lease, a time of the clock's, is
    known by this process's monotonic clock as well: whatever happens to the clock, or to the
    process, from then on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.at_ms, self.now_ms = 0, 0

    def __call__(self) -> int:
        self._note(monotonic_ms(), self._clock())
        return self.now_ms

    def on(self, connection: Connection) -> int:
        self._note(monotonic_ms(), read(self._clock, connection))
        return self.now_ms

    def _note(self, before_ms: int, now_ms: int) -> None:
        # The moment before the clock was asked: so the end is never thought later than it is.
        self.at_ms, self.now_ms = before_ms, now_ms

    def end_of(self, ticket: Ticket) -> int:
        """When the lease that this clock was read for ends, by the monotonic clock."""
        return self.at_ms + ticket["lease_until"] - self.now_ms

    def is_capped(self, ticket: Ticket, lease_ms: int) -> bool:
        """Whether the lease ends with the job's deadline, and can be renewed no further."""
        return ticket["lease_until"] < self.now_ms + lease_ms


class Lost:
    """Set once the lease of a job is lost; asked and waited for as a `threading.Event` is.

    It looks at the time each time that it is asked: also a process that stood still for a while
    learns at once that its lease is over.
    """

    def __init__(self, until_ms: int) -> None:
        self.until_ms = until_ms
        self._event = threading.Event()

    def is_set(self) -> bool:
        """Whether the lease is lost: somebody else may have the job, and nothing that this run
        writes through `within` will be accepted."""
        if monotonic_ms() >= self.until_ms:
            self._event.set()
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the lease is lost, for at most so many seconds; whether it is."""
        return self.is_set() or self._event.wait(timeout) or self.is_set()

    def set(self) -> None:
        self._event.set()


class Running:
    """A claimed job on its way to the finish.

    The heartbeat changes `ticket`, `due_ms`, `until_deadline`, `renewable` and `renewing`, under
    its lock.

    Attributes:
        ticket: the one that the row asks for, as far as is known here.
        claimed_ms: when it was claimed, by the worker's clock.
        lost: set when the lease is lost.
        due_ms: when to renew the lease.
        last_ms: from when on it is renewed no more.
        renewable: whether it is renewed at all.
        renewing: whether a renewal is on its way.
        until_deadline: whether the lease ends with the job's deadline, and nobody else will have
            the job after it.
        begun: whether `send` has begun.
        finished_within: the outcome that the handler finished the job with, in its own transaction,
            and the status that this made.
    """

    def __init__(
        self, ticket: Ticket, sighting: Sighting, lease_ms: int, max_run_ms: int | None
    ) -> None:
        self.ticket = ticket
        self.claimed_ms = sighting.now_ms
        self.lost = Lost(sighting.end_of(ticket))
        self.until_deadline = sighting.is_capped(ticket, lease_ms)
        self.due_ms: float = NEVER if self.until_deadline else sighting.at_ms + lease_ms / 3
        self.last_ms: float = NEVER if max_run_ms is None else monotonic_ms() + max_run_ms
        self.renewable, self.renewing = True, False
        self._told_long, self._told_lost = False, False
        self.finished_within: tuple[Outcome, Status] | None = None
        self._lock = threading.Lock()
        self.begun, self._cancelled = False, False
        self._interrupt: Callable[[], object] | None = None

    def abandon(self) -> None:
        """The lease may last a while, but nothing is done about it any more."""
        self.until_deadline = False
        self.lost.set()

    def what_is_over(self) -> str:
        """Of a lost job, in words."""
        return "its deadline is over" if self.until_deadline else "its lease is lost"

    def may_begin(self) -> bool:
        """Whether `send` may begin, which from now on it has; not after `cancel`."""
        with self._lock:
            self.begun = not self._cancelled
            return self.begun

    def cancel(self) -> None:
        """Let `send` not begin, if it has not."""
        with self._lock:
            self._cancelled = not self.begun
            interrupt = self._interrupt
        if interrupt is not None and self._cancelled:
            interrupt()

    def on_cancel(self, interrupt: Callable[[], object] | None) -> None:
        """Have this called when `cancel` comes in time, or now if it has; None for nothing."""
        with self._lock:
            self._interrupt = interrupt
            cancelled = self._cancelled
        if interrupt is not None and cancelled:
            interrupt()

    def was_swept(self, row: JobState) -> bool:
        """Whether it was a sweep that buried the row, and no finish of this run's: those are not
        before the lease is over, and do not move `available_at` to their time."""
        buried = row["reason"] in ("exhausted", "deadline")
        return buried and self.lost.is_set() and row["available_at"] <= self.claimed_ms

    def is_to_tell(self, now_ms: float) -> bool:
        """Whether the lease is lost, or the job renewed no more, and that was not told before."""
        if not self._told_lost and self.lost.is_set():
            self._told_lost, self.renewable = True, False
            return True
        if not self._told_long and not self._told_lost and now_ms >= self.last_ms:
            self._told_long = True
            return True
        return False

    def tell_ms(self) -> float:
        """When that will be so next, as far as is known."""
        if self._told_lost:
            return NEVER
        return self.lost.until_ms if self._told_long else min(self.last_ms, self.lost.until_ms)
