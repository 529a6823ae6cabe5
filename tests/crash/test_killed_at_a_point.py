"""A process killed in the middle of a verb leaves the file as before it or as after it, and the
next process goes on from there."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from leasestore import open_queue
from tests.crash import workers
from tests.crash.children import Start, is_locked, is_sound
from tests.support import insert_row, rows

pytestmark = pytest.mark.crash

LEASED = {
    "status": "leased",
    "attempts": 1,
    "token": 1,
    "owner": "owner",
    "lease_until": 1000,
    "deadline": 60_000,
}
DEAD = {"status": "dead", "attempts": 3, "token": 3, "reason": "exhausted"}
TICKET = {
    "id": "job-1",
    "qty": 1,
    "owner": "owner",
    "token": 1,
    "attempt": 1,
    "lease_until": 1000,
}
REDRIVE = {"job_id": "job-1", "now_ms": 2000, "ttl_ms": 60_000, "note": "again"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "claim": ({}, {"owner": "owner", "now_ms": 0}, ("after-claim",)),
    "finish": (LEASED, {"ticket": TICKET, "outcome": "ok", "now_ms": 10}, ("after-finish",)),
    "renew": (LEASED, {"ticket": TICKET, "now_ms": 10}, ("after-renew",)),
    "release": (LEASED, {"ticket": TICKET}, ("after-release",)),
    "redrive": (DEAD, REDRIVE, ("after-audit", "after-redrive")),
    "finish_and_claim": (
        LEASED,
        {"ticket": TICKET, "outcome": "retry", "owner": "owner", "now_ms": 10},
        ("after-finish", "after-claim"),
    ),
    "claim_batch": ({}, {"owner": "owner", "now_ms": 0, "limit": 5}, ("after-claim",)),
    "renew_batch": (LEASED, {"tickets": [TICKET], "now_ms": 10}, ("after-renew",)),
    "finish_batch": (LEASED, {"items": [(TICKET, "ok", 0)], "now_ms": 10}, ("after-finish",)),
}
"""Of each verb: the row it starts from, its arguments, and its points before COMMIT."""


def tables(path: Path) -> tuple[list[dict[str, Any]], ...]:
    return rows(path), rows(path, "redrives")


def after(path: Path, verb: str, arguments: dict[str, Any]) -> tuple[list[dict[str, Any]], ...]:
    """What the verb makes of a copy of the file if nobody is killed."""
    twin = Path(shutil.copy(path, path.with_name("twin.db")))
    with open_queue(twin) as queue:
        getattr(queue, verb)(**arguments)
    return tables(twin)


@pytest.mark.parametrize(
    ("verb", "point"), [(verb, point) for verb, (_, _, points) in CASES.items() for point in points]
)
def test_killed_before_commit_nothing_has_happened(
    start: Start, path: Path, verb: str, point: str
) -> None:
    row, arguments, _ = CASES[verb]
    insert_row(path, **row)
    before, expected = tables(path), after(path, verb, arguments)
    victim = start(workers.pause_at, str(path), point, verb, arguments)
    successor = start(workers.obey)

    victim.hear(point)
    assert is_locked(path)
    victim.kill()

    assert path.with_name("queue.db-journal").exists(), "there is something to recover"
    successor.tell(str(path))
    successor.hear("open")
    assert successor.call("get", job_id="job-1") == before[0][0]
    assert tables(path) == before
    assert is_sound(path)
    assert successor.call(verb, **arguments)
    assert tables(path) == expected


@pytest.mark.parametrize("verb", CASES)
def test_killed_after_commit_all_has_happened(start: Start, path: Path, verb: str) -> None:
    row, arguments, _ = CASES[verb]
    insert_row(path, **row)
    before, expected = tables(path), after(path, verb, arguments)
    victim = start(workers.pause_at, str(path), "after-commit", verb, arguments)
    successor = start(workers.obey)

    victim.hear("after-commit")
    assert not is_locked(path)
    victim.kill()

    successor.tell(str(path))
    successor.hear("open")
    assert successor.call("get", job_id="job-1") == expected[0][0] != before[0][0]
    assert tables(path) == expected
    assert is_sound(path)
    successor.call("enqueue", event={"id": "job-2", "qty": 1}, now_ms=0, ttl_ms=1000)
    ticket = successor.call("claim", owner="owner", now_ms=0, job_id="job-2")
    assert successor.call("finish", ticket=ticket, outcome="ok", now_ms=0) == "done"


def test_killed_during_enqueue_there_is_no_job(start: Start, path: Path) -> None:
    content = {"id": "job-1", "qty": 1}
    victim = start(workers.enqueue_and_pause, str(path), content)
    successor = start(workers.obey)

    victim.hear("clock")
    assert is_locked(path)
    victim.kill()

    assert rows(path) == []
    successor.tell(str(path))
    successor.hear("open")
    assert successor.call("enqueue", event=content, now_ms=0, ttl_ms=1000) is True
    assert [row["id"] for row in rows(path)] == ["job-1"]


def test_killed_with_half_the_change_in_the_file_nothing_has_happened(
    start: Start, path: Path
) -> None:
    ended = [(f"ended-{i}",) for i in range(2000)]
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.executemany(
            "INSERT INTO jobs VALUES (NULL, ?, 1, 'leased', 3, 3, 3, 0, 60000, 'owner', 500, NULL)",
            ended,
        )
    insert_row(path, deadline=60_000)
    before, content_before = tables(path), path.read_bytes()
    victim = start(workers.spill_and_pause, str(path))
    successor = start(workers.obey)

    victim.hear("after-claim")
    victim.kill()

    assert path.read_bytes() != content_before, "changed pages are in the file"
    successor.tell(str(path))
    successor.hear("open")
    assert successor.call("stuck", now_ms=1000, limit=1) == before[0][:1]
    assert path.read_bytes() == content_before
    assert is_sound(path)
    assert successor.call("claim", owner="owner", now_ms=1000)["id"] == "job-1"
    assert {row["status"] for row in rows(path)} == {"dead", "leased"}
