"""The thread that claims: a job for each free place, until told to stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from leasestore.errors import SchemaError, UnsupportedEngine
from leasestore.worker.hand import Hand
from leasestore.worker.intake import Intake
from leasestore.worker.log import Outage, kind_of, shown, tell
from leasestore.worker.pauses import idle_ms, outage_ms
from leasestore.worker.results import Ended
from leasestore.worker.running import Running, Sighting
from leasestore.worker.terms import Terms, Until, Wakeable

_JOIN_S = 1.0


class Claims:
    """Claims for the places that are free. (While none is, the finishes claim for the places that
    they free, see `settling`.)

    Args:
        until: when to end if no stop comes.
        ended: called once, with how it ended, or with the error that made it useless to begin.
    """

    def __init__(
        self,
        terms: Terms,
        hand: Hand,
        wakeup: Wakeable,
        until: Until,
        intake: Intake,
        ended: Callable[[Ended | BaseException], object],
    ) -> None:
        self._terms, self._hand, self._wakeup, self._until = terms, hand, wakeup, until
        self._intake, self._ended = intake, ended
        self._outage = Outage("claim", terms.owner)
        self._stopping = threading.Event()
        self._proven, self._deaf, self._idle_rounds = False, False, 0
        self._thread = threading.Thread(target=self._run, name=f"{terms.owner} claims", daemon=True)

    def open(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Claim no more. A claim that is under way is released when it comes back."""
        again = self._stopping.is_set()
        self._stopping.set()
        try:
            self._wakeup.wake()
        except Exception as error:  # noqa: BLE001 - its wait has an end of its own
            if not again:
                text = f"the wakeup does not wake, and the worker sits its wait out: {shown(error)}"
                tell(logging.WARNING, "wakeup-failed", text, owner=self._terms.owner)

    def close(self) -> None:
        # It may not have been started.
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            ended: Ended | BaseException = self._claim_on()
        except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
            ended = error
        self._hand.close()
        self._ended(ended)

    def _claim_on(self) -> Ended:
        while free := self._hand.free_places():
            # Noted before the claim: a job that is put down meanwhile may have enqueued another.
            in_hand = self._hand.jobs()
            try:
                claimed, late = self._claim(1 if self._until == "once" else free)
            except (SchemaError, UnsupportedEngine) as error:
                if not self._proven:
                    raise
                self._after_failure(error)
            except Exception as error:  # noqa: BLE001 - of the database or the clock: it may pass
                self._after_failure(error)
            else:
                self._outage.over()
                self._intake.give_back(late)
                ended = self._after_claim(claimed, in_hand)
                if ended is not None:
                    return ended
        return "stopped"

    def _claim(self, limit: int) -> tuple[bool, list[Running]]:
        """Whether there was anything, and what of it came too late."""
        terms = self._terms
        if terms.wants_delivery and not self._proven:
            # Before anything is claimed: do the tables have the model's columns?
            terms.repository._own_of(terms.owner)
        sighting = Sighting(terms.clock)
        tickets, swept = terms.repository._claim_and_sweep(
            terms.owner, sighting, limit, terms.lease_ms
        )
        self._proven = True
        self._intake.tell_swept(swept)
        return bool(tickets), self._intake.take(tickets, sighting)

    def _after_claim(self, claimed: bool, in_hand: list[Running]) -> Ended | None:
        if claimed:
            self._idle_rounds = 0
            return "once" if self._until == "once" else None
        if self._until == "stopped":
            self._idle()
        elif not in_hand:
            return "empty"
        else:
            self._hand.wait_for_one_of(in_hand)
        return None

    def _idle(self) -> None:
        self._idle_rounds += 1
        pause_ms = idle_ms(self._idle_rounds, self._terms.poll_ms)
        try:
            woken = self._wakeup.wait(pause_ms)
        except Exception as error:  # noqa: BLE001 - without it, there is still the poll
            if not self._deaf:
                text = f"the wakeup fails, and the worker only polls: {shown(error)}"
                kind, owner = kind_of(error), self._terms.owner
                tell(logging.WARNING, "wakeup-failed", text, owner=owner, error_type=kind)
            self._deaf = True
            self._stopping.wait(pause_ms / 1000)
        else:
            self._deaf = False
            if woken:
                self._idle_rounds = 0

    def _after_failure(self, error: Exception) -> None:
        failures = self._outage.failed(error)
        pause_ms = outage_ms(failures, self._terms.poll_ms, self._terms.draw())
        self._stopping.wait(pause_ms / 1000)
