"""The shop over HTTP and on the command line."""

from __future__ import annotations

import click
from flask import Blueprint, abort, current_app, request
from flask.typing import ResponseReturnValue
from sqlalchemy import select
from werkzeug.exceptions import HTTPException

from examples.shop import deliveries, orders
from examples.shop.models import Customer, Delivery, DeliveryRedrive, Product, db
from leasestore import SchemaError, StoreBusy, immediate, schema

shop = Blueprint("shop", __name__, cli_group=None)


@shop.post("/orders")
def place_order() -> ResponseReturnValue:
    wanted = orders.Wanted.from_json(request.get_json(silent=True))
    # Immediate: the key and the stock that it reads are still so when it writes and commits.
    with immediate(db.session):
        order, new = orders.place(wanted)
        answer = orders.shown(order)
    if new:
        current_app.logger.info("order %s placed", wanted.key)
    return answer, 201 if new else 200


@shop.get("/orders/<key>")
def show_order(key: str) -> ResponseReturnValue:
    order = orders.find(key) or abort(404, f"no order {key!r}")
    return orders.shown(order)


@shop.post("/deliveries/<job_id>/redrive")
def redrive(job_id: str) -> ResponseReturnValue:
    body = request.get_json(silent=True)
    if not isinstance(body, dict) or set(body) != {"note"}:
        abort(400, "expected a JSON object of note")
    # Immediate: no worker can come between the look at the delivery and its new budget.
    with immediate(db.session):
        named = select(Delivery).where(Delivery.id == job_id).with_for_update()
        delivery = db.one_or_404(named)
        if delivery.status != "dead":
            abort(409, f"delivery {job_id!r} is {delivery.status}, not dead")
        try:
            deliveries.redrive(delivery, body["note"])
        except ValueError as error:
            abort(400, str(error))
        return orders.shown_delivery(delivery)


@shop.get("/health")
def health() -> ResponseReturnValue:
    schema.check(db.engine, job=Delivery, redrive=DeliveryRedrive)
    return {"status": "ok"}


@shop.app_errorhandler(HTTPException)
def refused(error: HTTPException) -> ResponseReturnValue:
    return {"error": error.description}, error.code or 500


@shop.app_errorhandler(SchemaError)
@shop.app_errorhandler(StoreBusy)
def unavailable(error: Exception) -> ResponseReturnValue:
    return {"error": str(error)}, 503, {"Retry-After": "1"}


@shop.cli.command()
def seed() -> None:
    """Put in a customer and a product to try the shop with."""
    with immediate(db.session):
        db.session.add(Customer(email="ada@example.org", address="12 St James's Square, London"))
        db.session.add(Product(sku="tea", stock=10))


@shop.cli.command()
def enqueue_open_orders() -> None:
    """Have orders delivered that are older than the delivery queue; harmless to repeat."""
    with immediate(db.session):
        new = sum(deliveries.enqueue(order) for order in orders.open_orders())
    click.echo(f"{new} deliveries enqueued")
