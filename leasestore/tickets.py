"""The shapes of what goes out and comes back: tickets, rows, outcomes."""

from __future__ import annotations

from typing import Literal, TypedDict

Status = Literal["pending", "leased", "done", "dead"]
Outcome = Literal["ok", "retry", "permanent"]


class Event(TypedDict):
    """What is enqueued: a job's content."""

    id: str
    qty: int


class Ticket(TypedDict):
    """What a claim hands out and every later write must show, whole."""

    id: str
    qty: int
    owner: str
    token: int
    attempt: int
    lease_until: int


class JobState(TypedDict):
    """A row of the job table: its twelve columns, times in ms."""

    seq: int
    id: str
    qty: int
    status: Status
    attempts: int
    max_attempts: int
    token: int
    available_at: int
    deadline: int
    owner: str | None
    lease_until: int | None
    reason: str | None


class Recovered(TypedDict):
    """How many jobs `recover` gave back, and how many it found dead, by reason."""

    recovered: int
    deadline: int
    exhausted: int


class StuckJob(TypedDict):
    """A job that a watcher found with its lease over: who had it, and what has become of it.

    `owner`, `token` (which tells the run from others), `attempts` and `lease_until` are those of
    the run that ended; `overdue_ms` is how long before it was found. `status` is `pending` (free
    again) or `dead`, `reason` is `expired`, `deadline` or `exhausted`.
    """

    id: str
    qty: int
    owner: str
    token: int
    attempts: int
    lease_until: int
    overdue_ms: int
    status: Literal["pending", "dead"]
    reason: Literal["expired", "deadline", "exhausted"]


SweepReason = Literal["deadline", "exhausted"]


class SweptJob(TypedDict):
    """A job that a sweep found with no time or no attempts left: dead from then on."""

    id: str
    token: int
    attempts: int
    reason: SweepReason


class Watched(TypedDict):
    """What one look of a watcher changed: the jobs that were stuck, and how many pending ones had
    no time or no attempts left, by reason."""

    stuck: list[StuckJob]
    deadline: int
    exhausted: int


class Delivered(TypedDict):
    """What `run_once` answers: the job, the token of this run, and how it ended."""

    id: str
    token: int
    status: Status | Literal["stale"]
