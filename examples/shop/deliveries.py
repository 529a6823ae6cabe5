"""The delivery queue: what the shop asks of leasestore, both ends in the shop's transactions."""

from __future__ import annotations

from flask import Flask, current_app

from examples.shop.models import Delivery, DeliveryRedrive, Order, db
from leasestore import JobRepository, Limits, Ticket, system_clock

TTL_MS = 7 * 24 * 60 * 60 * 1000
MAX_ATTEMPTS = 12


def init_app(app: Flask) -> None:
    """One repository for each app, since each has an engine of its own."""
    with app.app_context():
        app.extensions["deliveries"] = JobRepository(
            db.engine, job=Delivery, redrive=DeliveryRedrive, limits=Limits(ttl_ms=TTL_MS)
        )


def repository() -> JobRepository:
    """The current app's."""
    jobs = current_app.extensions["deliveries"]
    assert isinstance(jobs, JobRepository)
    return jobs


def enqueue(order: Order) -> bool:
    """Have this order delivered, if the session's transaction commits. False: it is known."""
    return (
        repository()
        .within(db.session)
        .enqueue(
            {"id": f"order-{order.id}", "qty": order.quantity},
            system_clock,
            TTL_MS,
            MAX_ATTEMPTS,
            values={"order_id": order.id},
        )
    )


def complete(ticket: Ticket, order: Order, carrier_reference: str) -> None:
    """The order is delivered, if the session's transaction commits.

    Raises:
        StaleTicket: somebody else has the job by now; let it undo what was done to the order.
    """
    order.status = "delivered"
    order.delivered_at_ms = system_clock()
    jobs = repository().within(db.session)
    jobs.finish(ticket, "ok", system_clock, values={"carrier_reference": carrier_reference})


def redrive(delivery: Delivery, note: str) -> None:
    """Give a dead delivery a new budget, on record, if the session's transaction commits."""
    repository().within(db.session).redrive(delivery.id, system_clock, TTL_MS, note)
