"""Imported in an application's env.py, this makes autogenerate complete on SQLite:

    import leasestore.autogenerate

Alembic leaves out indexes over expressions there, since SQLAlchemy cannot reflect them. With this,
`alembic revision --autogenerate` and `alembic check` see which of the job models' indexes a table
lacks. On other databases it changes nothing.
"""

from __future__ import annotations

from alembic.autogenerate import comparators
from alembic.autogenerate.api import AutogenContext
from alembic.operations.ops import CreateIndexOp, ModifyTableOps
from sqlalchemy import Column, Table

from leasestore import dialects
from leasestore.models import contracts_indexes


@comparators.dispatch_for("table")
def _add_what_alembic_leaves_out(
    context: AutogenContext,
    changes: ModifyTableOps,
    _schema: str | None,
    _name: str,
    _found: Table | None,
    table: Table | None,
) -> None:
    if table is None or context.connection is None:
        return
    left_out = [
        index
        for index in contracts_indexes(table)
        if not all(isinstance(part, Column) for part in index.expressions)
    ]
    if left_out:
        dialect = dialects.named(context.connection.dialect.name)
        found = dialect.unreflected(context.connection, table)
        missing = [index for index in left_out if found is not None and index.name not in found]
        changes.ops += map(CreateIndexOp.from_index, missing)
