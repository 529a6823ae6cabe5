"""Runs the product's migrations on its asynchronous engine. Nothing in it is leasestore's: the
job tables are models of the product, and its autogenerate sees them as its own."""

from __future__ import annotations

import asyncio
import warnings

from alembic import context
from sqlalchemy import Connection, pool
from sqlalchemy.ext.asyncio import create_async_engine

import leasestore.autogenerate  # noqa: F401
from examples.webhooks import database
from examples.webhooks.models import Base

# Autogenerate knows all indexes of the job tables on SQLite, too.
warnings.filterwarnings("ignore", ".*expression-based index '?ix_")


def run_offline() -> None:
    context.configure(
        url=database.url(),
        target_metadata=Base.metadata,
        literal_binds=True,
        dialect_opts={"paramstyle": "named"},
    )
    with context.begin_transaction():
        context.run_migrations()


def migrate(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=Base.metadata)
    with context.begin_transaction():
        context.run_migrations()


async def run_online() -> None:
    engine = create_async_engine(database.url(), poolclass=pool.NullPool)
    async with engine.connect() as connection:
        await connection.run_sync(migrate)
    await engine.dispose()


if context.is_offline_mode():
    run_offline()
else:
    asyncio.run(run_online())
