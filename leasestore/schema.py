"""The tables in a database: bring them up to date through the migrations, and say what lacks."""

from __future__ import annotations

import threading
from pathlib import Path

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

from leasestore import dialects, operations, validation
from leasestore.errors import SchemaError
from leasestore.models import Job
from leasestore.transactions import connected, write_transaction

VERSION_TABLE = "leasestore_alembic_version"
"""Where the position in leasestore's own migrations is kept, apart from the application's."""

_TABLES = (Job.metadata.tables["jobs"], Job.metadata.tables["redrives"])

# Alembic keeps the `op` that migrations import in a global of the process.
_one_at_a_time = threading.Lock()


def migrations() -> Path:
    """The directory of the migrations: inside the package, or beside it in a checkout."""
    package = Path(__file__).parent
    inside = package / "migrations"
    return inside if inside.is_dir() else package.parent / "migrations"


def upgrade(bind: Engine | Connection) -> None:
    """Create what is missing of the default tables, in one immediate transaction.

    Rows stay. Tables that hold the contract's columns already are taken over as they are.

    Args:
        bind: an `Engine`, or a `Connection` without an open transaction.

    Raises:
        SchemaError: a table of the same name is something else. Nothing was changed.
        StoreBusy: the write lock was not free in time. Nothing was changed.
    """
    validation.bind(bind)
    dialect = dialects.named(bind.dialect.name)
    with connected(bind, dialect) as connection, write_transaction(connection, dialect):
        _refuse_strangers(connection)
        _run(connection)


def _refuse_strangers(connection: Connection) -> None:
    absent = operations.missing(connection, _TABLES)
    lacking = [name for name in absent if "." in name]
    if lacking:
        raise SchemaError(
            f"a table of leasestore's name is something else: it lacks {', '.join(lacking)}",
            lacking,
            "rename it, or declare leasestore's tables under other names (JobMixin)",
        )


def _run(connection: Connection) -> None:
    scripts = ScriptDirectory(str(migrations()))
    context = MigrationContext.configure(
        connection,
        opts={
            "version_table": VERSION_TABLE,
            "transactional_ddl": True,
            "fn": lambda revision, _: scripts._upgrade_revs("head", revision),
        },
    )
    with _one_at_a_time, Operations.context(context):
        context.run_migrations()
