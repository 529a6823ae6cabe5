"""Indexes over open jobs: what is done or dead costs the verbs nothing."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "ls0002"
down_revision = "ls0001"
branch_labels = None
depends_on = None

_open = "status IN ('pending', 'leased')"
_claimable_at = sa.text("coalesce(lease_until, available_at)")
_INDEXES: dict[str, tuple[list[str | sa.TextClause], str]] = {
    "ix_jobs_claim": ([sa.text("(seq + 0)"), _claimable_at], _open),
    "ix_jobs_block": ([sa.text("(seq >> 10)"), _claimable_at], _open),
    "ix_jobs_deadline": (["deadline"], _open),
    "ix_jobs_spent": (
        [sa.text("coalesce(lease_until, 0)")],
        f"{_open} AND attempts >= max_attempts",
    ),
    "ix_jobs_lease": (["lease_until", "seq"], "status = 'leased'"),
}


def upgrade() -> None:
    for name, (over, where) in _INDEXES.items():
        op.create_index(
            name,
            "jobs",
            over,
            sqlite_where=sa.text(where),
            postgresql_where=sa.text(where),
            if_not_exists=True,
        )


def downgrade() -> None:
    for name in _INDEXES:
        op.drop_index(name, "jobs", if_exists=True)
