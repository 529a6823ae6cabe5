"""Tables full of jobs, written in bulk by SQL past everything that is measured."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg

from benchmarks.contenders import NOW_MS, TTL_MS, Postgresql

_SERIES = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n"
    " WHERE i < {last}) {insert} SELECT {values} FROM n",
    "postgresql": "{insert} SELECT {values} FROM generate_series({first}, {last}) AS n(i)",
}
_INSERT = (
    "INSERT INTO jobs (id, qty, status, attempts, max_attempts, token, available_at, deadline, "
    "owner, lease_until)"
)
SWEPT = "past deadline"
"""In the names of those that the first claim has to sweep."""

_LATER = NOW_MS + TTL_MS


@dataclass(frozen=True, slots=True)
class Part:
    """So many jobs alike, by the SQL of their columns."""

    jobs: int
    status: str = "pending"
    available_at: int = NOW_MS - 1000
    deadline: int = _LATER
    lease_until: int | None = None

    def sql(self, database: str, first: int) -> str:
        claimed = int(self.status != "pending")
        owner = "NULL" if self.lease_until is None else "'worker-0'"
        lease_until = "NULL" if self.lease_until is None else str(self.lease_until)
        values = (
            f"'job-' || i, 1, '{self.status}', {claimed}, 3, {claimed}, {self.available_at}, "
            f"{self.deadline}, {owner}, {lease_until}"
        )
        return _SERIES[database].format(
            first=first, last=first + self.jobs - 1, insert=_INSERT, values=values
        )


def _delayed(jobs: int) -> Part:
    return Part(jobs, available_at=NOW_MS + TTL_MS // 2)


def backlogs(scale: float) -> dict[str, list[Part]]:
    """By name; the numbers of the names are those of scale 1."""

    def n(jobs: int) -> int:
        return max(int(jobs * scale), 20)

    return {
        "1,000 ready": [Part(n(1_000))],
        "100,000 ready": [Part(n(100_000))],
        "1,000,000 ready": [Part(n(1_000_000))],
        "1,000,000 done, 100 ready": [Part(n(1_000_000), "done"), Part(100)],
        "100,000 delayed, 100 ready": [_delayed(n(100_000)), Part(100)],
        "100,000 delayed, 100,000 ready": [_delayed(n(100_000)), Part(n(100_000))],
        "100,000 leases ended": [Part(n(100_000), "leased", lease_until=NOW_MS - 1)],
        f"10,000 {SWEPT}, 1,000 ready": [Part(n(10_000), deadline=NOW_MS - 1), Part(n(1_000))],
    }


def fill_file(path: Path, parts: list[Part]) -> None:
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.execute("PRAGMA synchronous = OFF")
        for statement in _statements("sqlite", parts):
            plain.execute(statement)


def fill_database(target: Postgresql, parts: list[Part]) -> None:
    """Left without statistics, which come from ANALYZE alone."""
    with psycopg.connect(target.url, options=target.options) as connection:
        connection.execute("ALTER TABLE jobs SET (autovacuum_enabled = off)")
        for statement in _statements("postgresql", parts):
            connection.execute(statement.encode())


def analyze_file(path: Path) -> None:
    with closing(sqlite3.connect(path)) as plain:
        plain.execute("ANALYZE")


def analyze_database(target: Postgresql) -> None:
    with psycopg.connect(target.url, autocommit=True) as connection:
        connection.execute("ANALYZE")


def _statements(database: str, parts: list[Part]) -> list[str]:
    first, statements = 1, []
    for part in parts:
        statements.append(part.sql(database, first))
        first += part.jobs
    return statements
