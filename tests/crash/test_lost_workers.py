"""Workers that die or stand still: their jobs are done by others, and what they say later does
not count."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from leasestore import open_queue
from tests.crash import workers
from tests.crash.children import Child, Start, first_to_speak
from tests.support import rows

pytestmark = pytest.mark.crash

LEASE_MS = 100
KILLS = 30


def enqueue(path: Path, job_id: str, max_attempts: int = 3) -> None:
    with open_queue(path) as queue:
        queue.enqueue({"id": job_id, "qty": 1}, 0, 60_000, max_attempts)


def has_open_jobs(path: Path) -> bool:
    return any(row["status"] in ("pending", "leased") for row in rows(path))


def begin(worker: Child) -> None:
    worker.hear("ready")
    worker.tell("go")


def at(worker: Child, now_ms: int) -> None:
    worker.hear("clock")
    worker.tell(now_ms)


def test_a_worker_started_again_under_its_name_is_not_the_one_before(
    start: Start, path: Path
) -> None:
    enqueue(path, "job-1")
    first, second = start(workers.obey), start(workers.obey)
    first.tell(str(path))
    first.hear("open")
    old = first.call("claim", owner="worker", now_ms=0)
    first.kill()

    second.tell(str(path))
    second.hear("open")
    assert second.call("claim", owner="worker", now_ms=999) is None
    new = second.call("claim", owner="worker", now_ms=1000)
    assert (old["owner"], old["token"]) == ("worker", 1)
    assert (new["owner"], new["token"]) == ("worker", 2)

    before, content_before = rows(path), path.read_bytes()
    for now_ms in (999, 1000, 1001):
        for outcome in ("ok", "retry", "permanent"):
            told = {"ticket": old, "outcome": outcome, "now_ms": now_ms}
            assert second.call("finish", **told) is False
        assert second.call("renew", ticket=old, now_ms=now_ms) is None
    assert second.call("release", ticket=old) is False
    assert rows(path) == before
    assert path.read_bytes() == content_before

    assert second.call("finish", ticket=new, outcome="ok", now_ms=1001) == "done"


@pytest.mark.parametrize("wakes", ["while another works the job", "after another has done it"])
def test_a_worker_stopped_past_its_lease_finishes_nothing(
    start: Start, path: Path, wakes: str
) -> None:
    enqueue(path, "job-1")
    stopped = start(workers.deliver, str(path), "worker", LEASE_MS)
    other = start(workers.deliver, str(path), "worker", LEASE_MS)
    begin(stopped)
    at(stopped, 0)
    stopped.hear("send")
    stopped.stop()
    stopped.tell(True)

    begin(other)
    at(other, LEASE_MS)
    other.hear("send")

    def other_finishes() -> None:
        other.tell(True)
        at(other, LEASE_MS + 1)
        assert other.hear("end") == {"id": "job-1", "token": 2, "status": "done"}

    def stopped_wakes() -> None:
        before = rows(path)
        stopped.go_on()
        at(stopped, LEASE_MS + 1)
        assert stopped.hear("end") == {"id": "job-1", "token": 1, "status": "stale"}
        assert rows(path) == before

    if wakes == "while another works the job":
        stopped_wakes()
        other_finishes()
    else:
        other_finishes()
        stopped_wakes()
    assert [(row["status"], row["token"]) for row in rows(path)] == [("done", 2)]


def test_a_job_that_kills_its_workers_ends_dead_and_holds_nobody_back(
    start: Start, path: Path
) -> None:
    enqueue(path, "poison", max_attempts=3)
    for number in range(3):
        enqueue(path, f"behind-{number}")
    started: list[str] = []
    lives = [start(workers.deliver, str(path), "worker", LEASE_MS) for _ in range(4)]

    for life, worker in enumerate(lives):
        begin(worker)
        now_ms = life * LEASE_MS
        while True:
            said, *rest = worker.listen()
            if said == "send":
                started.append(rest[0]["id"])
                if started[-1] == "poison":
                    worker.kill()
                    break
            if (said, *rest) == ("end", None):
                break
            worker.tell({"clock": now_ms, "send": True, "end": None}[said])

    assert started == ["poison"] * 3 + ["behind-0", "behind-1", "behind-2"]
    assert [(row["id"], row["status"], row["reason"], row["attempts"]) for row in rows(path)] == [
        ("poison", "dead", "exhausted", 3),
        ("behind-0", "done", None, 1),
        ("behind-1", "done", None, 1),
        ("behind-2", "done", None, 1),
    ]


def test_every_job_ends_once_however_often_workers_are_killed(start: Start, path: Path) -> None:
    chance = random.Random(20)
    for number in range(60):
        enqueue(path, f"job-{number}", max_attempts=1 + number % 3)

    def new_worker() -> Child:
        return start(workers.deliver_in_small_steps, str(path), "worker", LEASE_MS)

    at_work: list[Child] = []
    spare = [new_worker() for _ in range(4)]  # started ahead: a start takes longer than a job
    sent: Counter[str] = Counter()
    finished: Counter[str] = Counter()
    now_ms, kills, until_next_kill = 0, 0, 10

    while has_open_jobs(path) or at_work:
        while has_open_jobs(path) and len(at_work) < 2:
            at_work.append(spare.pop(0))
            begin(at_work[-1])
            if kills + len(at_work) + len(spare) < KILLS + 2:
                spare.append(new_worker())
        worker = first_to_speak(at_work)
        said, *rest = worker.listen()
        if said == "send":
            sent[rest[0]["id"]] += 1
        elif (said, *rest[:1]) == ("after-commit", "finish"):
            finished[rest[1]] += 1
        elif (said, *rest) == ("end", None):
            if not has_open_jobs(path):
                at_work.remove(worker)
                continue
            now_ms += LEASE_MS  # what is open was held by the dead: let their leases end
        until_next_kill -= 1
        if until_next_kill <= 0 and kills < KILLS and said != "end":
            until_next_kill = chance.randint(1, 15)
            kills += 1
            worker.kill()
            at_work.remove(worker)
        else:
            worker.tell({"clock": now_ms, "send": True}.get(said))

    assert kills == KILLS
    for row in rows(path):
        ending = row["status"], row["reason"], finished[row["id"]]
        assert ending in {("done", None, 1), ("dead", "exhausted", 0)}, row
        assert row["attempts"] <= row["max_attempts"]
        assert sent[row["id"]] <= row["max_attempts"]
