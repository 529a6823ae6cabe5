"""The end of a run of a job, written while the lease lasts and no longer; and what the row says
where the database gave no clear answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, TypeVar

from leasestore.clock import monotonic_ms
from leasestore.tickets import Outcome, Status
from leasestore.worker.log import counted, kind_of, shown, tell_of
from leasestore.worker.pauses import outage_ms
from leasestore.worker.running import Running, in_hand_still, was_left_by
from leasestore.worker.terms import Terms

_T = TypeVar("_T")
_LEAST_PATIENCE_MS = 50


class GivenUp(Exception):
    """It could not be done while the lease lasted."""


class Settling:
    """Finishes and releases jobs whose renewals have been stopped.

    Args:
        over: set when the run is over, whatever is still to be written.
    """

    def __init__(
        self,
        terms: Terms,
        over: threading.Event,
    ) -> None:
        # The row may be locked for a while, by a renewal that is stuck for one: rather than wait
        # for it without end, the statement is sent again.
        patience_ms = max(_LEAST_PATIENCE_MS, terms.lease_ms // 6)
        self._repository = terms.repository._patient(patience_ms)
        self._terms, self._over = terms, over

    def finish(self, job: Running, outcome: Outcome, delay_ms: int) -> Status | Literal["stale"]:
        """Write the outcome; of a lost job only look what has become of it."""
        return self.persist(job, "finish it", lambda: self._finish(job, outcome, delay_ms))

    def finished_within(self, job: Running, said: tuple[Outcome, Status]) -> Status | None:
        """The status that the handler's own transaction left, if it was committed."""
        return self.persist(job, "look it up", lambda: self._left_by(job, *said))

    def reason_of(self, job: Running) -> str | None:
        """What its row gives as the reason; None if it does not tell any more, or not now."""
        with suppress(Exception):
            row = self._repository.get(job.ticket["id"])
            if row is not None and row["token"] == job.ticket["token"]:
                return row["reason"]
        return None

    def release(self, job: Running) -> bool:
        return self.persist(job, "release it", lambda: self._release(job))

    def persist(self, job: Running, what: str, do: Callable[[], _T]) -> _T:
        """Do it, again and again while the database fails and the lease lasts.

        Raises:
            GivenUp: the lease, or the run of the worker, is over.
        """
        failures = 0
        while True:
            try:
                answer = do()
            except Exception as error:
                failures += 1
                if failures == 1:
                    text = f"cannot {what}, and goes on trying while its lease lasts"
                    text, kind = f"{text}: {shown(error)}", kind_of(error)
                    tell_of(job, logging.WARNING, "unsettled", text, error_type=kind)
                self._pause(job, failures)
                if job.lost.is_set() or self._over.is_set():
                    tell_of(job, logging.ERROR, "given-up", f"could not {what} in time")
                    raise GivenUp from error
            else:
                if failures:
                    text = f"could {what} after {counted(failures, 'failure')}"
                    tell_of(job, logging.WARNING, "settled", text)
                return answer

    def _pause(self, job: Running, failures: int) -> None:
        left_ms = job.lost.until_ms - monotonic_ms()
        pause_ms = outage_ms(failures, self._terms.poll_ms, self._terms.draw())
        self._over.wait(max(0, min(pause_ms, left_ms)) / 1000)

    def _finish(self, job: Running, outcome: Outcome, delay_ms: int) -> Status | Literal["stale"]:
        lost = job.lost.is_set()
        if not lost:
            status = self._repository.finish(job.ticket, outcome, self._terms.clock, delay_ms)
            if status:
                return status
        # The answer to an earlier try may have been cut off after its COMMIT, or the handler has
        # finished the job itself.
        left = self._left_by(job, outcome)
        if left is not None:
            return left
        return (
            self._finish(job, outcome, delay_ms) if not lost and self._caught_up(job) else "stale"
        )

    def _left_by(
        self, job: Running, outcome: Outcome, within: Status | None = None
    ) -> Status | None:
        row = self._repository.get(job.ticket["id"])
        if row is None or row["token"] != job.ticket["token"]:
            # While the lease lasts, it is claimed again, or purged, only after that commit.
            return None if job.lost.is_set() else within
        ours = was_left_by(row, outcome) and not job.was_swept(row)
        return row["status"] if ours else None

    def _release(self, job: Running) -> bool:
        released = self._repository.release(job.ticket)
        return released or (self._caught_up(job) and self._release(job))

    def _caught_up(self, job: Running) -> bool:
        """Whether a renewal had landed whose answer never came, so that only the ticket was old."""
        row = self._repository.get(job.ticket["id"])
        renewed = in_hand_still(job.ticket, row)
        if renewed is None or renewed == job.ticket:
            return False
        job.ticket = renewed
        return True
