"""The contract's two tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "ls0001"
down_revision = None
branch_labels = None
depends_on = None

_long = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "jobs",
        # To the letter of the contract: no NOT NULL here, and no names of constraints.
        sa.Column("seq", _long, primary_key=True, nullable=True),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("qty", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("token", _long, nullable=False),
        sa.Column("available_at", _long, nullable=False),
        sa.Column("deadline", _long, nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("lease_until", _long, nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.UniqueConstraint("id"),
        sa.CheckConstraint("status IN ('pending','leased','done','dead')"),
        sqlite_autoincrement=True,
        if_not_exists=True,
    )
    op.create_table(
        "redrives",
        sa.Column("seq", _long, primary_key=True, nullable=True),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("token", _long, nullable=False),
        sa.Column("at_ms", _long, nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sqlite_autoincrement=True,
        if_not_exists=True,
    )


def downgrade() -> None:
    op.drop_table("redrives")
    op.drop_table("jobs")
