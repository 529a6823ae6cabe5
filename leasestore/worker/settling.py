"""The end of a run of a job, written while the lease lasts and no longer; and what the row says
where the database gave no clear answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeVar

from leasestore.clock import monotonic_ms
from leasestore.tickets import Outcome, Status
from leasestore.worker.group import Group
from leasestore.worker.hand import Hand
from leasestore.worker.intake import Intake
from leasestore.worker.log import counted, kind_of, shown, tell_of
from leasestore.worker.pauses import outage_ms
from leasestore.worker.running import Running, Sighting, in_hand_still, was_left_by
from leasestore.worker.terms import Terms, Until

_T = TypeVar("_T")
_LEAST_PATIENCE_MS = 50


class GivenUp(Exception):
    """It could not be done while the lease lasted."""


@dataclass(slots=True)
class _End:
    """A job that has come to its end.

    Attributes:
        late: jobs that were claimed in the same transaction, and have no place.
    """

    job: Running
    outcome: Outcome
    delay_ms: int
    late: Sequence[Running] = ()


class Settling:
    """Finishes and releases jobs whose renewals have been stopped.

    A finish is first tried together with those that come while another one is written, in one
    transaction. While every place is taken, that claims the next jobs for the places that it frees,
    too. What fails so, or is found stale, goes on by itself.

    Args:
        stopping: whether a stop was asked for, though nobody may have read that yet.
        over: set when the run is over, whatever is still to be written.
    """

    def __init__(
        self,
        terms: Terms,
        until: Until,
        hand: Hand,
        intake: Intake,
        stopping: Callable[[], bool],
        over: threading.Event,
    ) -> None:
        # The row may be locked for a while, by a renewal that is stuck for one: rather than wait
        # for it without end, the statement is sent again.
        self._patience_ms = max(_LEAST_PATIENCE_MS, terms.lease_ms // 6)
        self._repository = terms.repository._patient(self._patience_ms)
        self._terms, self._until, self._over = terms, until, over
        self._hand, self._intake, self._stopping = hand, intake, stopping
        self._group: Group[_End, Status | Exception] = Group(self._write)

    def finish(self, job: Running, outcome: Outcome, delay_ms: int) -> Status | Literal["stale"]:
        """Write the outcome; of a lost job only look what has become of it."""
        together = self._finish_together(job, outcome, delay_ms)
        if isinstance(together, str):
            return together
        return self.persist(
            job, "finish it", lambda: self._finish(job, outcome, delay_ms), failed=together
        )

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

    def persist(
        self,
        job: Running,
        what: str,
        do: Callable[[], _T],
        *,
        failed: Exception | None = None,
    ) -> _T:
        """Do it, again and again while the database fails and the lease lasts.

        Args:
            failed: the error of a first try, if there was one.

        Raises:
            GivenUp: the lease, or the run of the worker, is over.
        """
        failures = 0
        if failed is not None:
            failures = self._failed(job, what, failed, failures)
            # Its traceback leads to frames that would keep each other.
            del failed
        while True:
            try:
                answer = do()
            except Exception as error:  # noqa: BLE001 - it may pass
                failures = self._failed(job, what, error, failures)
            else:
                if failures:
                    text = f"could {what} after {counted(failures, 'failure')}"
                    tell_of(job, logging.WARNING, "settled", text)
                return answer

    def _failed(self, job: Running, what: str, error: Exception, before: int) -> int:
        """Tell of the first failure, and pause; how many they are now."""
        failures = before + 1
        if failures == 1:
            text = f"cannot {what}, and goes on trying while its lease lasts"
            text, kind = f"{text}: {shown(error)}", kind_of(error)
            tell_of(job, logging.WARNING, "unsettled", text, error_type=kind)
        self._pause(job, failures)
        if job.lost.is_set() or self._over.is_set():
            tell_of(job, logging.ERROR, "given-up", f"could not {what} in time")
            raise GivenUp from error
        return failures

    def _pause(self, job: Running, failures: int) -> None:
        left_ms = job.lost.until_ms - monotonic_ms()
        pause_ms = outage_ms(failures, self._terms.poll_ms, self._terms.draw())
        self._over.wait(max(0, min(pause_ms, left_ms)) / 1000)

    def _finish_together(
        self, job: Running, outcome: Outcome, delay_ms: int
    ) -> Status | Exception | None:
        """The new status; or what failed; or None, if it has to go on by itself."""
        if self._terms.concurrency == 1 and not self._claims():
            return None
        # To wait for a leader, and then for the rows that this one holds, may take its patience
        # twice; after that there has to be time left.
        if job.lost.until_ms - monotonic_ms() < 3 * self._patience_ms:
            return None
        end = _End(job, outcome, delay_ms)
        answer = self._group.through(end, self._patience_ms)
        self._intake.give_back(end.late)
        return answer

    def _claims(self) -> bool:
        """Whether a finish is to claim: where a place is free, that is for the thread that does
        nothing else."""
        return self._until != "once" and self._hand.goes_on() and not self._stopping()

    def _write(self, ends: list[_End]) -> Sequence[Status | Exception | None]:
        # One may have been given up while it waited.
        live = [end for end in ends if not end.job.lost.is_set()]
        if not live:
            return [None] * len(ends)
        sighting = Sighting(self._terms.clock)
        try:
            statuses, tickets, swept = self._repository._finish_and_claim(
                [(end.job.ticket, end.outcome, end.delay_ms) for end in live],
                self._terms.owner,
                sighting,
                self._terms.lease_ms,
                claims=self._claims,
            )
        except Exception as error:  # noqa: BLE001 - it may pass
            # Of several, whose it is shows when each goes on by itself.
            return [error] if len(ends) == 1 else [None] * len(ends)
        written: dict[Running, Status] = {
            end.job: status for end, status in zip(live, statuses, strict=True) if status
        }
        # Before anybody puts down what was written, and so frees its place.
        ends[0].late = self._intake.take(tickets, sighting, written)
        self._intake.tell_swept(swept)
        return [written.get(end.job) for end in ends]

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
