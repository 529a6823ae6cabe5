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


def states(url: URL) -> dict[str, tuple[str, str | None, int]]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = connection.execute(select(Job.id, Job.status, Job.owner, Job.token)).all()
    engine.dispose()
    return {name: (status, owner, token) for name, status, owner, token in found}


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


def test_eight_that_claim_batches_share_the_jobs(start: Start, url: URL) -> None:
    enqueue(url, JOBS)
    eight = at_once(start, url, "take_in_batches", 8)
    batches = {owner: child.hear("answer") for owner, child in eight.items()}

    sizes = Counter(len(batch) for shares in batches.values() for batch in shares)
    assert max(sizes) <= LIMIT
    taken = {
        ticket["id"]: ("leased", owner, ticket["token"])
        for owner, shares in batches.items()
        for batch in shares
        for ticket in batch
    }
    assert sum(size * count for size, count in sizes.items()) == len(taken) == JOBS
    assert states(url) == taken
