"""The watcher: the loop that finds stuck jobs, frees them, and says whose they were."""

from __future__ import annotations

import logging
import queue
import random
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from leasestore import validation
from leasestore.backoff import retry_delay
from leasestore.clock import Clock, system_clock
from leasestore.errors import LeaseStoreError
from leasestore.repository import JobRepository
from leasestore.tickets import Recovered, StuckJob, Watched


class _Guarded(logging.LoggerAdapter[logging.Logger]):
    """A logger on which applications may hang what fails: that keeps nobody from being told."""

    def process(
        self, msg: object, kwargs: MutableMapping[str, Any]
    ) -> tuple[object, MutableMapping[str, Any]]:
        # Each record keeps the extra fields that it comes with.
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        with suppress(Exception):
            super().log(level, msg, *args, **kwargs)


_log = _Guarded(logging.getLogger(__name__))

# At a time, so that one transaction stays short however many workers have died.
_AT_ONCE = 100
_OUTAGE_BASE_MS, _OUTAGE_CAP_MS = 1000, 60_000
_LAST_DOUBLING = 16


class Watcher:
    """Frees jobs whose lease has ended, and says once of each whose it was.

    Without it such a job comes back too, since a claim takes it like any other; the watcher is
    who tells that a worker died, and who frees jobs while no worker claims. It looks at nothing
    but the row: a lease that has not ended is never touched, however long the job takes.

    A watcher may run in every process. Each stuck job is reported by the one whose transaction
    changed it, after its COMMIT, once a token: through the logger `leasestore.watcher`, and
    through `report`. A job that a worker claims again before anybody looks is not reported.
    (If the connection breaks within COMMIT, what was changed may go unreported.)

    Args:
        repository: a `JobRepository` over an engine.
        clock: gives milliseconds; read once a transaction. Of several hosts give
            `database_clock(engine)`: a clock that is ahead takes jobs from those who work.
        every_ms: 1 to 86400000, the longest pause between two rounds; the shortest is half of it.
        report: called with a `StuckJob`, a new dict, for each one. What it raises is logged,
            also a `SystemExit`; to end the watcher, it calls `stop`.
        draw: a callable that returns a number from 0 to 1, by which each pause is shortened.

    Raises:
        ValueError: an argument is not what it should be.
    """

    def __init__(
        self,
        repository: JobRepository,
        clock: Clock = system_clock,
        *,
        every_ms: int = 30_000,
        report: Callable[[StuckJob], object] | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        if not isinstance(repository, JobRepository):
            raise ValueError(
                f"repository: expected a JobRepository, got {type(repository).__name__}; a "
                "watcher is synchronous, and may have an engine and a thread of its own"
            )
        self._repository = repository
        self._clock = validation.clock(clock)
        self._every_ms = validation.integer("every_ms", every_ms, 1, 86_400_000)
        self._report = validation.report(report)
        self._draw = validation.draw(draw)
        self._failures = 0
        self._stopped = False
        # Unlike an event, it may be put to by a signal handler that interrupts a get.
        self._stops: queue.SimpleQueue[None] = queue.SimpleQueue()

    def look(self) -> Recovered:
        """One round: free or bury every stuck job, sweep as `recover` does, and report.

        Each hundred of stuck jobs is a transaction of its own.

        Returns:
            What `recover` answers: how many jobs are free again, and how many died, by reason.

        Raises:
            StoreBusy, SchemaError, errors of the database: as from a verb. What was reported
            before is done.
        """
        total: Recovered = {"recovered": 0, "deadline": 0, "exhausted": 0}
        more = True
        while more:
            found = self._repository._watch(self._clock, _AT_ONCE)
            more = len(found["stuck"]) == _AT_ONCE
            self._tell(found, total)
        return total

    def run(self) -> None:
        """Look again and again, until `stop`; blocks.

        An error of the database ends neither the loop nor the process: it is logged when it
        begins and when it is over, and the pauses grow meanwhile, from one second to a minute.
        """
        while not self._stopped:
            self._pause(self._round())

    def stop(self) -> None:
        """Let `run` return, now or when it is called, after the round that it is in. May be called
        from any thread or signal handler, and more than once; a watcher stays stopped."""
        self._stopped = True
        self._stops.put(None)

    def _tell(self, found: Watched, total: Recovered) -> None:
        for job in found["stuck"]:
            reason = job["reason"]
            total["recovered" if reason == "expired" else reason] += 1
            _log_stuck(job)
            self._call_back(job)
        _log_swept(found["deadline"], found["exhausted"])
        total["deadline"] += found["deadline"]
        total["exhausted"] += found["exhausted"]

    def _call_back(self, job: StuckJob) -> None:
        if self._report is None:
            return
        try:
            self._report(job)
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - SystemExit, for one: the others are to be told
            _log.exception(
                "report raised an error for job %s; the watcher goes on",
                job["id"],
                extra={"event": "report-failed", "job_id": job["id"], "token": job["token"]},
            )

    def _share(self) -> float:
        try:
            return 1 - validation.jitter(self._draw()) / 2
        except Exception:  # noqa: BLE001 - a pause is no reason to end
            return 1.0

    def _pause(self, ms: float) -> None:
        with suppress(queue.Empty):
            self._stops.get(timeout=ms / 1000)

    def _round(self) -> float:
        """Look once, whatever comes of it; how long to pause after that."""
        shortened = self._share()
        try:
            self.look()
        except Exception as error:  # noqa: BLE001 - of the database, the clock or ourselves
            self._failures += 1
            if self._failures == 1:
                _log_outage(error)
            doublings = min(self._failures, _LAST_DOUBLING)
            return retry_delay(doublings, _OUTAGE_BASE_MS, _OUTAGE_CAP_MS, shortened)
        if self._failures:
            _log.warning(
                "can look for stuck jobs again, after %d failure%s in a row",
                self._failures,
                "" if self._failures == 1 else "s",
                extra={"event": "outage-over", "failures": self._failures},
            )
            self._failures = 0
        return self._every_ms * shortened


def _log_stuck(job: StuckJob) -> None:
    free = job["status"] == "pending"
    _log.log(
        logging.WARNING if free else logging.ERROR,
        "job %s (token %d, attempt %d): the lease of %s ended %d ms ago, the job unfinished; %s",
        job["id"],
        job["token"],
        job["attempts"],
        job["owner"],
        job["overdue_ms"],
        "free again" if free else f"dead now, {job['reason']}",
        extra={"event": "stuck", **_extra(job)},
    )


def _log_swept(deadline: int, exhausted: int) -> None:
    if deadline or exhausted:
        _log.warning(
            "pending jobs that died: %d of their deadline, %d of their attempts",
            deadline,
            exhausted,
            extra={"event": "swept", "deadline": deadline, "exhausted": exhausted},
        )


def _log_outage(error: Exception) -> None:
    cause = error.orig if isinstance(error, DBAPIError) else error
    expected = isinstance(error, SQLAlchemyError | LeaseStoreError)
    _log.warning(
        "cannot look for stuck jobs, and goes on trying: %s: %s",
        type(cause).__name__,
        cause,
        exc_info=None if expected else error,
        extra={"event": "outage"},
    )


def _extra(job: StuckJob) -> dict[str, object]:
    """Under the names that log records have, where `id` says too little."""
    names = {"id": "job_id", "attempts": "attempt"}
    return {names.get(name, name): value for name, value in job.items()}
