"""The threads that work jobs: each takes one after the other, from its row to its finish."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import cast

from leasestore import validation
from leasestore.delivery import Attempt
from leasestore.errors import BadAck, LeaseStoreError
from leasestore.tickets import Outcome, Status
from leasestore.worker.delivery import Delivery
from leasestore.worker.hand import Hand
from leasestore.worker.handlers import Handler
from leasestore.worker.heartbeat import Heartbeat
from leasestore.worker.log import WHY_DEAD, kind_of, shown, tell_of
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
# Of a retry, whose deadline need not be over yet.
_WHY_DEAD = {**WHY_DEAD, "deadline": "its deadline comes before its next attempt"}
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
            # One that could not be started cannot be joined.
            if thread.is_alive():
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
        return _told(
            job, "released", "released unbegun, as the worker stops or has no place for it"
        )

    def _settled(self, job: Running, attempt: Attempt, error: BaseException | None) -> End:
        if job.finished_within is not None:
            status = self._settling.finished_within(job, job.finished_within)
            if status is not None:
                # What it answered does not matter any more; what it raised may be a bug.
                bug = None if isinstance(error, BadAck) else error
                text = f"{status} by its handler's transaction"
                return self._told_end(job, status, job.finished_within[0], text, bug)
            if error is None and attempt.outcome == "ok":
                error = LeaseStoreError(_NOT_COMMITTED)
        cut = self._cut(attempt)
        error = error or self._refused(attempt)
        if error is not None:
            if job.lost.is_set():
                # To answer something else than True is then how a handler gives up.
                bug = None if isinstance(error, BadAck) else error
                text = f"not done, and {job.what_is_over()}"
                tell_of(job, logging.WARNING, "stale", text, bug)
                return "stale"
            if self._terms.unclassified == "leave":
                return _told(job, "left", "it failed, and its lease ends by itself", error)
            attempt.retry()
        return self._finished(job, attempt, error, cut)

    def _cut(self, attempt: Attempt) -> str:
        """Cut a delay that is longer than allowed; what to say about that."""
        most, asked = (
            self._terms.repository._queue.limits.delay_ms,
            cast("object", attempt.delay_ms),
        )
        if not isinstance(asked, int) or asked <= most:
            return ""
        attempt.delay_ms = most
        return f" (asked for more than {most}, the longest: wider with Limits(delay_ms=...))"

    def _refused(self, attempt: Attempt) -> ValueError | None:
        """What is no delay at all is an error of the handler's."""
        try:
            validation.delay_ms(attempt.delay_ms, self._terms.repository._queue.limits)
        except ValueError as error:
            error.__cause__ = attempt.error
            return error
        return None

    def _finished(
        self, job: Running, attempt: Attempt, error: BaseException | None, cut: str
    ) -> End:
        status = self._settling.finish(job, attempt.outcome, attempt.delay_ms)
        raised = {} if attempt.error is None else {"error_type": kind_of(attempt.error)}
        why = "" if attempt.error is None else f": {shown(attempt.error)}"
        if status == "stale":
            others = "" if job.until_deadline else ", and another run may have it"
            text = f"too late, {job.what_is_over()}{others}{why}"
            return _told(job, "stale", text, error, **raised)
        if status == "pending":
            text = f"pending in {attempt.delay_ms} ms{cut}{why}"
            return _told(job, "retried", text, error, delay_ms=attempt.delay_ms, **raised)
        return self._told_end(job, status, attempt.outcome, status, error, cut + why, **raised)

    def _told_end(
        self,
        job: Running,
        status: Status,
        outcome: Outcome,
        text: str,
        error: BaseException | None,
        why: str = "",
        **more: object,
    ) -> End:
        """Of a dead job with the reason."""
        if status != "dead":
            return _told(job, _ENDS[status], f"{text}{why}", error, **more)
        reason = "permanent" if outcome == "permanent" else self._settling.reason_of(job)
        cause = f", {_WHY_DEAD[reason]}" if reason in _WHY_DEAD else ""
        return _told(job, "dead", f"{text}{cause}{why}", error, reason=reason, **more)


def _told(
    job: Running, end: End, text: str, error: BaseException | None = None, **more: object
) -> End:
    level = _LEVELS.get(end, logging.WARNING) if error is None else logging.ERROR
    tell_of(job, level, end, text, error, **more)
    return end
