"""One run of a worker: the jobs in hand, and the threads that claim, work and renew them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from leasestore.worker.claims import Claims
from leasestore.worker.hand import Hand
from leasestore.worker.handlers import handler_of
from leasestore.worker.heartbeat import Heartbeat
from leasestore.worker.intake import Intake
from leasestore.worker.log import tell_of
from leasestore.worker.places import Places
from leasestore.worker.results import Ended, Worked
from leasestore.worker.running import Running
from leasestore.worker.settling import Settling
from leasestore.worker.terms import Terms, Until, Wakeable


class Shift:
    """From `open` to `close`.

    Args:
        stopping: whether a stop was asked for, though `stop` may not have been called yet.
        claims_ended: called once no more is claimed, with the reason.
        emptied: called when the last job in hand is put down after that.
    """

    def __init__(
        self,
        terms: Terms,
        wakeup: Wakeable,
        until: Until,
        stopping: Callable[[], bool],
        claims_ended: Callable[[Ended | BaseException], object],
        emptied: Callable[[], object],
    ) -> None:
        self._over = threading.Event()
        self._hand = Hand(terms.concurrency, emptied)
        self._heartbeat = Heartbeat(
            terms.repository, terms.clock, terms.owner, terms.lease_ms, terms.concurrency
        )
        self._handler = handler_of(terms.send, terms.owner)
        intake = Intake(terms, self._hand, hand_on=self._take_up, hand_back=self._give_back)
        settling = Settling(terms, until, self._hand, intake, stopping, self._over)
        self._places = Places(terms, self._handler, self._hand, self._heartbeat, settling)
        self._claims = Claims(terms, self._hand, wakeup, until, intake, claims_ended)

    def open(self) -> None:
        self._handler.open()
        self._heartbeat.open()
        self._places.open()
        self._claims.open()

    def stop(self) -> None:
        """Claim no more, and begin none of the jobs in hand that have not begun."""
        self._hand.stop()
        self._claims.stop()

    @property
    def idle(self) -> bool:
        return not self._hand.jobs()

    def close(self, ended: Ended) -> Worked:
        """End every thread that can be ended. The jobs still in hand are left to their leases."""
        self._over.set()
        self.stop()
        left, worked = self._hand.sum_up(ended)
        for job in left:
            job.abandon()
            text = "the worker ends before it has; its lease ends by itself"
            tell_of(job, logging.WARNING, "abandoned", text)
        self._places.close(wait=not left)
        self._heartbeat.close()
        self._handler.close()
        self._claims.close()
        return worked

    def _take_up(self, job: Running) -> None:
        self._heartbeat.add(job)
        self._places.work(job)

    def _give_back(self, job: Running) -> None:
        self._places.release(job)
