"""The receiver's own database: what it was asked, and what it counted, once an id.

Delivery is at least once, so a receiver remembers the ids it has seen in the same transaction
as their effect. This is the other half of the work that no queue can do for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, BigInteger, Engine, create_engine, func, select
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from leasestore.demo.facts import Count
from leasestore.tickets import Event


class Base(DeclarativeBase):
    """Of the receiver's tables: it is an application of its own."""


class Request(Base):
    """A log of what came in, repeated or not; `owner` and `token` as the headers said."""

    __tablename__ = "requests"

    seq: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[str]
    owner: Mapped[str | None]
    token: Mapped[str | None]
    at_ms: Mapped[int] = mapped_column(BigInteger)


class Entry(Base):
    """The inbox: one row an id, whoever sends it, however often."""

    __tablename__ = "inbox"

    job_id: Mapped[str] = mapped_column(primary_key=True)


class Effect(Base):
    """What the orders did: a quantity counted."""

    __tablename__ = "effects"

    seq: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[str]
    qty: Mapped[int]


@contextmanager
def opened(path: Path) -> Iterator[Engine]:
    """The database in this file, with its tables, closed at the end."""
    engine = create_engine(URL.create("sqlite", database=str(path)))
    try:
        Base.metadata.create_all(engine)
        yield engine
    finally:
        engine.dispose()


def receive(engine: Engine, order: Event, owner: str | None, token: str | None, at_ms: int) -> bool:
    """Count an order in one transaction, committed at return; False if it was counted before."""
    job_id = order["id"]
    entry = insert(Entry).values(job_id=job_id).on_conflict_do_nothing().returning(Entry.job_id)
    with Session(engine) as session, session.begin():
        session.add(Request(job_id=job_id, owner=owner, token=token, at_ms=at_ms))
        new = bool(session.scalars(entry).all())
        if new:
            session.add(Effect(job_id=job_id, qty=order["qty"]))
    return new


def counts(engine: Engine) -> dict[str, Count]:
    """Requests received and effects counted, by order."""
    requests = select(Request.job_id, func.count()).group_by(Request.job_id)
    effects = select(Effect.job_id, func.count(), func.sum(Effect.qty)).group_by(Effect.job_id)
    with Session(engine) as session:
        counted = {job: (number, qty) for job, number, qty in session.execute(effects)}
        return {
            job: Count(number, *counted.get(job, (0, 0)))
            for job, number in session.execute(requests)
        }
