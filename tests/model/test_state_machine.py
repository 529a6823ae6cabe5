"""Any sequence of verbs, at any times, by anybody: the repository answers what the contract's
reference answers, and its tables hold what the reference holds, to the column."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)
from psycopg.rows import dict_row
from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

from leasestore import BadAck, Conflict, JobRepository, Permanent, Retryable, run_once
from tests.conformance.postgresql import wipe
from tests.model import reference
from tests.model.reference import Reference, Row, ticket_of
from tests.postgresql import Server, libpq
from tests.support import make_file

PROFILE = settings(
    max_examples=250,
    stateful_step_count=40,
    deadline=None,
    derandomize=False,
    print_blob=True,
    report_multiple_bugs=False,
)

POINTS = (
    "after-claim",
    "after-finish",
    "after-renew",
    "after-release",
    "after-audit",
    "after-redrive",
    "after-commit",
)
TICKET_FIELDS = ("id", "qty", "owner", "token", "attempt", "lease_until")


class Interrupted(Exception):
    """Raised by a fault, and by a `send` that breaks in a way of its own."""


ERRORS = (ValueError, Conflict, BadAck, Interrupted)


class Points:
    """A fault that notes the points it passes, and breaks at one of them."""

    def __init__(self, break_at: str | None) -> None:
        self.break_at = break_at
        self.passed: list[str] = []

    def __call__(self, point: str) -> None:
        self.passed.append(point)
        if point == self.break_at:
            raise Interrupted(point)


def outcome(call: Callable[[], object]) -> tuple[str, object]:
    """What a call answers, or the kind of error it raises, to be compared."""
    try:
        return "answered", call()
    except ERRORS as error:
        return "raised", next(kind for kind in ERRORS if isinstance(error, kind))


class Database(Protocol):
    """One for all examples, looked at past everything that is under test."""

    @property
    def engine(self) -> Engine: ...
    def empty(self) -> None: ...
    def rows(self, table: str) -> list[Row]: ...
    def close(self) -> None: ...


class QueueFile:
    """Fast because nothing here is about losing power."""

    def __init__(self, path: Path) -> None:
        self.engine = create_engine(f"sqlite:///{make_file(path)}")
        event.listen(self.engine, "connect", self._be_fast)
        self._plain = sqlite3.connect(path, isolation_level=None)
        self._plain.row_factory = sqlite3.Row

    @staticmethod
    def _be_fast(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA synchronous = OFF")
        cursor.execute("PRAGMA journal_mode = MEMORY")
        cursor.close()

    def empty(self) -> None:
        for table in ("jobs", "redrives", "sqlite_sequence"):
            self._plain.execute(f"DELETE FROM {table}")

    def rows(self, table: str) -> list[Row]:
        return [dict(row) for row in self._plain.execute(f"SELECT * FROM {table} ORDER BY seq")]

    def close(self) -> None:
        self._plain.close()
        self.engine.dispose()


class PostgreSQL:
    def __init__(self, url: URL) -> None:
        self.engine = create_engine(url)
        self._plain = psycopg.connect(libpq(url), autocommit=True, row_factory=dict_row)

    def empty(self) -> None:
        wipe(self._plain)

    def rows(self, table: str) -> list[Row]:
        rows = self._plain.execute(f"SELECT * FROM {table} ORDER BY seq".encode()).fetchall()
        if table == "redrives":
            # A sequence gives out each number once, also for a redrive that was rolled back.
            rows = [{**row, "seq": number} for number, row in enumerate(rows, 1)]
        return rows

    def close(self) -> None:
        self._plain.close()
        self.engine.dispose()


JOB_IDS = ("a", "b", "c")
job_ids = st.sampled_from(JOB_IDS)
owners = st.sampled_from(("ann", "ben"))
ttls = st.sampled_from((60_000, 60_000, 60_000, 1000, 100, 1))
leases = st.sampled_from((1000, 1000, 60_000, 10, 1))
faults = st.sampled_from((None,) * 20 + POINTS)
shown_as = st.sampled_from(("held",) * 12 + ("is",) * 6 + TICKET_FIELDS)
# The times that matter are those in the rows, and one before and after each of them.
moments: st.SearchStrategy[int] = st.runner().flatmap(
    lambda machine: st.sampled_from(machine.moments())
)
late_moments: st.SearchStrategy[int] = st.runner().flatmap(
    lambda machine: st.sampled_from(machine.moments() + machine.deadlines() * 4)
)
mostly_dead_ids: st.SearchStrategy[str] = st.runner().flatmap(
    lambda machine: st.sampled_from(ids_by_status(machine, "dead") * 4 + list(JOB_IDS))
)


def around(now_ms: int) -> list[int]:
    return [max(0, now_ms + step) for step in (-1, 0, 1)]


def forged(ticket: Row, field: str) -> Row:
    """A copy of the ticket that is wrong in one field."""
    copy = dict(ticket)
    if field == "id":
        copy[field] = "b" if copy[field] == "a" else "a"
    elif field == "owner":
        copy[field] = "ben" if copy[field] == "ann" else "ann"
    else:
        copy[field] += 1
    return copy


def ids_by_status(machine: Queue, *statuses: str) -> list[str]:
    return [job["id"] for job in machine.reference.jobs if job["status"] in statuses]


# Preconditions, so that few steps are spent where a verb can do nothing.


def has_open_jobs(machine: Queue) -> bool:
    return bool(ids_by_status(machine, "pending", "leased"))


def has_leased_jobs(machine: Queue) -> bool:
    return bool(ids_by_status(machine, "leased"))


def has_dead_jobs(machine: Queue) -> bool:
    return bool(ids_by_status(machine, "dead"))


class Queue(RuleBasedStateMachine):
    tickets: Bundle[Row] = Bundle("tickets")

    def __init__(self, database: Database) -> None:
        super().__init__()
        database.empty()
        self.database = database
        self.reference = Reference()
        self.elsewhere = JobRepository(database.engine)
        self.repository = self.elsewhere
        self.borrowed: Connection | None = None
        self.times_are_clocks = False
        self.last_now_ms = 1000
        self.before: dict[str, Row] = {}
        self.redriven: str | None = None
        self.handed_out: list[Row] = []

    @initialize(
        borrowed=st.booleans(), times_are_clocks=st.booleans(), jobs=st.sampled_from((3, 2, 1, 0))
    )
    def open(self, borrowed: bool, times_are_clocks: bool, jobs: int) -> None:
        if borrowed:
            self.borrowed = self.database.engine.connect()
            self.repository = JobRepository(self.borrowed)
        self.times_are_clocks = times_are_clocks
        for job_id in JOB_IDS[:jobs]:
            self.both("enqueue", {"id": job_id, "qty": 1}, self.at(1000), 60_000)

    def teardown(self) -> None:
        if self.borrowed is not None:
            self.borrowed.close()

    # The verbs

    @rule(
        job_id=job_ids,
        qty=st.sampled_from((1, 1, 1, 2)),
        now_ms=moments,
        ttl_ms=ttls,
        max_attempts=st.integers(1, 3),
        delay_ms=st.sampled_from((0, 0, 1, 99, 100)),
    )
    def enqueue(
        self, job_id: str, qty: int, now_ms: int, ttl_ms: int, max_attempts: int, delay_ms: int
    ) -> None:
        content = {"id": job_id, "qty": qty}
        self.both("enqueue", content, self.at(now_ms), ttl_ms, max_attempts, delay_ms=delay_ms)

    @precondition(has_open_jobs)
    @rule(
        target=tickets,
        owner=owners,
        now_ms=moments,
        lease_ms=leases,
        break_at=faults,
    )
    def claim(
        self, owner: str, now_ms: int, lease_ms: int, break_at: str | None
    ) -> Row | MultipleResults[Row]:
        return self._claim(owner, now_ms, lease_ms, None, break_at)

    @precondition(has_open_jobs)
    @rule(
        target=tickets,
        owner=owners,
        now_ms=moments,
        lease_ms=leases,
        job_id=job_ids,
        break_at=faults,
    )
    def claim_of_one_job(
        self, owner: str, now_ms: int, lease_ms: int, job_id: str, break_at: str | None
    ) -> Row | MultipleResults[Row]:
        return self._claim(owner, now_ms, lease_ms, job_id, break_at)

    def _claim(
        self, owner: str, now_ms: int, lease_ms: int, job_id: str | None, break_at: str | None
    ) -> Row | MultipleResults[Row]:
        ticket: Row | None = self.both(
            "claim", owner, self.at(now_ms), lease_ms, job_id=job_id, break_at=break_at
        )
        if ticket is None:
            return multiple()
        self.was_claimed(ticket, now_ms)
        return ticket

    @precondition(has_leased_jobs)
    @rule(
        ticket=tickets,
        shown=shown_as,
        outcome=st.sampled_from(("ok", "permanent")),
        now_ms=moments,
        break_at=faults,
    )
    def finish(
        self, ticket: Row, shown: str, outcome: str, now_ms: int, break_at: str | None
    ) -> None:
        ticket = self.shown(ticket, shown)
        self.both("finish", ticket, outcome, self.at(now_ms), break_at=break_at)

    @precondition(has_leased_jobs)
    @rule(
        ticket=tickets,
        shown=shown_as,
        now_ms=moments,
        again_ms=late_moments,
        break_at=faults,
    )
    def finish_for_another_attempt(
        self, ticket: Row, shown: str, now_ms: int, again_ms: int, break_at: str | None
    ) -> None:
        ticket = self.shown(ticket, shown)
        delay_ms = min(max(0, again_ms - now_ms), 60_000)
        self.both("finish", ticket, "retry", self.at(now_ms), delay_ms, break_at=break_at)

    @precondition(has_leased_jobs)
    @rule(
        target=tickets,
        ticket=tickets,
        now_ms=moments,
        lease_ms=leases,
        shown=shown_as,
        break_at=faults,
    )
    def renew(
        self, ticket: Row, now_ms: int, lease_ms: int, shown: str, break_at: str | None
    ) -> Row | MultipleResults[Row]:
        ticket = self.shown(ticket, shown)
        renewed: Row | None = self.both(
            "renew", ticket, self.at(now_ms), lease_ms, break_at=break_at
        )
        if renewed is None:
            return multiple()
        self.handed_out.append(renewed)
        return renewed

    @precondition(has_leased_jobs)
    @rule(ticket=tickets, shown=shown_as, break_at=faults)
    def release(self, ticket: Row, shown: str, break_at: str | None) -> None:
        self.both("release", self.shown(ticket, shown), break_at=break_at)

    @precondition(has_dead_jobs)
    @rule(
        job_id=mostly_dead_ids,
        now_ms=moments,
        ttl_ms=ttls,
        note=st.sampled_from(("by-ann", "by-ben")),
        break_at=faults,
    )
    def redrive(
        self, job_id: str, now_ms: int, ttl_ms: int, note: str, break_at: str | None
    ) -> None:
        self.redriven = job_id
        self.both("redrive", job_id, self.at(now_ms), ttl_ms, note, break_at=break_at)

    @precondition(has_open_jobs)
    @rule(job_id=job_ids, now_ms=late_moments, limit=st.sampled_from((1, 2, 100)))
    def get_and_stuck(self, job_id: str, now_ms: int, limit: int) -> None:
        self.both("get", job_id)
        self.both("stuck", self.at(now_ms), limit)

    @precondition(has_leased_jobs)
    @rule(now_ms=moments)
    def recover(self, now_ms: int) -> None:
        self.both("recover", self.at(now_ms))

    @precondition(has_open_jobs)
    @rule(
        target=tickets,
        owner=owners,
        first_ms=moments,
        second_ms=st.one_of(moments, moments, moments, st.sampled_from((-1, 10**15, True, None))),
        lease_ms=leases,
        reply=st.sampled_from((True, True, 1, None, Retryable, Retryable, Permanent, Interrupted)),
        meanwhile=st.sampled_from((None, None, "claim", "recover")),
        jitter=st.sampled_from((0, 0.5, 1)),
    )
    def run_once(
        self,
        owner: str,
        first_ms: int,
        second_ms: Any,
        lease_ms: int,
        reply: object,
        meanwhile: str | None,
        jitter: float,
    ) -> Row | MultipleResults[Row]:
        held: list[Row] = []

        def run(run_once: Callable[..., object], queue: Any, elsewhere: Any) -> object:
            times = [first_ms, second_ms]

            def send(content: Row) -> object:
                held.append(ticket_of(elsewhere.get(content["id"])))
                if meanwhile == "claim":
                    elsewhere.claim("eve", second_ms_or(first_ms), job_id=content["id"])
                elif meanwhile == "recover":
                    elsewhere.recover(second_ms_or(first_ms))
                content.clear()
                if isinstance(reply, type):
                    raise reply
                return reply

            return run_once(queue, owner, lambda: times.pop(0), send, jitter, lease_ms)

        def second_ms_or(otherwise: int) -> int:
            valid = type(second_ms) is int and 0 <= second_ms <= reference.LAST_NOW_MS
            return second_ms if valid else otherwise

        self.last_now_ms = first_ms
        got = outcome(lambda: run(run_once, self.repository, self.elsewhere))
        expected = outcome(lambda: run(reference.run_once, self.reference, self.reference))
        assert got == expected
        if not held:
            return multiple()
        mine, theirs = held
        assert mine == theirs
        self.was_claimed(mine, first_ms)
        return mine

    # Both sides

    def both(self, verb: str, *arguments: Any, break_at: str | None = None, **options: Any) -> Any:
        """Ask the repository and the reference the same; the answer, if they agree on one."""
        answers: list[tuple[object, ...]] = []
        for queue in (self.repository, self.reference):
            points = Points(break_at)
            given = [dict(a) if isinstance(a, dict) else a for a in arguments]
            if queue is self.reference:
                given = [a() if callable(a) else a for a in given]
            if verb in ("claim", "finish", "renew", "release", "redrive"):
                options["fault"] = points
            told = outcome(lambda: getattr(queue, verb)(*given, **options))  # noqa: B023
            answers.append((*told, points.passed))
            assert [a for a in given if isinstance(a, dict)] == [
                a for a in arguments if isinstance(a, dict)
            ], "the caller's arguments stay as they are"
        got, expected = answers
        assert got == expected
        return got[1] if got[0] == "answered" else None

    def at(self, now_ms: int) -> int | Callable[[], int]:
        self.last_now_ms = now_ms
        return (lambda: now_ms) if self.times_are_clocks else now_ms

    def shown(self, ticket: Row, how: str) -> Row:
        """The ticket as it is, one that its row still matches, or the latter with a wrong field."""
        leased = [ticket_of(job) for job in self.reference.jobs if job["status"] == "leased"]
        if how == "is" or not leased:
            return ticket
        held = next((own for own in leased if own["id"] == ticket["id"]), leased[0])
        return held if how == "held" else forged(held, how)

    def moments(self) -> list[int]:
        """Mostly now, often about an end of waiting or of a lease, at times about a deadline."""
        now = self.last_now_ms
        times = [now] * 16 + [now + 1]
        for job in self.reference.jobs:
            if job["status"] == "pending":
                times += around(job["available_at"]) * 2 + around(job["deadline"])
            elif job["status"] == "leased":
                times += around(job["lease_until"]) * 3 + around(job["deadline"])
        return times

    def deadlines(self) -> list[int]:
        open_jobs = [job for job in self.reference.jobs if job["status"] in ("pending", "leased")]
        return [time for job in open_jobs for time in around(job["deadline"])]

    # What holds whatever happens

    def was_claimed(self, ticket: Row, now_ms: int) -> None:
        last = self.before[ticket["id"]]
        was_live = last["status"] == "leased" and last["lease_until"] > now_ms
        assert not was_live, "no claim takes a job from the holder of a live lease"
        used = {old["token"] for old in self.handed_out if old["id"] == ticket["id"]}
        assert ticket["token"] > max(used, default=0), "each claim's token is new"
        self.handed_out.append(ticket)

    @invariant()
    def tables_are_those_of_the_reference(self) -> None:
        assert self.database.rows("jobs") == self.reference.jobs
        assert self.database.rows("redrives") == self.reference.redrives

    @invariant()
    def a_borrowed_connection_is_left_without_a_transaction(self) -> None:
        if self.borrowed is not None:
            assert not self.borrowed.closed
            assert not self.borrowed.in_transaction()

    @invariant()
    def rows_change_only_as_promised(self) -> None:
        rows = {row["id"]: row for row in self.database.rows("jobs")}
        for job_id, row in rows.items():
            assert row["attempts"] <= row["max_attempts"]
            live = {
                ticket["token"]
                for ticket in self.handed_out
                if row["status"] == "leased" and ticket == ticket_of(row)
            }
            assert len(live) <= 1, "a job has at most one live ticket"
            last = self.before.get(job_id)
            if last is None:
                continue
            assert row["token"] >= last["token"], "a token never goes down"
            if last["status"] in ("done", "dead") and row != last:
                assert last["status"] == "dead"
                assert self.redriven == job_id, "only a redrive brings a dead job back"
        self.before = rows
        self.redriven = None


@pytest.mark.timeout(600)  # a counter-example is made small before it is shown
def test_the_repository_does_what_the_contract_says(tmp_path: Path) -> None:
    with closing(QueueFile(tmp_path / "queue.db")) as database:
        run(database, PROFILE)


@pytest.mark.timeout(600)
def test_the_repository_does_it_on_postgresql_too(postgresql: Server) -> None:
    with closing(PostgreSQL(postgresql.fresh())) as database:
        # Fewer, since each statement is a message to another process and back.
        run(database, settings(PROFILE, max_examples=100))


def run(database: Database, profile: settings) -> None:
    def queue() -> Queue:
        return Queue(database)

    run_state_machine_as_test(queue, settings=profile)  # type: ignore[arg-type]  # takes a factory
