"""Verbs that do in one transaction what would take several: a job's end with the next one's
beginning, and the same for many jobs."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sqlalchemy import Connection

from leasestore import batch_operations, validation
from leasestore.clock import Clock
from leasestore.errors import Conflict
from leasestore.tickets import Event, Outcome, Status, Ticket
from leasestore.validation import Fault
from leasestore.verbs import Verbs


class Batches(Verbs):
    """Several verbs of the contract in one transaction and at one reading of the clock: the
    answers, and what the tables hold afterwards, are those of the single verbs in this order."""

    enlisted = False
    """Whether the transaction is the application's: then a stale ticket has to fail it."""

    def finish_and_claim(
        self,
        ticket: Ticket,
        outcome: Outcome,
        owner: str,
        now_ms: int | Clock,
        lease_ms: int = 1000,
        delay_ms: int = 0,
        *,
        values: Mapping[str, Any] | None = None,
        fault: Fault | None = None,
    ) -> tuple[Status | Literal[False], Ticket | None]:
        """`finish`, then `claim`, in one transaction: a commit less for each job.

        Args:
            outcome: of the job in hand, as for `finish`.
            owner: who takes the next job.
            lease_ms: 1 to 60000, of the next job.
            delay_ms: 0 to 60000, for `retry` of the job in hand.
            values: for the model's own columns, as for `finish`.
            fault: points `after-finish`, `after-claim`, each where it changed something, and
                `after-commit`.

        Returns:
            What `finish` answers and what `claim` answers. A stale ticket is False, and the next
            job is claimed all the same. Within a transaction of the application's it raises
            `StaleTicket` instead, and nothing is claimed.
        """
        checked = validation.ticket(ticket, self._queue.limits)
        validation.outcome(outcome)
        validation.identifier("owner", owner)
        now = self._moment(now_ms, checked["id"])
        lease = validation.lease_ms(lease_ms, self._queue.limits)
        delay = validation.delay_ms(delay_ms, self._queue.limits)
        own = validation.values(values, self._queue.own)
        points = validation.fault(fault)

        def work(connection: Connection) -> tuple[Status | None, Ticket | None]:
            return batch_operations.finish_and_claim(
                connection,
                self._queue.statements,
                checked,
                outcome,
                owner,
                now(connection),
                lease,
                delay,
                own,
                points,
                stale_raises=self.enlisted,
            )

        status, claimed = self._write(
            work, points, own, frees=lambda pair: pair[0] == "pending" and not delay
        )
        return status or False, claimed

    def claim_batch(
        self,
        owner: str,
        now_ms: int | Clock,
        limit: int,
        lease_ms: int = 1000,
        fault: Fault | None = None,
    ) -> list[Ticket]:
        """Take the first jobs whose time has come, as `claim` takes one.

        The jobs are leased from now on, all of them: take no more than can be worked before the
        leases end, and give back with `release` what cannot.

        Args:
            limit: 1 to 1000, the most jobs taken.
            lease_ms: 1 to 60000; no lease outlasts its job's deadline.
            fault: points `after-claim`, once for each job after all of them, and `after-commit`.

        Returns:
            A ticket for each, in order of their enqueueing; none if there is nothing to take.
        """
        validation.identifier("owner", owner)
        now = validation.moment(now_ms, self._queue.limits)
        most = validation.integer("limit", limit, 1, validation.MOST_AT_ONCE)
        lease = validation.lease_ms(lease_ms, self._queue.limits)
        points = validation.fault(fault)
        return self._write(
            lambda connection: batch_operations.claim_batch(
                connection, self._queue.statements, owner, now(connection), most, lease, points
            )[0],
            points,
            single=True,
        )

    def finish_batch(
        self,
        items: Sequence[tuple[Ticket, Outcome, int]],
        now_ms: int | Clock,
        fault: Fault | None = None,
    ) -> list[Status | Literal[False]]:
        """End these runs, each as `finish` does, all in one transaction.

        Args:
            items: up to 1000 tuples of ticket, outcome and delay_ms (0 to 60000, for `retry`); of
                none, nothing is sent.
            fault: points `after-finish`, once for each job after all of them, and `after-commit`.

        Returns:
            For each item, in order, the new status, or False if its ticket is stale; of two for
            the same run the second is. A stale one leaves the others as they are. Within a
            transaction of the application's it raises `StaleTicket` instead, before any of the
            jobs is changed.
        """
        limits = self._queue.limits
        checked = validation.batch("items", items, lambda item: validation.ended(item, limits))
        now = self._moment(now_ms, *(ticket["id"] for ticket, _, _ in checked))
        points = validation.fault(fault)
        if not checked:
            return []

        def work(connection: Connection) -> list[Status | None]:
            return batch_operations.finish_batch(
                connection,
                self._queue.statements,
                checked,
                now(connection),
                points,
                stale_raises=self.enlisted,
            )

        def frees(answers: list[Status | None]) -> bool:
            ends = zip(answers, checked, strict=True)
            return any(status == "pending" and not delay for status, (_, _, delay) in ends)

        return [status or False for status in self._write(work, points, frees=frees)]

    def enqueue_many(
        self,
        events: Sequence[Event],
        now_ms: int | Clock,
        ttl_ms: int,
        max_attempts: int = 3,
        *,
        delay_ms: int = 0,
        values: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[bool | Conflict]:
        """Store new jobs, each as `enqueue` does, all in one transaction and in this order.

        Args:
            events: up to 1000 dicts of exactly `id` and `qty` (1 to 1000); of none, nothing is
                sent.
            ttl_ms: 1 to 60000, the time that all attempts of a job together have.
            max_attempts: 1 to 16, the claims that each job may have.
            delay_ms: 0 to 60000 and less than `ttl_ms`, before the first claim.
            values: for the model's own columns, one dict for each event.

        Returns:
            For each event, in order: True for a new job; False if one of this id and qty exists,
            as after the first of twins in the batch; a `Conflict`, returned and not raised, if one
            of this id exists with another qty. The others are stored whatever becomes of one.

        Raises:
            StoreBusy: also, on PostgreSQL, where another transaction stores the same new ids in
                another order at the same moment. Nothing was stored: call again.
        """
        limits = self._queue.limits
        checked = validation.batch("events", events, lambda event: validation.event(event, limits))
        now = validation.moment(now_ms, limits)
        ttl = validation.ttl_ms(ttl_ms, limits)
        attempts = validation.max_attempts(max_attempts, limits)
        delay = validation.first_delay_ms(delay_ms, ttl, limits)
        own = validation.values_of_each(values, len(checked), self._queue.own)
        if not checked:
            return []
        return self._write(
            lambda connection: batch_operations.enqueue_many(
                connection,
                self._queue.statements,
                checked,
                now(connection),
                ttl,
                delay,
                attempts,
                own,
            ),
            own=dict(ChainMap(*own)),
            frees=lambda answers: True in answers and not delay,
        )

    def renew_batch(
        self,
        tickets: Sequence[Ticket],
        now_ms: int | Clock,
        lease_ms: int = 1000,
        fault: Fault | None = None,
    ) -> list[Ticket | None]:
        """Let these leases last until now_ms + lease_ms, each as `renew` does, all in one
        transaction.

        Args:
            tickets: up to 1000; of none, nothing is sent.
            lease_ms: 1 to 60000; no lease outlasts its job's deadline.
            fault: points `after-renew`, once for each job after all of them, and `after-commit`.

        Returns:
            For each ticket, in order, the one to show from now on, or None if it is stale, which
            leaves the others as they are. Within a transaction of the application's a stale one,
            or a second one for the same job, raises `StaleTicket` instead, before any of the jobs
            is changed.
        """
        limits = self._queue.limits
        checked = validation.batch("tickets", tickets, lambda item: validation.ticket(item, limits))
        now = self._moment(now_ms, *(ticket["id"] for ticket in checked))
        lease = validation.lease_ms(lease_ms, limits)
        points = validation.fault(fault)
        if not checked:
            return []
        return self._write(
            lambda connection: batch_operations.renew_batch(
                connection,
                self._queue.statements,
                checked,
                now(connection),
                lease,
                points,
                stale_raises=self.enlisted,
            ),
            points,
        )
