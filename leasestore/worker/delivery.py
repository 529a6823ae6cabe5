"""What a handler sees of the job that it works."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session

from leasestore.clock import Clock
from leasestore.errors import StaleTicket
from leasestore.repository import JobRepository
from leasestore.tickets import Outcome, Status, Ticket
from leasestore.worker.heartbeat import Heartbeat
from leasestore.worker.log import bounded, tell_of
from leasestore.worker.running import Lost, Running, in_hand_still


class Delivery(Mapping[str, Any]):
    """A job on its way, for a `send` whose first parameter is annotated with this class.

        def send(delivery: Delivery) -> bool:
            ship(delivery.id, to=delivery.payload["to"])
            return True

    The columns that the application's own model has beside the contract's are read by id after the
    claim, and are attributes, `delivery.payload`; as a mapping it has them too, `delivery["payload"]`,
    with `id` and `qty`, and nothing else. (A column named as an attribute of this class, say
    `token`, can be had in the second way only.) A new one is made for each attempt.

    Attributes:
        id, qty: the job's content.
        token: tells this run of the job from every other.
        attempt: which attempt it is, from 1.
        deadline: when the job's time is over, in ms of the worker's clock.
        lost: set once the lease is lost, to be asked (`is_set()`) and waited for (`wait(seconds)`) as
            a `threading.Event`. Work that takes long looks there, and gives up.
    """  # noqa: E501

    def __init__(
        self,
        job: Running,
        deadline: int,
        own: Mapping[str, Any],
        repository: JobRepository,
        clock: Clock,
        heartbeat: Heartbeat,
    ) -> None:
        ticket = job.ticket
        self.id, self.qty = ticket["id"], ticket["qty"]
        self.token, self.attempt, self.deadline = ticket["token"], ticket["attempt"], deadline
        self.lost: Lost = job.lost
        self._job, self._repository, self._clock = job, repository, clock
        self._heartbeat = heartbeat
        self._row = {"id": self.id, "qty": self.qty, **own}

    @property
    def ticket(self) -> Ticket:
        """The ticket as it is now, a new dict: the heartbeat changes it with each renewal, so that
        one kept for later goes stale."""
        return {**self._job.ticket}

    def progress(self, text: str) -> None:
        """Say how far the work has got, in the log: event `progress`, level INFO."""
        tell_of(self._job, logging.INFO, "progress", bounded(str(text)))

    def finish_within(
        self,
        session_or_connection: Session | scoped_session[Any] | Connection,
        outcome: Outcome = "ok",
        *,
        delay_ms: int = 0,
        values: Mapping[str, Any] | None = None,
    ) -> Status:
        """Finish the job in the handler's own transaction, the one that makes its effect true.

            with immediate(session):
                session.get(Order, delivery.order_id).status = "delivered"
                delivery.finish_within(session, values={"result": "signed by M."})
            return True

        It is `repository.within(session).finish(...)` with the ticket as it is now, and renews the
        lease no more. After the handler the worker looks at the row: finished as this says, there
        is nothing left to do, whatever the handler answered; what it raised is logged. Otherwise
        the transaction was rolled back, or is not committed yet: a `True` is then an error without
        a class, and any other answer counts as it does without this call.

        In a coroutine: `await async_session.run_sync(delivery.finish_within)`.

        Args:
            session_or_connection: as for `JobRepository.within`.
            outcome: `ok`, `retry` or `permanent`.
            delay_ms: 0 to 60000, for `retry`.
            values: for the model's own columns, by attribute.

        Returns:
            The new status.

        Raises:
            StaleTicket: the lease is lost. Let it fail the whole transaction.
            StoreBusy: roll back and run the unit of work again, this call included.
        """
        enlisted = self._repository.within(session_or_connection)
        self._heartbeat.pause(self._job)
        ticket = self.ticket
        if self.lost.is_set():
            raise StaleTicket(ticket, enlisted.get(self.id))
        try:
            try:
                status = enlisted.finish(ticket, outcome, self._clock, delay_ms, values=values)
            except StaleTicket as stale:
                # A renewal was under way, and landed before its answer did.
                renewed = in_hand_still(ticket, stale.row)
                if renewed is None or renewed == ticket:
                    raise
                self._job.ticket = renewed
                status = enlisted.finish(renewed, outcome, self._clock, delay_ms, values=values)
        except BaseException:
            # An earlier call may have been committed: then there is nothing left to renew, or lose.
            if self._job.finished_within is None:
                self._heartbeat.resume(self._job)
            raise
        self._job.finished_within = outcome, status
        return status

    def __getattr__(self, name: str) -> Any:
        # Asked only for what is no attribute of the class.
        try:
            return self.__dict__["_row"][name]
        except KeyError:
            raise AttributeError(f"a Delivery of this model has no {name!r}") from None

    def __getitem__(self, name: str) -> Any:
        return self._row[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._row)

    def __len__(self) -> int:
        return len(self._row)

    def __repr__(self) -> str:
        # Without the columns: a payload may hold what no log should.
        return f"<Delivery {self.id} token {self.token} attempt {self.attempt}>"
