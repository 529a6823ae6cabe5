"""Batches of several processes at once: each job is one process's, and no batch is too long."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine, insert, make_url, select

from leasestore import Job
from tests.crash import workers
from tests.crash.children import Child, Start

pytestmark = pytest.mark.crash
JOBS = 2000
LIMIT = 7


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> URL:
    if request.param == "sqlite":
        path: Path = request.getfixturevalue("path")
        return make_url(f"sqlite:///{path}")
    fresh: URL = request.getfixturevalue("postgresql").fresh()
    return fresh


def enqueue(url: URL, how_many: int) -> None:
    pending = {"status": "pending", "attempts": 0, "max_attempts": 3, "token": 0}
    rows = [
        {"id": f"job-{number}", "qty": 1, "available_at": 0, "deadline": 60_000, **pending}
        for number in range(how_many)
    ]
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(insert(Job), rows)
    engine.dispose()


def ends(url: URL) -> dict[str, tuple[str, int]]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = connection.execute(select(Job.id, Job.status, Job.token)).all()
    engine.dispose()
    return {name: (status, token) for name, status, token in found}


def at_once(start: Start, url: URL, work: str, how_many: int) -> dict[str, Child]:
    address = url.render_as_string(hide_password=False)
    children = {
        f"worker-{number}": start(getattr(workers, work), address, f"worker-{number}", LIMIT)
        for number in range(how_many)
    }
    for child in children.values():
        child.hear("ready")
    for child in children.values():
        child.tell("go")
    return children


def test_eight_that_work_in_batches_share_the_jobs(start: Start, url: URL) -> None:
    enqueue(url, JOBS)
    eight = at_once(start, url, "drain_in_batches", 8)
    batches = [batch for child in eight.values() for batch in child.hear("answer")]

    assert max(map(len, batches)) <= LIMIT
    taken = Counter(ticket["id"] for batch in batches for ticket in batch)
    assert taken == Counter(f"job-{number}" for number in range(JOBS))
    assert ends(url) == dict.fromkeys(taken, ("done", 1))


def test_of_eight_that_enqueue_the_same_one_stores_each_job(start: Start, url: URL) -> None:
    eight = at_once(start, url, "enqueue_in_batches", 8)
    new = Counter(name for child in eight.values() for name in child.hear("answer"))

    assert new == Counter(f"job-{number}" for number in range(40 * LIMIT))
    assert ends(url) == dict.fromkeys(new, ("pending", 0))
