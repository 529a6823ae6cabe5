"""A subscriber's side: an inbox that makes at-least-once delivery an effect exactly once.

It needs no leasestore, only the two headers: `Webhook-Id` says which delivery this is, and
`Webhook-Token` which run of the sender, in growing order.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Header, HTTPException, Request
from pydantic import BaseModel
from sqlalchemy import JSON, Text, func, select, update
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class Inbox(Base):
    """Every delivery seen, with the highest token that it came with."""

    __tablename__ = "inbox"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    token: Mapped[int]


class Notice(Base):
    """The effect: what this subscriber does about an event."""

    __tablename__ = "notices"

    id: Mapped[int] = mapped_column(primary_key=True)
    webhook_id: Mapped[str] = mapped_column(Text, index=True)
    kind: Mapped[str] = mapped_column(Text)
    body: Mapped[dict[str, Any]] = mapped_column(JSON)


class Payload(BaseModel):
    kind: str
    body: dict[str, Any]


class Receipt(BaseModel):
    effect: Literal["new", "known"]


class Seen(BaseModel):
    token: int
    effects: int


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    url = os.environ.get("RECEIVER_DATABASE", "sqlite+aiosqlite:///receiver.db")
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    app.state.sessions = async_sessionmaker(engine)
    yield
    await engine.dispose()


app = FastAPI(title="Subscriber", lifespan=lifespan)


@app.post("/webhooks")
async def receive(
    payload: Payload,
    webhook_id: Annotated[str, Header(min_length=1, max_length=64)],
    webhook_token: Annotated[int, Header(ge=1)],
    request: Request,
) -> Receipt:
    # One transaction, and it begins with a write: of two copies of a delivery that arrive at
    # once, the second waits here and then finds what the first has done.
    async with request.app.state.sessions.begin() as session:
        if await _first_seen(session, webhook_id, webhook_token):
            session.add(Notice(webhook_id=webhook_id, kind=payload.kind, body=payload.body))
            return Receipt(effect="new")
        if await _token_raised(session, webhook_id, webhook_token):
            return Receipt(effect="known")
        raise HTTPException(409, "a later run of the sender was here: this one lost its lease")


async def _first_seen(session: AsyncSession, webhook_id: str, token: int) -> bool:
    arrival = insert(Inbox).values(id=webhook_id, token=token).on_conflict_do_nothing()
    return await _changed(session, arrival.returning(Inbox.id))


async def _token_raised(session: AsyncSession, webhook_id: str, token: int) -> bool:
    """Whether no higher token was seen; an equal one is the same run, asking again."""
    known = update(Inbox).where(Inbox.id == webhook_id, Inbox.token <= token)
    return await _changed(session, known.values(token=token).returning(Inbox.id))


async def _changed(session: AsyncSession, statement: Any) -> bool:
    return bool((await session.scalars(statement)).all())


@app.get("/webhooks/{webhook_id}")
async def look_up(webhook_id: str, request: Request) -> Seen:
    effects = select(func.count()).where(Notice.webhook_id == webhook_id).scalar_subquery()
    async with request.app.state.sessions() as session:
        found = await session.execute(select(Inbox.token, effects).where(Inbox.id == webhook_id))
        row = found.one_or_none()
    if row is None:
        raise HTTPException(404, f"nothing has come as {webhook_id!r}")
    return Seen(token=row[0], effects=row[1])
