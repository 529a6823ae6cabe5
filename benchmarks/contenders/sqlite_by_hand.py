"""The floor on SQLite: the contract by hand on `sqlite3`, for a file with leasestore's tables and
indexes. It checks no argument, and has one retry of its own: the driver's.

The claim is two statements: by one UPDATE, whose CASE tells what becomes of each row, it takes a
little longer."""

from __future__ import annotations

import sqlite3
from typing import Any

from benchmarks.contenders import LEASE_MS, OWNER, TTL_MS, Busy, Sqlite, Verbs, told

TICKET = "id", "qty", "owner", "token", "attempts", "lease_until"
ENQUEUE = """
INSERT INTO jobs (id, qty, status, attempts, max_attempts, token, available_at, deadline)
VALUES (:id, 1, 'pending', 0, 3, 0, :now, :deadline) ON CONFLICT (id) DO NOTHING
"""
STORED = "SELECT qty FROM jobs WHERE id = :id"
_OPEN = "status IN ('pending', 'leased')"
SWEEP = f"""
UPDATE jobs SET status = 'dead', owner = NULL, lease_until = NULL,
    reason = CASE WHEN deadline <= :now THEN 'deadline' ELSE 'exhausted' END
WHERE seq IN (
    SELECT seq FROM jobs
    WHERE {_OPEN} AND deadline <= :now AND coalesce(lease_until, 0) <= :now
    UNION ALL
    SELECT seq FROM jobs
    WHERE {_OPEN} AND attempts >= max_attempts AND coalesce(lease_until, 0) <= :now)
"""
# Block by block past the jobs that wait for a later time, then the first job that is due.
CLAIM = f"""
WITH RECURSIVE walk(block) AS (
    SELECT (SELECT seq >> 10 FROM jobs WHERE {_OPEN} ORDER BY seq >> 10 LIMIT 1)
    UNION ALL
    SELECT (SELECT seq >> 10 FROM jobs WHERE {_OPEN} AND seq >> 10 > block
        ORDER BY seq >> 10 LIMIT 1)
    FROM walk WHERE (
        SELECT coalesce(lease_until, available_at) FROM jobs WHERE {_OPEN} AND seq >> 10 = block
        ORDER BY coalesce(lease_until, available_at) LIMIT 1) > :now)
UPDATE jobs SET status = 'leased', attempts = attempts + 1, token = token + 1, owner = :owner,
    lease_until = min(:until, deadline), reason = NULL
WHERE seq = (
    SELECT seq FROM jobs WHERE {_OPEN} AND seq + 0 >= (SELECT max(block) << 10 FROM walk)
        AND coalesce(lease_until, available_at) <= :now
    ORDER BY seq + 0 LIMIT 1)
RETURNING {", ".join(TICKET)}
"""
FINISH = """
UPDATE jobs SET status = 'done', reason = NULL, available_at = :now, owner = NULL,
    lease_until = NULL
WHERE id = :id AND qty = :qty AND status = 'leased' AND owner = :owner AND token = :token
    AND attempts = :attempts AND lease_until = :lease_until
    AND lease_until > :now AND deadline > :now
"""


class SqliteByHand(Verbs):
    def __init__(self, target: Sqlite) -> None:
        super().__init__()
        self._db = sqlite3.connect(target.path, isolation_level=None)
        self._db.execute(f"PRAGMA synchronous = {target.synchronous}")

    def enqueue(self, job_id: str, now_ms: int) -> bool:
        self._begin()
        with self._db:
            bound = {"id": job_id, "now": now_ms, "deadline": now_ms + TTL_MS}
            if self._db.execute(ENQUEUE, bound).rowcount:
                return True
            ((qty,),) = self._db.execute(STORED, bound).fetchall()
            if qty != 1:
                raise ValueError(f"job {job_id} has qty {qty}")
            return False

    def claim(self, now_ms: int) -> Any:
        bound = {"now": now_ms, "owner": OWNER, "until": now_ms + LEASE_MS}
        self._begin()
        with self._db:
            self._db.execute(SWEEP, bound)
            claimed = self._db.execute(CLAIM, bound).fetchall()
        if not claimed:
            return None
        return dict(zip(TICKET, claimed[0], strict=True))

    def finish(self, ticket: Any, now_ms: int) -> bool:
        self._begin()
        with self._db:
            return bool(self._db.execute(FINISH, {**ticket, "now": now_ms}).rowcount)

    def durability(self) -> str:
        return told(self._db)

    def close(self) -> None:
        self._db.close()

    def _begin(self) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            raise Busy from error
