"""Runs the shop's migrations on the database that the application is configured for."""

from __future__ import annotations

import warnings

from alembic import context
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

import leasestore.autogenerate  # noqa: F401
from examples.shop.app import create_app
from examples.shop.models import db
from leasestore import immediate

# Autogenerate knows all indexes of the job table on SQLite, too.
warnings.filterwarnings("ignore", ".*expression-based index '?ix_")

engine = create_engine(create_app().config["SQLALCHEMY_DATABASE_URI"], poolclass=NullPool)
# Immediate: a revision that fails half-way leaves nothing, and two deployments cannot meet.
with engine.connect() as connection, immediate(connection):
    context.configure(connection=connection, target_metadata=db.metadata)
    context.run_migrations()
