"""Renews the leases of the jobs in hand, and notices when one is lost.

Two kinds of threads share one lock. A renewer takes the job that is due first and renews it
through a connection of its own, kept while there is something to renew, so that handlers which
use up the pool do not cost a lease. The guard never touches the database: at the end of a lease,
by this process's own monotonic clock, it says that the lease is lost, whatever a renewal in
flight is doing; and where a renewal is stuck it sees to it that another renewer takes care of the
other jobs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from enum import Enum

from leasestore.clock import Clock, monotonic_ms
from leasestore.repository import JobRepository
from leasestore.tickets import Ticket
from leasestore.worker.log import Outage, tell_of
from leasestore.worker.running import NEVER, Running, Sighting

JOIN_S = 0.5
"""How long a finish waits for a renewal in flight. One that is stuck for longer changes nothing
about the finish: the row tells which of the two came first."""

# A connection that nobody uses for longer goes back to the pool, since somebody on the way to the
# server may end it meanwhile, and the pool knows how to ask.
_KEPT_MS = 60_000


class _Later(Enum):
    LATER = "nothing to do for long"


_LATER = _Later.LATER


class Heartbeat:
    """The jobs whose leases are kept alive, from `add` to `remove`.

    Args:
        places: how many jobs there are at most. There may be twice as many renewers and two more,
            each with a connection: those that are stuck may be so with jobs that are given up.
        lease_ms: of each renewal; leases are renewed when a third of it is over.
    """

    def __init__(
        self, repository: JobRepository, clock: Clock, owner: str, lease_ms: int, places: int
    ) -> None:
        self._repository, self._clock, self._owner = repository, clock, owner
        self._lease_ms, self._most = lease_ms, 2 * places + 2
        self._changed = threading.Condition()
        self._jobs: set[Running] = set()
        self._outage = Outage("renew leases", owner)
        self._threads: list[threading.Thread] = []
        self._free, self._closed = 0, False

    def open(self) -> None:
        with self._changed:
            self._start(self._guard, "guard")
            self._start_renewer()

    def close(self) -> None:
        """Renew no more; a renewal that is stuck is left to itself."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(JOIN_S)

    def add(self, job: Running) -> None:
        with self._changed:
            self._jobs.add(job)
            self._changed.notify_all()

    def pause(self, job: Running) -> None:
        """No renewal of this job begins any more; one in flight is waited for, not for long."""
        with self._changed:
            job.renewable = False
            self._changed.wait_for(lambda: not job.renewing, JOIN_S)

    def resume(self, job: Running) -> None:
        """Renew it again, unless it is lost by now."""
        with self._changed:
            job.renewable = not job.lost.is_set()
            self._changed.notify_all()

    def remove(self, job: Running) -> None:
        with self._changed:
            self._jobs.discard(job)

    def _start(self, target: Callable[[], object], name: str) -> None:
        thread = threading.Thread(target=target, name=f"{self._owner} {name}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _start_renewer(self) -> None:
        self._start(self._renew_on_and_on, "renewer")
        self._free += 1

    # The renewers

    def _renew_on_and_on(self) -> None:
        with ExitStack() as opened:
            kept: JobRepository | None = None
            while (job := self._next(idle=kept is None)) is not None:
                if job is _LATER:
                    kept = None
                    opened.close()
                    continue
                sighting = Sighting(self._clock)
                try:
                    kept = kept or opened.enter_context(self._repository._keeping_connection())
                    ticket = kept.renew(job.ticket, sighting, self._lease_ms)
                except BaseException as error:  # noqa: BLE001 - no error may end a heartbeat
                    kept = None
                    opened.close()
                    self._failed(job, error)
                else:
                    self._renewed(job, ticket, sighting)

    def _next(self, *, idle: bool) -> Running | _Later | None:
        """Waits until a job is due; None once the heartbeat is closed. One who is not idle, but has
        a connection, is told if there is nothing to do for long."""
        with self._changed:
            while not self._closed:
                job = min(self._waiting(), key=lambda job: job.due_ms, default=None)
                wait_ms = NEVER if job is None else job.due_ms - monotonic_ms()
                if job is not None and wait_ms <= 0:
                    job.renewing = True
                    self._free -= 1
                    self._changed.notify_all()
                    return job
                if wait_ms > _KEPT_MS and not idle:
                    return _LATER
                self._wait(wait_ms)
            return None

    def _waiting(self) -> list[Running]:
        """The jobs that are to be renewed at some time, and nobody is at it."""
        return [
            job
            for job in self._jobs
            if job.renewable and not job.renewing and job.due_ms < job.last_ms
        ]

    def _renewed(self, job: Running, ticket: Ticket | None, sighting: Sighting) -> None:
        with self._changed:
            if ticket is not None:
                job.ticket = ticket
                job.lost.until_ms = sighting.end_of(ticket)
                job.until_deadline = sighting.is_capped(ticket, self._lease_ms)
                job.due_ms = NEVER if job.until_deadline else sighting.at_ms + self._lease_ms / 3
            elif job.renewable:
                # Not of one that is about to be finished, or was: its row tells which.
                job.renewable = False
                job.lost.set()
            self._free_again(job)
        self._outage.over()
        tell_of(job, logging.DEBUG, "renewed", "renewed" if ticket else "not renewed")

    def _failed(self, job: Running, error: BaseException) -> None:
        """Unknown, not lost: until the lease is over by our own clock, it is tried again."""
        with self._changed:
            job.due_ms = monotonic_ms() + self._lease_ms / 12 + 1
            self._free_again(job)
        self._outage.failed(error)

    def _free_again(self, job: Running) -> None:
        job.renewing = False
        self._free += 1
        self._changed.notify_all()

    # The guard

    def _guard(self) -> None:
        while (told := self._to_tell()) is not None:
            for job in told:
                if job.lost.is_set():
                    text = f"{job.what_is_over()}; what its run comes to will not be written"
                    tell_of(job, logging.WARNING, "lost", text)
                else:
                    text = "it runs for longer than max_run_ms, and is renewed no more"
                    tell_of(job, logging.WARNING, "overlong", text)

    def _to_tell(self) -> list[Running] | None:
        """Waits until there is something to tell of a job; None once the heartbeat is closed."""
        with self._changed:
            while not self._closed:
                now = monotonic_ms()
                told = [job for job in self._jobs if job.is_to_tell(now)]
                if told:
                    return told
                self._wait(
                    min(self._help(now), *(job.tell_ms() for job in self._jobs), NEVER) - now
                )
            return None

    def _help(self, now: float) -> float:
        """Where every renewer is stuck and a job waits, start another one; when to look again."""
        if self._free or len(self._threads) > self._most:
            return NEVER
        patience_ms = self._lease_ms / 6
        neglected_ms = min((job.due_ms for job in self._waiting()), default=NEVER) + patience_ms
        if neglected_ms > now:
            return neglected_ms
        # While the process can have no more threads, the guard itself has to go on.
        with suppress(RuntimeError):
            self._start_renewer()
        return now + patience_ms

    def _wait(self, ms: float) -> None:
        self._changed.wait(None if ms == NEVER else ms / 1000)
