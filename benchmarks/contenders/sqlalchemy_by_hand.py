"""The same SQL by hand through SQLAlchemy, with a pooled connection for each verb: which share of
the time is SQLAlchemy's, and which leasestore's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, text

from benchmarks.contenders import LEASE_MS, OWNER, TTL_MS, Sqlite, Verbs
from benchmarks.contenders.library import engine_of
from benchmarks.contenders.sqlite_by_hand import CLAIM, ENQUEUE, FINISH, STORED, SWEEP

_ENQUEUE, _STORED, _SWEEP, _CLAIM, _FINISH = map(text, (ENQUEUE, STORED, SWEEP, CLAIM, FINISH))


class SqlalchemyByHand(Verbs):
    def __init__(self, target: Sqlite) -> None:
        super().__init__()
        self._engine = engine_of(target)

    def enqueue(self, job_id: str, now_ms: int) -> bool:
        bound = {"id": job_id, "now": now_ms, "deadline": now_ms + TTL_MS}
        with self._immediate() as connection:
            if connection.execute(_ENQUEUE, bound).rowcount:
                return True
            qty = connection.execute(_STORED, bound).scalar_one()
            if qty != 1:
                raise ValueError(f"job {job_id} has qty {qty}")
            return False

    def claim(self, now_ms: int) -> Any:
        bound = {"now": now_ms, "owner": OWNER, "until": now_ms + LEASE_MS}
        with self._immediate() as connection:
            connection.execute(_SWEEP, bound)
            claimed = connection.execute(_CLAIM, bound).mappings().all()
        return dict(claimed[0]) if claimed else None

    def finish(self, ticket: Any, now_ms: int) -> bool:
        with self._immediate() as connection:
            return bool(connection.execute(_FINISH, {**ticket, "now": now_ms}).rowcount)

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _immediate(self) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection
