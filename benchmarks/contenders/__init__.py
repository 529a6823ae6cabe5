"""Who is measured: the contract by hand, leasestore, and peers."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

NOW_MS, TTL_MS, LEASE_MS = 1_000_000, 60_000, 10_000
"""No job is ever late while the figures are taken: the time stands still."""

OWNER = "worker-1"


@dataclass(frozen=True, slots=True)
class Sqlite:
    """A queue file, and how durable a COMMIT in it is."""

    path: Path
    journal: str = "WAL"
    synchronous: str = "FULL"


@dataclass(frozen=True, slots=True)
class Postgresql:
    """A database, as libpq takes its address, and how durable a COMMIT in it is."""

    url: str
    synchronous_commit: str = "on"

    @property
    def options(self) -> str:
        return f"-c synchronous_commit={self.synchronous_commit}"


class Contender(ABC):
    """A queue that can be asked for full cycles."""

    @abstractmethod
    def cycles(self, jobs: int) -> None:
        """Put, take and acknowledge so many jobs, each step a transaction of its own."""

    def store(self, jobs: int) -> None:  # noqa: B027 - most have nothing to do here
        """Store so many jobs for the next `cycles`, if those only work them."""

    @abstractmethod
    def close(self) -> None: ...

    def durability(self) -> str | None:
        """As its own connection tells it, where that can be asked."""
        return None


class Busy(Exception):
    """The lock was not free in time; nothing was changed."""


class Verbs(Contender):
    """A queue with the contract's verbs."""

    def __init__(self) -> None:
        prefix = uuid4().hex[:12]
        self._ids = (f"{prefix}-{number}" for number in count())

    @abstractmethod
    def enqueue(self, job_id: str, now_ms: int) -> object: ...

    @abstractmethod
    def claim(self, now_ms: int) -> Any: ...

    @abstractmethod
    def finish(self, ticket: Any, now_ms: int) -> object: ...

    def cycle(self) -> bool:
        """Whether there was a job left to take, which may be somebody else's."""
        self.enqueue(next(self._ids), NOW_MS)
        ticket = self.claim(NOW_MS)
        return ticket is not None and bool(self.finish(ticket, NOW_MS))

    def cycles(self, jobs: int) -> None:
        for _ in range(jobs):
            assert self.cycle()


Opens = dict[str, Callable[[], Contender]]
"""Contenders to be opened, by name."""


def told(connection: sqlite3.Connection) -> str:
    """How durable a COMMIT of this connection is."""
    (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
    (level,) = connection.execute("PRAGMA synchronous").fetchone()
    return f"{journal.upper()}, {('OFF', 'NORMAL', 'FULL', 'EXTRA')[level]}"
