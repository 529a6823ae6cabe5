"""What was claimed comes into hand, or goes back."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat

from leasestore.tickets import SweptJob, Ticket
from leasestore.worker.hand import Hand
from leasestore.worker.log import WHY_DEAD, tell, tell_of
from leasestore.worker.running import Running, Sighting
from leasestore.worker.terms import Terms

# A worker that comes back after a long time may find very many.
_MOST_TOLD = 100


class Intake:
    """Takes what a claim brought, whoever claimed it.

    Args:
        hand_on: called with each job, once it is in hand.
        hand_back: called with one that came too late, to release it.
    """

    def __init__(
        self,
        terms: Terms,
        hand: Hand,
        hand_on: Callable[[Running], object],
        hand_back: Callable[[Running], object],
    ) -> None:
        self._terms, self._hand = terms, hand
        self._hand_on, self._hand_back = hand_on, hand_back

    def take(
        self, tickets: Sequence[Ticket], sighting: Sighting, instead_of: Iterable[Running] = ()
    ) -> list[Running]:
        """Take these jobs into hand and hand them on; the ones that came too late, to be handed
        back.

        Args:
            sighting: the clock as it was read for these leases.
            instead_of: jobs whose ends are written, and whose places these get.
        """
        terms = self._terms
        late: list[Running] = []
        for ticket, leaving in zip(tickets, chain(instead_of, repeat(None)), strict=False):
            job = Running(ticket, sighting, terms.lease_ms, terms.max_run_ms)
            tell_of(job, logging.DEBUG, "claimed", "claimed")
            if self._hand.take(job, leaving):
                self._hand_on(job)
            else:
                late.append(job)
        return late

    def give_back(self, late: Iterable[Running]) -> None:
        for job in late:
            self._hand_back(job)

    def tell_swept(self, swept: Sequence[SweptJob]) -> None:
        """Count and tell the jobs that the claim found dead."""
        self._hand.count("swept", len(swept))
        for job in swept[:_MOST_TOLD]:
            tell(
                logging.WARNING,
                "swept",
                f"job {job['id']} is dead: {WHY_DEAD[job['reason']]}",
                job_id=job["id"],
                token=job["token"],
                attempt=job["attempts"],
                owner=self._terms.owner,
                reason=job["reason"],
            )
        rest = Counter(job["reason"] for job in swept[_MOST_TOLD:])
        if rest:
            late, spent = rest["deadline"], rest["exhausted"]
            causes = f"{late} of their deadline, {spent} of their attempts"
            text = f"{late + spent} more jobs are dead: {causes}"
            owner = self._terms.owner
            tell(logging.WARNING, "swept", text, owner=owner, deadline=late, exhausted=spent)
