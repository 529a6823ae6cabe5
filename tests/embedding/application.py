"""A small application that had tables of its own before it had jobs."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from leasestore import JobMixin, RedriveMixin


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="placed")
    code: Mapped[str | None] = mapped_column(unique=True)


class Delivery(JobMixin, Base):
    __tablename__ = "deliveries"

    order_id: Mapped[int | None] = mapped_column(ForeignKey("orders.id"))
    payload: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    result: Mapped[str | None]

    order: Mapped[Order | None] = relationship()


class DeliveryRedrive(RedriveMixin, Base):
    __tablename__ = "delivery_redrives"
