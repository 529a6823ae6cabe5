"""Several processes on one file at the same moment: each gets an answer and none gets an error."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from leasestore import open_queue
from tests.crash import workers
from tests.crash.children import Child, Start, is_locked, is_sound
from tests.support import rows

pytestmark = pytest.mark.crash


def structure(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as plain:
        return list(plain.iterdump())


def obedient(start: Start, path: Path, how_many: int) -> list[Child]:
    children = [start(workers.obey) for _ in range(how_many)]
    for child in children:
        child.tell(str(path))
    for child in children:
        child.hear("open")
    return children


def test_of_two_that_claim_one_job_exactly_one_gets_it(start: Start, path: Path) -> None:
    two = obedient(start, path, 2)
    with open_queue(path) as queue:
        for round_ in range(50):
            job_id = f"job-{round_}"
            queue.enqueue({"id": job_id, "qty": 1}, 0, 60_000)
            for number, child in enumerate(two):
                child.tell(("claim", {"owner": f"worker-{number}", "now_ms": 0}))
            answers = [child.hear("answer") for child in two]
            won = [ticket for ticket in answers if ticket is not None]
            assert [(ticket["id"], ticket["token"]) for ticket in won] == [(job_id, 1)]
            row = queue.get(job_id)
            assert row is not None
            assert (row["owner"], row["token"], row["attempts"]) == (won[0]["owner"], 1, 1)


def test_four_drain_a_queue_and_each_job_is_done_once(start: Start, path: Path) -> None:
    jobs = [f"job-{number}" for number in range(200)]
    with open_queue(path) as queue:
        for job_id in jobs:
            queue.enqueue({"id": job_id, "qty": 1}, 0, 60_000)
    four = [start(workers.drain, str(path), f"worker-{number}") for number in range(4)]
    for child in four:
        child.hear("ready")
    for child in four:
        child.tell("go")

    sent = [job_id for child in four for job_id in child.hear("answer")]

    assert sorted(sent) == sorted(jobs)
    assert {(row["status"], row["attempts"], row["token"]) for row in rows(path)} == {
        ("done", 1, 1)
    }


@pytest.fixture(scope="module")
def eight() -> Iterator[list[Child]]:
    children = [Child(workers.open_files) for _ in range(8)]
    for child in children:
        child.hear("ready")
    yield children
    for child in children:
        child.discard()


def test_eight_that_open_a_missing_file_make_one_queue(eight: list[Child], tmp_path: Path) -> None:
    alone = tmp_path / "alone.db"
    with open_queue(alone):
        pass

    for round_ in range(5):
        together = tmp_path / f"together-{round_}.db"
        for child in eight:
            child.tell(str(together))
        for child in eight:
            child.hear("open")
        assert structure(together) == structure(alone)
        assert is_sound(together)


def test_eight_open_a_queue_while_another_holds_the_write_lock(
    eight: list[Child], path: Path
) -> None:
    with open_queue(path) as queue:
        queue.enqueue({"id": "job-1", "qty": 1}, 0, 60_000)
    before = structure(path)

    with closing(sqlite3.connect(path, isolation_level=None)) as another:
        another.execute("BEGIN IMMEDIATE")
        for child in eight:
            child.tell(str(path))
        for child in eight:
            child.hear("open")

    assert structure(path) == before


def test_while_one_sends_others_enqueue_claim_and_finish(start: Start, path: Path) -> None:
    with open_queue(path) as queue:
        queue.enqueue({"id": "slow", "qty": 1}, 0, 60_000)
    sender = start(workers.deliver, str(path), "sender", 1000)
    (other,) = obedient(start, path, 1)
    sender.hear("ready")
    sender.tell("go")
    sender.hear("clock")
    sender.tell(0)
    assert sender.hear("send") == {"id": "slow", "qty": 1}

    assert not is_locked(path)
    assert other.call("enqueue", event={"id": "quick", "qty": 1}, now_ms=0, ttl_ms=1000) is True
    ticket = other.call("claim", owner="other", now_ms=0)
    assert ticket["id"] == "quick"
    assert other.call("finish", ticket=ticket, outcome="ok", now_ms=1) == "done"

    sender.tell(True)
    sender.hear("clock")
    sender.tell(2)
    assert sender.hear("end") == {"id": "slow", "token": 1, "status": "done"}
