"""A courier, a process of its own: claims orders, posts them to the receiver, finishes them."""

from __future__ import annotations

import json
import sys
import threading
from contextlib import closing
from http.client import HTTPConnection, HTTPException

from sqlalchemy import URL, Engine, create_engine

from leasestore import (
    Clock,
    Event,
    Fault,
    JobRepository,
    Permanent,
    Retryable,
    StoreBusy,
    Ticket,
    run_once,
    system_clock,
)
from leasestore.demo import protocol
from leasestore.demo.facts import Fact, What

LEASE_MS = 1500
"""Long enough for a delivery on a busy machine, short enough to wait for its end."""

_IDLE_S = 0.05
_ANSWER_S = 2


class Courier(JobRepository):
    """A repository that tells of its claims, and what is done with one of them.

    Args:
        engine: of the queue's database.
        owner: the courier's name.
        port: where the receiver listens on loopback.
        doomed: after the delivery of this order it waits to be killed.
        end: set when the courier is to stop.
    """

    def __init__(
        self, engine: Engine, owner: str, port: int, doomed: str | None, end: threading.Event
    ) -> None:
        super().__init__(engine)
        self._owner, self._port, self._doomed, self._end = owner, port, doomed, end
        self._token = 0

    def work(self) -> None:
        """Deliver order after order until told to stop."""
        while not self._end.is_set():
            if not self.deliver():
                self._end.wait(_IDLE_S)

    def deliver(self) -> bool:
        """Deliver one order; False if there is none now."""
        try:
            done = run_once(self, self._owner, system_clock, self.send, 1, LEASE_MS)
        except StoreBusy:
            return False
        if done is None:
            return False
        self._report("finished", done["id"], done["status"])
        return True

    def claim(
        self,
        owner: str,
        now_ms: int | Clock,
        lease_ms: int = LEASE_MS,
        fault: Fault | None = None,
        *,
        job_id: str | None = None,
    ) -> Ticket | None:
        ticket = super().claim(owner, now_ms, lease_ms, fault, job_id=job_id)
        if ticket is not None:
            self._token = ticket["token"]
            self._report("claimed", ticket["id"])
        return ticket

    def send(self, order: Event) -> bool:
        """Post one order; once the receiver has answered, it has committed."""
        run = {"Lease-Owner": self._owner, "Lease-Token": str(self._token)}
        answer = post(self._port, order, run)
        self._report("sent", order["id"], answer)
        if order["id"] == self._doomed:
            self._end.wait()
            # Not killed, but left alone: the lease stays, as it would after a kill.
            sys.exit()
        return True

    def _report(self, what: What, job: str, detail: str = "") -> None:
        protocol.report(Fact(system_clock(), self._owner, what, job, self._token, detail))


def post(port: int, order: Event, headers: dict[str, str]) -> str:
    """The receiver's answer to an order; what is not 200 is an error to retry or a final one."""
    # Not urllib.request: it would take loopback to the proxy of the environment.
    with closing(HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S)) as connection:
        try:
            connection.request("POST", "/", json.dumps(order), headers)
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        except (OSError, HTTPException) as error:
            raise Retryable(f"no answer from the receiver: {error}") from error
    if answer.status == 200:
        return text
    kind = Permanent if 400 <= answer.status < 500 else Retryable
    raise kind(f"the receiver answered {answer.status}: {text}")


def main() -> None:
    """Told what to work on, work until the input ends."""
    told = protocol.orders()
    engine = create_engine(URL.create("sqlite", database=told["queue"]))
    end = protocol.end_requested()
    Courier(engine, told["owner"], told["port"], told["doomed"], end).work()
    engine.dispose()


if __name__ == "__main__":
    main()
