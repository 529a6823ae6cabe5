"""The product's tables. The last two came later: leasestore's columns on the product's own Base."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, ForeignKey, MetaData, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from leasestore import JobMixin, RedriveMixin


class Base(DeclarativeBase):
    # Named constraints, so that a later migration can find them.
    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ix": "ix_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        }
    )


class Subscription(Base):
    """Somebody who wants to hear of every event."""

    __tablename__ = "subscriptions"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    url: Mapped[str] = mapped_column(Text)


class Event(Base):
    """Something that happened."""

    __tablename__ = "events"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    kind: Mapped[str] = mapped_column(String(100))
    body: Mapped[dict[str, Any]] = mapped_column(JSON)


class WebhookDelivery(JobMixin, Base):
    """One event for one subscriber: a job. Its state is a row like any other, to be queried and
    joined; it is written through the repository only."""

    __tablename__ = "webhook_deliveries"

    event_id: Mapped[str] = mapped_column(ForeignKey("events.id"), index=True)
    subscription_id: Mapped[int] = mapped_column(ForeignKey("subscriptions.id"))
    payload: Mapped[dict[str, Any]] = mapped_column(JSON)
    result: Mapped[str | None] = mapped_column(Text)


class WebhookRedrive(RedriveMixin, Base):
    """Which dead deliveries somebody gave another chance, and why."""

    __tablename__ = "webhook_redrives"
