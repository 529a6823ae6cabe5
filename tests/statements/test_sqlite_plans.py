"""No statement of SQLite's walks through the table or sorts the backlog, whatever the rows are and
whether or not ANALYZE has counted them."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event

from leasestore import JobRepository, Ticket, schema

NOW = 1000
BACKLOGS: dict[str, list[tuple[Any, ...]]] = {
    "empty": [],
    "ready": [("pending", 0, 9000, None)],
    "done": [("done", 0, 9000, None)] * 20 + [("pending", 0, 9000, None)],
    "delayed": [("pending", 5000, 9000, None)] * 5 + [("pending", 0, 9000, None)],
    "leased": [("leased", 0, 9000, 5000)] * 5 + [("leased", 0, 9000, 500)],
    "late": [("pending", 0, 900, None)],
}
"""By name: status, available_at, deadline and lease_until of rows that come again and again."""


def queue_file(path: Path, rows: Iterable[tuple[Any, ...]], analyzed: bool) -> Path:
    engine = create_engine(f"sqlite:///{path}")
    schema.upgrade(engine)
    engine.dispose()
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.executemany(
            "INSERT INTO jobs (id, qty, status, attempts, max_attempts, token, available_at,"
            " deadline, owner, lease_until) VALUES (?, 1, ?, 1, 3, 1, ?, ?, 'me', ?)",
            [(f"job-{number}", *row) for number, row in enumerate(rows)],
        )
        if analyzed:
            plain.execute("ANALYZE")
    return path


@pytest.fixture(params=[f"{name}{how}" for name in BACKLOGS for how in ("", ", analyzed")])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    name, _, analyzed = request.param.partition(",")
    rows = islice(cycle(BACKLOGS[name]), 6000)
    return queue_file(tmp_path / "queue.db", rows, bool(analyzed))


@pytest.fixture
def engine(file: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{file}")
    yield engine
    engine.dispose()


def plans(engine: Engine) -> list[str]:
    """What SQLite does at each statement that is sent from now on."""
    steps: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def explain(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        plan = cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
        steps.extend(detail for *_, detail in plan.fetchall())

    return steps


HELD: Ticket = {
    "id": "job-1", "qty": 1, "owner": "me", "token": 1, "attempt": 1, "lease_until": 5000,
}  # fmt: skip


def test_every_step_finds_its_rows_by_an_index(engine: Engine) -> None:
    steps, jobs = plans(engine), JobRepository(engine)
    jobs.claim("me", NOW)
    jobs.claim("me", NOW, job_id="job-5")
    jobs.claim_batch("me", NOW, 5)
    jobs.enqueue({"id": "job-x", "qty": 1}, NOW, 1000)
    jobs.get("job-5")
    jobs.renew(HELD, NOW)
    jobs.release(HELD)
    jobs.finish(HELD, "retry", NOW)
    jobs.stuck(NOW)
    jobs.recover(NOW)
    assert len(steps) > 20
    walks = [
        step
        for step in steps
        if re.match(r"SCAN jobs(?! USING INDEX ix_jobs_block$)", step) or "TEMP B-TREE" in step
    ]
    assert walks == []


def test_a_batch_looks_up_each_of_its_jobs_by_its_id(engine: Engine) -> None:
    steps, jobs = plans(engine), JobRepository(engine)
    (new,) = jobs.enqueue_many([{"id": "job-2", "qty": 2}], NOW, 1000)
    renewed = jobs.renew_batch([HELD], NOW, 6000)
    held: Ticket = renewed[0] or HELD
    assert jobs.finish_batch([(held, "retry", 0)], NOW) == ["pending" if renewed[0] else False]
    touched = [step for step in steps if re.search(r"\bjobs\b", step)]
    # One that is known is read; those that may act are found once more, to be changed.
    assert len(touched) == (1 if new is True else 2) + (4 if renewed[0] else 2)
    assert all(re.fullmatch(r"SEARCH jobs USING INDEX \w+ \(id=\?\)", step) for step in touched)


def steps_of_a_claim(engine: Engine) -> int:
    """Of SQLite's virtual machine, in hundreds."""
    counted = []

    @event.listens_for(engine, "before_cursor_execute")
    def count(connection: Any, cursor: Any, *_: Any) -> None:
        cursor.connection.set_progress_handler(lambda: counted.append(1), 100)

    JobRepository(engine).claim("me", NOW)
    event.remove(engine, "before_cursor_execute", count)
    return len(counted)


def test_a_backlog_costs_a_claim_no_more_than_a_look_at_each_block(engine: Engine) -> None:
    JobRepository(engine).claim("sweeper", NOW)
    # Six blocks, of which one is looked through: at most 1024 entries of an index.
    assert steps_of_a_claim(engine) < 100


@pytest.mark.parametrize("analyzed", [False, True])
def test_a_job_that_dies_in_front_of_others_that_wait_leads_no_claim_to_them(
    tmp_path: Path, analyzed: bool
) -> None:
    late, delayed = BACKLOGS["late"], BACKLOGS["delayed"][:1]
    rows = [*late, *delayed * 6000, *late, *BACKLOGS["ready"]]
    engine = create_engine(f"sqlite:///{queue_file(tmp_path / 'queue.db', rows, analyzed)}")
    assert steps_of_a_claim(engine) < 100
    engine.dispose()
    with closing(sqlite3.connect(tmp_path / "queue.db")) as plain:
        changed = "SELECT id, status FROM jobs WHERE status <> 'pending'"
        expected = [("job-0", "dead"), ("job-6001", "dead"), ("job-6002", "leased")]
        assert plain.execute(changed).fetchall() == expected
