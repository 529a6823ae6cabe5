"""The delivery queue: what autogenerate wrote for the two models with leasestore's mixins."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "delivery_redrives",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("token", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at_ms", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "deliveries",
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
        sa.Column("order_id", sa.Integer(), nullable=False),
        sa.Column("carrier_reference", sa.String(), nullable=True),
        sa.CheckConstraint(
            "status IN ('pending','leased','done','dead')", name=op.f("ck_deliveries_status")
        ),
        sa.ForeignKeyConstraint(
            ["order_id"],
            ["orders.id"],
        ),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("id", name=op.f("uq_deliveries_id")),
        sa.UniqueConstraint("order_id"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        op.f("ix_deliveries_block"),
        "deliveries",
        [
            sa.literal_column("(seq >> 10)"),
            sa.literal_column("coalesce(lease_until, available_at)"),
        ],
        unique=False,
        sqlite_where=sa.text("status IN ('pending', 'leased')"),
        postgresql_where=sa.text("status IN ('pending', 'leased')"),
    )
    op.create_index(
        op.f("ix_deliveries_claim"),
        "deliveries",
        [sa.literal_column("(seq + 0)"), sa.literal_column("coalesce(lease_until, available_at)")],
        unique=False,
        sqlite_where=sa.text("status IN ('pending', 'leased')"),
        postgresql_where=sa.text("status IN ('pending', 'leased')"),
    )
    op.create_index(
        op.f("ix_deliveries_deadline"),
        "deliveries",
        ["deadline"],
        unique=False,
        sqlite_where=sa.text("status IN ('pending', 'leased')"),
        postgresql_where=sa.text("status IN ('pending', 'leased')"),
    )
    op.create_index(
        op.f("ix_deliveries_lease"),
        "deliveries",
        ["lease_until", "seq"],
        unique=False,
        sqlite_where=sa.text("status = 'leased'"),
        postgresql_where=sa.text("status = 'leased'"),
    )
    op.create_index(
        op.f("ix_deliveries_spent"),
        "deliveries",
        [sa.literal_column("coalesce(lease_until, 0)")],
        unique=False,
        sqlite_where=sa.text("status IN ('pending', 'leased') AND attempts >= max_attempts"),
        postgresql_where=sa.text("status IN ('pending', 'leased') AND attempts >= max_attempts"),
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_deliveries_spent"), table_name="deliveries")
    op.drop_index(op.f("ix_deliveries_lease"), table_name="deliveries")
    op.drop_index(op.f("ix_deliveries_deadline"), table_name="deliveries")
    op.drop_index(op.f("ix_deliveries_claim"), table_name="deliveries")
    op.drop_index(op.f("ix_deliveries_block"), table_name="deliveries")
    op.drop_table("deliveries")
    op.drop_table("delivery_redrives")
