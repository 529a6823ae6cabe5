"""The floor on PostgreSQL: the contract by hand on psycopg 3, for a database with leasestore's
tables and indexes; one statement a verb, in autocommit or in a transaction.

To sweep and claim by one UPDATE, whose CASE tells what becomes of each row, is no faster."""

from __future__ import annotations

from typing import Any

import psycopg

from benchmarks.contenders import LEASE_MS, OWNER, TTL_MS, Postgresql, Verbs

_ENQUEUE = """
INSERT INTO jobs (id, qty, status, attempts, max_attempts, token, available_at, deadline)
VALUES (%s, 1, 'pending', 0, 3, 0, %s, %s) ON CONFLICT (id) DO NOTHING
"""
_OPEN = "status IN ('pending', 'leased')"
_SWEEP = f"""
UPDATE jobs SET status = 'dead', owner = NULL, lease_until = NULL,
    reason = CASE WHEN deadline <= %(now)s THEN 'deadline' ELSE 'exhausted' END
WHERE seq = ANY (
    ARRAY (
        SELECT seq FROM jobs
        WHERE {_OPEN} AND deadline <= %(now)s AND coalesce(lease_until, 0) <= %(now)s
        FOR NO KEY UPDATE SKIP LOCKED)
    || ARRAY (
        SELECT seq FROM jobs
        WHERE {_OPEN} AND attempts >= max_attempts AND coalesce(lease_until, 0) <= %(now)s
        FOR NO KEY UPDATE SKIP LOCKED))
"""
# Block by block past the jobs that wait for a later time, then the first job that is due.
_WALK = f"""
walk(block) AS (
    SELECT (SELECT seq >> 10 FROM jobs WHERE {_OPEN} ORDER BY seq >> 10 LIMIT 1)
    UNION ALL
    SELECT (SELECT seq >> 10 FROM jobs WHERE {_OPEN} AND seq >> 10 > block
        ORDER BY seq >> 10 LIMIT 1)
    FROM walk WHERE (
        SELECT coalesce(lease_until, available_at) FROM jobs WHERE {_OPEN} AND seq >> 10 = block
        ORDER BY coalesce(lease_until, available_at) LIMIT 1) > %(now)s)
"""
_CLAIM = f"""
UPDATE jobs SET status = 'leased', attempts = attempts + 1, token = token + 1, owner = %(owner)s,
    lease_until = least(%(until)s, deadline), reason = NULL
WHERE seq = ANY (ARRAY (
    SELECT seq FROM jobs WHERE {_OPEN} AND seq + 0 >= (SELECT max(block) << 10 FROM walk)
        AND coalesce(lease_until, available_at) <= %(now)s
        AND deadline > %(now)s AND attempts < max_attempts
    ORDER BY seq + 0 LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED))
RETURNING id, qty, owner, token, attempts, lease_until
"""
_FINISH = """
UPDATE jobs SET status = 'done', reason = NULL, available_at = %(now)s, owner = NULL,
    lease_until = NULL
WHERE id = %(id)s AND qty = %(qty)s AND status = 'leased' AND owner = %(owner)s
    AND token = %(token)s AND attempts = %(attempts)s AND lease_until = %(lease_until)s
    AND lease_until > %(now)s AND deadline > %(now)s
"""
_SWEEP_AND_CLAIM = f"WITH RECURSIVE swept AS ({_SWEEP}), {_WALK} {_CLAIM}".encode()


class Autocommit(Verbs):
    """One statement a verb, and nothing else; an enqueue that finds the id there takes two."""

    def __init__(self, target: Postgresql) -> None:
        super().__init__()
        self._db = psycopg.connect(target.url, options=target.options, autocommit=True)

    def enqueue(self, job_id: str, now_ms: int) -> bool:
        return self._enqueue(job_id, now_ms)

    def claim(self, now_ms: int) -> Any:
        return _ticket(self._db.execute(_SWEEP_AND_CLAIM, _bound(now_ms)).fetchall())

    def finish(self, ticket: Any, now_ms: int) -> bool:
        return bool(self._db.execute(_FINISH, {**ticket, "now": now_ms}).rowcount)

    def close(self) -> None:
        self._db.close()

    def _enqueue(self, job_id: str, now_ms: int) -> bool:
        if self._db.execute(_ENQUEUE, (job_id, now_ms, now_ms + TTL_MS)).rowcount:
            return True
        ((qty,),) = self._db.execute("SELECT qty FROM jobs WHERE id = %s", (job_id,)).fetchall()
        if qty != 1:
            raise ValueError(f"job {job_id} has qty {qty}")
        return False


class Transactions(Autocommit):
    """BEGIN and COMMIT around each verb."""

    def enqueue(self, job_id: str, now_ms: int) -> bool:
        with self._db.transaction():
            return super().enqueue(job_id, now_ms)

    def claim(self, now_ms: int) -> Any:
        with self._db.transaction():
            return super().claim(now_ms)

    def finish(self, ticket: Any, now_ms: int) -> bool:
        with self._db.transaction():
            return super().finish(ticket, now_ms)


def _bound(now_ms: int) -> dict[str, object]:
    return {"now": now_ms, "owner": OWNER, "until": now_ms + LEASE_MS}


def _ticket(rows: list[Any]) -> Any:
    if not rows:
        return None
    return dict(
        zip(("id", "qty", "owner", "token", "attempts", "lease_until"), rows[0], strict=True)
    )
