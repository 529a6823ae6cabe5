"""The delivery jobs and their audit, as `alembic revision --autogenerate` wrote it.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "webhook_redrives",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("token", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at_ms", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_webhook_redrives")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("qty", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("token", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column(
            "available_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("deadline", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column(
            "lease_until", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True
        ),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("event_id", sa.String(length=32), nullable=False),
        sa.Column("subscription_id", sa.Integer(), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "status IN ('pending','leased','done','dead')",
            name=op.f("ck_webhook_deliveries_status"),
        ),
        sa.ForeignKeyConstraint(
            ["event_id"], ["events.id"], name=op.f("fk_webhook_deliveries_event_id_events")
        ),
        sa.ForeignKeyConstraint(
            ["subscription_id"],
            ["subscriptions.id"],
            name=op.f("fk_webhook_deliveries_subscription_id_subscriptions"),
        ),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_webhook_deliveries")),
        sa.UniqueConstraint("id", name=op.f("uq_webhook_deliveries_id")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        op.f("ix_webhook_deliveries_event_id"), "webhook_deliveries", ["event_id"], unique=False
    )
    op.create_index(
        op.f("ix_webhook_deliveries_block"),
        "webhook_deliveries",
        [
            sa.literal_column("(seq >> 10)"),
            sa.literal_column("coalesce(lease_until, available_at)"),
        ],
        unique=False,
        sqlite_where=sa.text("status IN ('pending', 'leased')"),
        postgresql_where=sa.text("status IN ('pending', 'leased')"),
    )
    op.create_index(
        op.f("ix_webhook_deliveries_claim"),
        "webhook_deliveries",
        [sa.literal_column("(seq + 0)"), sa.literal_column("coalesce(lease_until, available_at)")],
        unique=False,
        sqlite_where=sa.text("status IN ('pending', 'leased')"),
        postgresql_where=sa.text("status IN ('pending', 'leased')"),
    )
    op.create_index(
        op.f("ix_webhook_deliveries_deadline"),
        "webhook_deliveries",
        ["deadline"],
        unique=False,
        sqlite_where=sa.text("status IN ('pending', 'leased')"),
        postgresql_where=sa.text("status IN ('pending', 'leased')"),
    )
    op.create_index(
        op.f("ix_webhook_deliveries_lease"),
        "webhook_deliveries",
        ["lease_until", "seq"],
        unique=False,
        sqlite_where=sa.text("status = 'leased'"),
        postgresql_where=sa.text("status = 'leased'"),
    )
    op.create_index(
        op.f("ix_webhook_deliveries_spent"),
        "webhook_deliveries",
        [sa.literal_column("coalesce(lease_until, 0)")],
        unique=False,
        sqlite_where=sa.text("status IN ('pending', 'leased') AND attempts >= max_attempts"),
        postgresql_where=sa.text("status IN ('pending', 'leased') AND attempts >= max_attempts"),
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_webhook_deliveries_spent"), table_name="webhook_deliveries")
    op.drop_index(op.f("ix_webhook_deliveries_lease"), table_name="webhook_deliveries")
    op.drop_index(op.f("ix_webhook_deliveries_deadline"), table_name="webhook_deliveries")
    op.drop_index(op.f("ix_webhook_deliveries_claim"), table_name="webhook_deliveries")
    op.drop_index(op.f("ix_webhook_deliveries_block"), table_name="webhook_deliveries")
    op.drop_index(op.f("ix_webhook_deliveries_event_id"), table_name="webhook_deliveries")
    op.drop_table("webhook_deliveries")
    op.drop_table("webhook_redrives")
