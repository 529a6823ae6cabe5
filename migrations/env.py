"""Runs the migrations for the `alembic` command in a checkout; it configures no logging."""

from __future__ import annotations

from alembic import context
from sqlalchemy import engine_from_config, pool

from leasestore import dialects
from leasestore.models import Base
from leasestore.schema import VERSION_TABLE
from leasestore.transactions import connected, write_transaction


def run_offline() -> None:
    context.configure(
        url=context.config.get_main_option("sqlalchemy.url"),
        target_metadata=Base.metadata,
        version_table=VERSION_TABLE,
        transactional_ddl=True,
        literal_binds=True,
        dialect_opts={"paramstyle": "named"},
    )
    with context.begin_transaction():
        context.run_migrations()


def run_online() -> None:
    section = context.config.get_section(context.config.config_ini_section, {})
    engine = engine_from_config(section, poolclass=pool.NullPool)
    dialect = dialects.named(engine.dialect.name)
    # The lock first: a failure half-way then leaves nothing, and two runs cannot meet.
    with connected(engine, dialect) as connection, write_transaction(connection, dialect):
        context.configure(
            connection=connection,
            target_metadata=Base.metadata,
            version_table=VERSION_TABLE,
            transactional_ddl=True,
        )
        with context.begin_transaction():
            context.run_migrations()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
