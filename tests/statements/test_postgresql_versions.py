"""What PostgreSQL keeps of a job's past: so many row versions and no more, and what they cost the
next claim while an old snapshot elsewhere needs them. Counted, not timed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Connection, Engine, create_engine, event, text

from leasestore import JobRepository
from tests.conformance.postgresql import Plain, beside
from tests.postgresql import Server

NOW = 1000
JOBS = 300
LIFE = 3
"""Row versions of a job that is enqueued, claimed and finished."""

QUESTIONS = 4
"""Of a claim: late, spent, the first block with a job, the job."""


@pytest.fixture
def url(postgresql: Server) -> URL:
    return postgresql.fresh()


@pytest.fixture
def engine(url: URL) -> Iterator[Engine]:
    engine = create_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def plain(url: URL) -> Iterator[Plain]:
    with beside(url) as plain:
        yield plain


def written(engine: Engine, plain: Plain) -> tuple[int, ...]:
    """Rows inserted, updated and deleted in `jobs` so far."""
    # A session counts for all when it ends.
    engine.dispose()
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    give_up = time.monotonic() + 5
    while plain.execute(others).fetchone() != (0,):
        assert time.monotonic() < give_up, "somebody stays connected"
    counts = "SELECT n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables"
    found = plain.execute(f"{counts} WHERE relname = 'jobs'".encode()).fetchone()
    assert found is not None
    return tuple(found)


def live(jobs: JobRepository, number: int, renewals: int = 0) -> None:
    """A job's whole life."""
    assert jobs.enqueue({"id": f"job-{number}", "qty": 1}, NOW, 60_000)
    ticket = jobs.claim("me", NOW)
    for later in range(renewals):
        assert ticket is not None
        ticket = jobs.renew(ticket, NOW + later, 2000)
    assert ticket is not None
    assert jobs.finish(ticket, "ok", NOW) == "done"


def test_each_step_of_a_job_is_one_row_version(engine: Engine, plain: Plain) -> None:
    jobs = JobRepository(engine)
    for number in range(10):
        live(jobs, number, renewals=2)
    assert written(engine, plain) == (10, 10 * (1 + 2 + 1), 0)


def test_what_changes_nothing_leaves_nothing_behind(engine: Engine, plain: Plain) -> None:
    jobs = JobRepository(engine)
    jobs.enqueue({"id": "a", "qty": 1}, NOW, 60_000)
    ticket = jobs.claim("me", NOW)
    assert ticket is not None
    before = written(engine, plain)
    for _ in range(10):
        assert jobs.claim("other", NOW) is None
        assert jobs.claim("other", NOW, job_id="a") is None
        assert jobs.enqueue({"id": "a", "qty": 1}, NOW, 60_000) is False
        assert jobs.finish({**ticket, "token": 9}, "ok", NOW) is False
        assert jobs.recover(NOW)["recovered"] == 0
        with engine.begin() as connection:
            assert jobs.within(connection).claim("other", NOW) is None
    assert written(engine, plain) == before


def claims_blocks(engine: Engine) -> int:
    """The blocks, in memory or not, that a claim looks at which finds nothing."""
    sent: list[tuple[str, Any]] = []

    def note(connection: Connection, cursor: Any, statement: str, values: Any, *_: object) -> None:
        sent.append((f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", values))

    event.listen(engine, "before_cursor_execute", note)
    assert JobRepository(engine).claim("me", NOW) is None
    event.remove(engine, "before_cursor_execute", note)
    with engine.connect() as connection:
        plans = [connection.exec_driver_sql(*again).scalar_one()[0]["Plan"] for again in sent]
    (plan,) = plans
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_a_claim_passes_what_an_old_snapshot_keeps_once_a_question(engine: Engine) -> None:
    jobs = JobRepository(engine)
    live(jobs, 0)
    at_first = claims_blocks(engine)
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as reader:
        reader.execute(text("SELECT count(*) FROM jobs"))
        for number in range(1, JOBS + 1):
            live(jobs, number)
        in_the_end = claims_blocks(engine)
        assert reader.execute(text("SELECT count(*) FROM jobs")).scalar_one() == 1
    # At worst each question of its statements looks at each version once, whatever the plan.
    assert in_the_end - at_first <= QUESTIONS * LIFE * JOBS
