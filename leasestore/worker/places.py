"""The threads that work jobs: each takes one after the other, from its row to its finish."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from queue import SimpleQueue

from leasestore import validation
from leasestore.delivery import Attempt
from leasestore.errors import BadAck, LeaseStoreError
from leasestore.tickets import Status
from leasestore.worker.delivery import Delivery
from leasestore.worker.hand import Hand
from leasestore.worker.handlers import Handler
from leasestore.worker.heartbeat import Heartbeat
from leasestore.worker.log import shown, tell_of
from leasestore.worker.results import End
from leasestore.worker.running import Running
from leasestore.worker.settling import GivenUp, Settling
from leasestore.worker.terms import Terms

_JOIN_S = 1.0
_ENDS: dict[Status, End] = {"done": "done", "pending": "retried", "dead": "dead"}
_NOT_COMMITTED = (
    "send answered True after finish_within, but by the row its transaction was rolled back, or is "
    "not committed yet: commit before send returns"
)
_LEVELS: dict[End, int] = {"done": logging.INFO, "released": logging.INFO}


class Places:
    """As many threads as there are places. They are daemons that nobody has to wait for: a handler
    that never comes back keeps no process alive."""

    def __init__(
        self, terms: Terms, handler: Handler, hand: Hand, heartbeat: Heartbeat, settling: Settling
    ) -> None:
        self._terms, self._handler, self._hand = terms, handler, hand
        self._heartbeat, self._settling = heartbeat, settling
        self._queue: SimpleQueue[Running | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work_on, name=f"{terms.owner} place {n}", daemon=True)
            for n in range(1, terms.concurrency + 1)
        ]

    def open(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self, *, wait: bool) -> None:
        """Let the threads end, each when it has nothing more in hand."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads if wait else ():
            thread.join(_JOIN_S)

    def work(self, job: Running) -> None:
        """Have a free place work this one."""
        self._queue.put(job)

    def release(self, job: Running) -> None:
        """Give back one that was claimed too late to be worked."""
        end: End = "left"
        with suppress(GivenUp):
            end = self._released(job)
        self._hand.count(end)

    def _work_on(self) -> None:
        while (job := self._queue.get()) is not None:
            self._work(job)
            # A job is not kept until the next one comes.
            del job

    def _work(self, job: Running) -> None:
        end: End = "left"
        try:
            end = self._worked(job)
        except GivenUp:
            pass
        except BaseException as error:  # noqa: BLE001 - no job may cost a place
            tell_of(
                job, logging.ERROR, "left", "the worker failed; its lease ends by itself", error
            )
        finally:
            self._heartbeat.remove(job)
            self._hand.put_down(job, end)

    def _worked(self, job: Running) -> End:
        attempt = Attempt(job.ticket, self._terms.draw())
        try:
            error = self._handler(job, attempt, self._what_to_send(job, attempt))
        finally:
            self._heartbeat.pause(job)
        try:
            return self._settled(job, attempt, error) if job.begun else self._released(job)
        finally:
            # Its traceback leads to this frame, by way of the callers: they would keep each other.
            del error

    def _what_to_send(self, job: Running, attempt: Attempt) -> object:
        if not self._terms.wants_delivery:
            return attempt.event
        repository = self._terms.repository
        row = self._settling.persist(job, "read it", lambda: repository._own_of(job.ticket["id"]))
        if row is None:
            tell_of(job, logging.WARNING, "gone", "its row is gone, and was not sent")
            raise GivenUp
        deadline, own = row
        return Delivery(job, deadline, own, repository, self._terms.clock, self._heartbeat)

    def _released(self, job: Running) -> End:
        if not self._settling.release(job):
            return _told(job, "stale", "its lease was over before it began")
        return _told(job, "released", "released, as the worker stops and it has not begun")

    def _settled(self, job: Running, attempt: Attempt, error: BaseException | None) -> End:
        if job.finished_within is not None:
            status = self._settling.finished_within(job, job.finished_within)
            if status is not None:
                # What it answered does not matter any more; what it raised may be a bug.
                bug = None if isinstance(error, BadAck) else error
                return _told(job, _ENDS[status], f"{status} by its handler's transaction", bug)
            if error is None and attempt.outcome == "ok":
                error = LeaseStoreError(_NOT_COMMITTED)
        error = error or self._refused(attempt)
        if error is not None:
            if job.lost.is_set():
                # To answer something else than True is then how a handler gives up.
                bug = None if isinstance(error, BadAck) else error
                tell_of(job, logging.WARNING, "stale", "not done, and its lease is lost", bug)
                return "stale"
            if self._terms.unclassified == "leave":
                return _told(job, "left", "it failed, and its lease ends by itself", error)
            attempt.retry()
        return self._finished(job, attempt, error)

    def _refused(self, attempt: Attempt) -> ValueError | None:
        """A delay that the finish would refuse is an error of the handler's."""
        try:
            validation.delay_ms(attempt.delay_ms, self._terms.repository._queue.limits)
        except ValueError as error:
            return error
        return None

    def _finished(self, job: Running, attempt: Attempt, error: BaseException | None) -> End:
        status = self._settling.finish(job, attempt.outcome, attempt.delay_ms)
        why = "" if attempt.error is None else f": {shown(attempt.error)}"
        if status == "stale":
            return _told(job, "stale", f"too late, another run may have it{why}", error)
        again = f" in {attempt.delay_ms} ms" if status == "pending" else ""
        return _told(job, _ENDS[status], f"{status}{again}{why}", error)


def _told(job: Running, end: End, text: str, error: BaseException | None = None) -> End:
    level = _LEVELS.get(end, logging.WARNING) if error is None else logging.ERROR
    tell_of(job, level, end, text, error)
    return end
