"""The sender, `python -m examples.webhooks.sender`: claims deliveries, posts them, finishes them.

Start as many as you like. One that dies loses nothing: the lease of its delivery ends by itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx
from sqlalchemy import select

from examples.webhooks import database
from examples.webhooks.database import Database
from examples.webhooks.models import Subscription, WebhookDelivery
from leasestore import Outcome, StoreBusy, Ticket, retry_delay, system_clock

LEASE_MS = int(os.environ.get("WEBHOOKS_LEASE_MS", "10000"))
RETRY_BASE_MS, RETRY_CAP_MS = 500, 60_000
COURIERS = 4
"""Side by side in one process, so that a slow subscriber holds back no other."""

IDLE_S = 0.2

log = logging.getLogger("examples.webhooks.sender")


@dataclass(frozen=True, slots=True)
class Courier:
    """Takes one delivery after the other."""

    name: str
    db: Database
    client: httpx.AsyncClient

    async def work(self, stop: asyncio.Event) -> None:
        """Deliver until told to stop, the delivery in hand included."""
        while not stop.is_set():
            try:
                delivered = await self.deliver()
            except StoreBusy as busy:
                # Nothing was changed; a delivery in hand is sent again when its lease ends.
                log.warning("%s: %s", self.name, busy)
                delivered = False
            if not delivered:
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), IDLE_S)

    async def deliver(self) -> bool:
        """Claim, post, finish; False if there is nothing to deliver now."""
        ticket = await self.db.deliveries.claim(self.name, system_clock, LEASE_MS)
        if ticket is None:
            return False
        url, payload = await self._parcel(ticket)
        # Here no transaction is open: a slow subscriber locks nobody out of the database.
        outcome, result = await self._post(url, payload, ticket)
        status = await self.db.deliveries.finish(
            ticket,
            outcome,
            system_clock,
            retry_delay(ticket["attempt"], RETRY_BASE_MS, RETRY_CAP_MS, random.random()),  # noqa: S311
            values={"result": result},
        )
        # False: the lease ended meanwhile and the delivery may be another courier's. What came
        # of this run is dropped, its result column included; the other run will tell.
        log.info("%s token %d: %s, %s", ticket["id"], ticket["token"], result, status or "stale")
        return True

    async def _parcel(self, ticket: Ticket) -> tuple[str, dict[str, Any]]:
        # By id alone, without a look at the token: the payload is written with the job and never
        # again, so every run reads the same. A look would prove nothing either, as the lease may
        # end right after it; whether this run still counts is for the conditional UPDATE of
        # `finish` to say, and for the receiver, by the token it is sent.
        parcel = (
            select(Subscription.url, WebhookDelivery.payload)
            .join(WebhookDelivery, WebhookDelivery.subscription_id == Subscription.id)
            .where(WebhookDelivery.id == ticket["id"])
        )
        async with self.db.sessions() as session:
            url, payload = (await session.execute(parcel)).one()
        return url, payload

    async def _post(self, url: str, payload: dict[str, Any], ticket: Ticket) -> tuple[Outcome, str]:
        headers = {"Webhook-Id": ticket["id"], "Webhook-Token": str(ticket["token"])}
        try:
            # All of it in less than the lease, so that there is time left to finish.
            async with asyncio.timeout(0.75 * LEASE_MS / 1000):
                answer = await self.client.post(url, json=payload, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            return "retry", f"no answer: {type(error).__name__}"
        return judged(answer.status_code), f"answered {answer.status_code}"


def judged(status: int) -> Outcome:
    """A server's trouble passes; a refusal stays one until somebody redrives."""
    if 200 <= status < 300:
        return "ok"
    return "retry" if status >= 500 else "permanent"


async def main() -> None:
    """Work until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for ending in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(ending, stop.set)
    process = f"sender-{uuid4().hex[:8]}"
    async with database.opened() as db, httpx.AsyncClient() as client, asyncio.TaskGroup() as group:
        for number in range(COURIERS):
            group.create_task(Courier(f"{process}-{number}", db, client).work(stop))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    asyncio.run(main())
