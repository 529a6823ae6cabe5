"""Placing orders: what is asked for, and what the shop's tables say to it."""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass
from typing import Any, Self

from flask import abort
from sqlalchemy import select

from examples.shop import deliveries
from examples.shop.models import Customer, Delivery, Order, Product, db

TEXT = re.compile(r"[A-Za-z0-9.@+_-]{1,64}")
MOST = 1000


@dataclass(frozen=True)
class Wanted:
    """An order as a client asks for it, under a key of its own choice."""

    key: str
    customer: str
    product: str
    quantity: int

    @classmethod
    def from_json(cls, body: object) -> Self:
        names = set(cls.__dataclass_fields__)
        if not isinstance(body, dict) or set(body) != names:
            abort(400, f"expected a JSON object of {', '.join(sorted(names))}")
        for name in sorted(names - {"quantity"}):
            if not isinstance(body[name], str) or not TEXT.fullmatch(body[name]):
                abort(400, f"{name}: expected text like {TEXT.pattern}")
        if type(body["quantity"]) is not int or not 1 <= body["quantity"] <= MOST:
            abort(400, f"quantity: expected a whole number from 1 to {MOST}")
        return cls(**body)


def place(wanted: Wanted) -> tuple[Order, bool]:
    """The order of this key, and whether it is new: then with its stock taken and its delivery
    enqueued. It all belongs to the session's transaction."""
    # Where rows have the locks, this one lets nobody else order the product meanwhile.
    named = select(Product).where(Product.sku == wanted.product).with_for_update()
    product = db.session.scalar(named)
    known = find(wanted.key)
    if known is not None:
        content = wanted.key, known.customer.email, known.product.sku, known.quantity
        if content != astuple(wanted):
            abort(409, f"order {wanted.key!r} exists with another content")
        return known, False
    if product is None:
        abort(404, f"no product {wanted.product!r}")
    customer = db.one_or_404(select(Customer).where(Customer.email == wanted.customer))
    if product.stock < wanted.quantity:
        abort(409, f"{wanted.product!r} is out of stock: {product.stock} left")
    product.stock -= wanted.quantity
    order = Order(key=wanted.key, customer=customer, product=product, quantity=wanted.quantity)
    db.session.add(order)
    db.session.flush()  # for the id that the delivery is named by
    deliveries.enqueue(order)
    return order, True


def find(key: str) -> Order | None:
    return db.session.scalar(select(Order).where(Order.key == key))


def open_orders() -> list[Order]:
    return list(db.session.scalars(select(Order).where(Order.status == "placed")))


def shown(order: Order) -> dict[str, Any]:
    """The order as clients see it."""
    return {
        "key": order.key,
        "customer": order.customer.email,
        "product": order.product.sku,
        "quantity": order.quantity,
        "status": order.status,
        "delivered_at_ms": order.delivered_at_ms,
        "delivery": order.delivery and shown_delivery(order.delivery),
    }


def shown_delivery(delivery: Delivery) -> dict[str, Any]:
    names = "id", "status", "attempts", "reason", "carrier_reference"
    return {name: getattr(delivery, name) for name in names}
