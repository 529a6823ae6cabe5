"""The worker: `python -m examples.shop.worker`. Start as many as there is work for."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import threading
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from flask import Flask
from sqlalchemy import select

from examples.shop import deliveries
from examples.shop.app import create_app
from examples.shop.models import Delivery, Order, db
from leasestore import (
    Outcome,
    Permanent,
    Retryable,
    StaleTicket,
    Ticket,
    immediate,
    retry_delay,
    system_clock,
)

IDLE_SECONDS = 0.1
BASE_MS, CAP_MS = 500, 60_000

log = logging.getLogger("shop.worker")


def deliver_next(app: Flask, owner: str) -> bool:
    """Claim a delivery, hand it to the carrier, finish it. False: there is none to claim.

    Each step at the database has an app context of its own, at whose end Flask-SQLAlchemy closes
    the session; so no transaction is open while the carrier takes its time.
    """
    with app.app_context():
        ticket = deliveries.repository().claim(owner, system_clock, app.config["LEASE_MS"])
        if ticket is None:
            return False
        parcel = parcel_of(ticket)
    try:
        # Half the lease at most, so that an answer leaves time to finish.
        timeout = app.config["LEASE_MS"] / 2000
        reference = hand_over(app.config["CARRIER_URL"], parcel, timeout)
        with app.app_context():
            succeed(ticket, reference)
    except (Retryable, Permanent) as error:
        with app.app_context():
            fail(ticket, error)
    except StaleTicket as error:
        log.warning("%s came too late: %s", ticket["id"], error)
    return True


def parcel_of(ticket: Ticket) -> dict[str, Any]:
    order = order_of(ticket)
    return {
        "id": ticket["id"],
        "quantity": ticket["qty"],
        "product": order.product.sku,
        "address": order.customer.address,
    }


def order_of(ticket: Ticket) -> Order:
    found = db.session.scalars(select(Order).join(Delivery).where(Delivery.id == ticket["id"]))
    return found.one()


def hand_over(url: str, parcel: dict[str, Any], timeout: float) -> str:
    """Give the carrier a parcel; it knows by the id if it has it already. Its reference."""
    body = json.dumps(parcel).encode()
    request = Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 - our setting
    try:
        with urlopen(request, timeout=timeout) as answer:  # noqa: S310
            return str(json.load(answer)["reference"])
    except HTTPError as error:
        with error:
            kind = Permanent if error.code < 500 else Retryable
            raise kind(f"the carrier answered {error.code}") from error
    except (OSError, HTTPException) as error:
        raise Retryable(f"the carrier did not answer: {error}") from error


def succeed(ticket: Ticket, reference: str) -> None:
    # Immediate: with the write lock first, a busy moment cannot part the order from its job.
    with immediate(db.session):
        deliveries.complete(ticket, order_of(ticket), reference)
    log.info("%s delivered, %s", ticket["id"], reference)


def fail(ticket: Ticket, error: Retryable | Permanent) -> None:
    outcome: Outcome = "retry" if isinstance(error, Retryable) else "permanent"
    jitter = random.uniform(0.5, 1)  # noqa: S311 - spreads the retries, hides nothing
    delay_ms = retry_delay(ticket["attempt"], BASE_MS, CAP_MS, jitter)
    status = deliveries.repository().finish(ticket, outcome, system_clock, delay_ms)
    log.warning("%s is %s: %s", ticket["id"], status or "somebody else's", error)


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    app, owner = create_app(), f"worker-{os.getpid()}"
    log.info("%s is ready", owner)
    while not stop.is_set():
        try:
            busy = deliver_next(app, owner)
        except Exception:
            # What it had in hand comes back when the lease ends.
            log.exception("going on after an error")
            busy = False
        if not busy:
            stop.wait(IDLE_SECONDS)
    log.info("%s has stopped", owner)


if __name__ == "__main__":
    main()
