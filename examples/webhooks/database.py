"""The product's engine and sessions, and the one line that leasestore adds: the repository."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sqlalchemy import event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.pool import ConnectionPoolEntry

from examples.webhooks.models import WebhookDelivery, WebhookRedrive
from leasestore import Limits
from leasestore.aio import AsyncJobRepository

TTL_MS = 24 * 60 * 60 * 1000
"""How long a subscriber may be down before its delivery is given up."""

MAX_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class Database:
    """What the web application and the sender work with."""

    engine: AsyncEngine
    sessions: async_sessionmaker[AsyncSession]
    deliveries: AsyncJobRepository


def url() -> str:
    return os.environ.get("WEBHOOKS_DATABASE", "sqlite+aiosqlite:///webhooks.db")


@asynccontextmanager
async def opened() -> AsyncIterator[Database]:
    """The database for as long as the process needs it; its tables are the migrations' business."""
    engine = create_async_engine(url())
    if engine.dialect.name == "sqlite":
        event.listen(engine.sync_engine, "connect", _check_foreign_keys)
    deliveries = AsyncJobRepository(
        engine, job=WebhookDelivery, redrive=WebhookRedrive, limits=Limits(ttl_ms=TTL_MS)
    )
    try:
        yield Database(engine, async_sessionmaker(engine, expire_on_commit=False), deliveries)
    finally:
        await engine.dispose()


def _check_foreign_keys(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()
