"""The web application. An event and its deliveries become true in one transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated
from uuid import uuid4

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from examples.webhooks import database
from examples.webhooks.database import MAX_ATTEMPTS, TTL_MS, Database
from examples.webhooks.middleware import Uncancelled
from examples.webhooks.models import Event, Subscription, WebhookDelivery, WebhookRedrive
from examples.webhooks.schemas import (
    DeliveryState,
    EventState,
    Health,
    Identifier,
    NewEvent,
    NewRedrive,
    NewSubscription,
    SubscriptionState,
)
from leasestore import SchemaError, StoreBusy, schema, system_clock
from leasestore.aio import immediate


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with database.opened() as app.state.database:
        yield


app = FastAPI(title="Webhooks", lifespan=lifespan)
app.add_middleware(Uncancelled)


def the_database(request: Request) -> Database:
    opened: Database = request.app.state.database
    return opened


Db = Annotated[Database, Depends(the_database)]


@app.post("/subscriptions", status_code=201)
async def subscribe(new: NewSubscription, db: Db) -> SubscriptionState:
    subscription = Subscription(name=new.name, url=str(new.url))
    try:
        async with db.sessions.begin() as session:
            session.add(subscription)
    except IntegrityError:
        raise HTTPException(409, f"there is a subscription named {new.name!r}") from None
    return SubscriptionState.model_validate(subscription)


@app.post("/events", status_code=201)
async def publish(new: NewEvent, db: Db) -> EventState:
    # Committed where the block ends, which is before the answer leaves; a dependency that
    # commits after `yield` would do it when the client has already been told.
    async with db.sessions() as session, immediate(session):
        event = Event(id=uuid4().hex, kind=new.kind, body=new.body)
        session.add(event)
        for subscription in await session.scalars(select(Subscription)):
            await _enqueue(db, session, event, subscription)
        return await _state(session, event)


async def _enqueue(
    db: Database, session: AsyncSession, event: Event, subscription: Subscription
) -> None:
    await db.deliveries.within(session).enqueue(
        {"id": f"{event.id}-{subscription.id}", "qty": 1},
        system_clock,
        TTL_MS,
        MAX_ATTEMPTS,
        values={
            "event_id": event.id,
            "subscription_id": subscription.id,
            "payload": {"event": event.id, "kind": event.kind, "body": event.body},
        },
    )


@app.get("/events/{event_id}")
async def show(event_id: str, db: Db) -> EventState:
    async with db.sessions() as session:
        event = await session.get(Event, event_id)
        if event is None:
            raise HTTPException(404, f"there is no event {event_id!r}")
        return await _state(session, event)


async def _state(session: AsyncSession, event: Event) -> EventState:
    deliveries = await session.scalars(
        select(WebhookDelivery)
        .where(WebhookDelivery.event_id == event.id)
        .order_by(WebhookDelivery.seq)
    )
    states = [DeliveryState.model_validate(delivery) for delivery in deliveries]
    return EventState(id=event.id, kind=event.kind, deliveries=states)


@app.post("/deliveries/{delivery_id}/redrive")
async def redrive(delivery_id: Identifier, new: NewRedrive, db: Db) -> DeliveryState:
    # With the write lock from the first line on, and with the row's where rows have them, so that
    # the delivery is still dead below.
    async with db.sessions() as session, immediate(session):
        delivery = await session.scalar(
            select(WebhookDelivery).where(WebhookDelivery.id == delivery_id).with_for_update()
        )
        if delivery is None:
            raise HTTPException(404, f"there is no delivery {delivery_id!r}")
        if delivery.status != "dead":
            raise HTTPException(409, f"only a dead delivery is redriven: it is {delivery.status}")
        await db.deliveries.within(session).redrive(delivery_id, system_clock, TTL_MS, new.note)
        # The loaded object has the new state already.
        return DeliveryState.model_validate(delivery)


@app.get("/health")
async def health(db: Db) -> Health:
    try:
        async with db.engine.connect() as connection:
            await connection.run_sync(schema.check, job=WebhookDelivery, redrive=WebhookRedrive)
    except SchemaError as error:
        raise HTTPException(503, f"{error.problem}: run `alembic upgrade head`") from error
    return Health(status="ok")


@app.exception_handler(StoreBusy)
async def busy(_: Request, __: Exception) -> JSONResponse:
    """Nothing was changed and nothing is lost: the client may come again."""
    return JSONResponse({"detail": "the database is busy"}, 503, {"Retry-After": "1"})
