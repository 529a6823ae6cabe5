"""leasestore, as an application uses it: a repository on an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, create_engine, event, make_url

from benchmarks.contenders import (
    LEASE_MS,
    NOW_MS,
    OWNER,
    TTL_MS,
    Busy,
    Postgresql,
    Sqlite,
    Verbs,
    told,
)
from leasestore import Event, JobRepository, Limits, StoreBusy, Ticket, Worker, system_clock

_HOUR_MS = 3_600_000
_STORED_AT_ONCE = 1000


def engine_of(target: Sqlite | Postgresql) -> Engine:
    if isinstance(target, Postgresql):
        url = make_url(target.url).set(drivername="postgresql+psycopg")
        return create_engine(url, connect_args={"options": target.options}, pool_size=20)
    engine = create_engine(f"sqlite:///{target.path}", pool_size=20)
    synchronous = target.synchronous

    @event.listens_for(engine, "connect")
    def set_synchronous(connection: Any, _: object) -> None:
        connection.execute(f"PRAGMA synchronous = {synchronous}")

    return engine


class Library(Verbs):
    def __init__(self, target: Sqlite | Postgresql) -> None:
        super().__init__()
        self._engine = engine_of(target)
        self._jobs = JobRepository(self._engine)

    def enqueue(self, job_id: str, now_ms: int) -> bool:
        try:
            return self._jobs.enqueue({"id": job_id, "qty": 1}, now_ms, TTL_MS)
        except StoreBusy as busy:
            raise Busy from busy

    def claim(self, now_ms: int) -> Ticket | None:
        try:
            return self._jobs.claim(OWNER, now_ms, LEASE_MS)
        except StoreBusy as busy:
            raise Busy from busy

    def finish(self, ticket: Ticket, now_ms: int) -> object:
        try:
            return self._jobs.finish(ticket, "ok", now_ms)
        except StoreBusy as busy:
            raise Busy from busy

    def durability(self) -> str | None:
        if self._engine.dialect.name != "sqlite":
            return None
        with self._engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            return told(driver)

    def close(self) -> None:
        self._engine.dispose()


class Grouped(Library):
    """Many jobs a transaction."""

    def __init__(self, target: Sqlite | Postgresql, size: int) -> None:
        super().__init__(target)
        self._size = size

    def cycles(self, jobs: int) -> None:
        for _ in range(0, jobs, self._size):
            events: list[Event] = [{"id": next(self._ids), "qty": 1} for _ in range(self._size)]
            self._jobs.enqueue_many(events, NOW_MS, TTL_MS)
            tickets = self._jobs.claim_batch(OWNER, NOW_MS, self._size, LEASE_MS)
            assert len(tickets) == self._size
            self._jobs.finish_batch([(ticket, "ok", 0) for ticket in tickets], NOW_MS)


class OneStepLess(Library):
    """Each finish claims the next: two transactions a job, but for the first, which waits in hand
    from one round to the next."""

    def __init__(self, target: Sqlite | Postgresql) -> None:
        super().__init__(target)
        self.enqueue(next(self._ids), NOW_MS)
        self._ticket = self.claim(NOW_MS)

    def cycles(self, jobs: int) -> None:
        for _ in range(jobs):
            self.enqueue(next(self._ids), NOW_MS)
            assert self._ticket is not None
            status, self._ticket = self._jobs.finish_and_claim(
                self._ticket, "ok", OWNER, NOW_MS, LEASE_MS
            )
            assert status == "done"


def plain(_: object) -> bool:
    """A handler with nothing to do."""
    return True


async def awaited(_: object) -> bool:
    """The same as a coroutine function."""
    return True


class Drained(Library):
    """Jobs that were stored before are worked.

    Args:
        places: how many a worker has in hand at a time; 0: no worker, but a loop.
        send: the worker's handler.
    """

    def __init__(
        self,
        target: Sqlite | Postgresql,
        places: int,
        send: Callable[[Any], object] = plain,
    ) -> None:
        super().__init__(target)
        # Time enough for all of them: those that are left to the end wait for all the others.
        self._jobs = JobRepository(self._engine, limits=Limits(ttl_ms=_HOUR_MS))
        self._places, self._send = places, send

    def store(self, jobs: int) -> None:
        events: list[Event] = [{"id": next(self._ids), "qty": 1} for _ in range(jobs)]
        for start in range(0, jobs, _STORED_AT_ONCE):
            some = events[start : start + _STORED_AT_ONCE]
            self._jobs.enqueue_many(some, system_clock, _HOUR_MS)

    def cycles(self, jobs: int) -> None:
        if self._places:
            worker = Worker(self._jobs, self._send, concurrency=self._places)
            assert worker.run(until_empty=True).done == jobs
            return
        for _ in range(jobs):
            ticket = self._jobs.claim(OWNER, system_clock, LEASE_MS)
            assert ticket is not None
            assert self._jobs.finish(ticket, "ok", system_clock) == "done"
