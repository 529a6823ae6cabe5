"""Workers as real processes: killed, stopped, poisoned, told to end; and a server that goes away
under one."""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import ReferenceType

import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from leasestore import (
    Delivery,
    JobRepository,
    Permanent,
    Retryable,
    Worked,
    Worker,
    immediate,
    system_clock,
)
from tests.crash import worker_processes as processes
from tests.crash.children import Child, Start
from tests.crash.postgresql_server import own_server
from tests.support import rows
from tests.worker.conftest import told
from tests.worker.scene import Gate, Queue, Told, at_work, join_workers

pytestmark = pytest.mark.crash

__all__ = ["told"]

LEASE_MS = 200
KILLS = 200
TOGETHER = 4
JOBS = 5_000


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def queue(path: Path) -> Iterator[Queue]:
    engine = create_engine(url_of(path))
    yield Queue(engine, JobRepository(engine))
    join_workers()
    engine.dispose()


@pytest.mark.parametrize("face", ["plain", "coroutine"])
def test_a_worker_that_stood_still_past_its_lease_writes_nothing(
    start: Start, path: Path, queue: Queue, face: str
) -> None:
    queue.enqueue("a")
    stopped = start(processes.work_and_fence, url_of(path), face, {"lease_ms": LEASE_MS})
    assert stopped.hear("send") == "a"
    stopped.stop()

    taken = Gate()

    def send(_: Any) -> bool:
        taken.stand()
        return True

    with at_work(Worker(queue.jobs, send, poll_ms=5)) as other:
        taken.came()
        taken.open()
        while queue.row("a")["status"] != "done":
            pass
        assert other.stopped() == Worked(done=1, ended="stopped")
    before = rows(path)
    assert [(row["status"], row["token"]) for row in before] == [("done", 2)]

    stopped.tell("go on")
    stopped.go_on()
    assert stopped.hear("refused") is True
    worked = stopped.hear("ended")
    assert (worked["stale"], worked["done"]) == (1, 0)
    assert stopped.ended() == 0
    assert rows(path) == before


class Nursery:
    """Workers forked by one process, and what they say that they send."""

    def __init__(self, start: Start, path: Path, pipe: Path) -> None:
        os.mkfifo(pipe)
        # For writing too, so that reading waits while no worker is there.
        self._told = os.fdopen(os.open(pipe, os.O_RDWR), "rb", buffering=0)
        self._nurse: Child = start(processes.nurse, url_of(path), str(pipe))
        self._lines = b""
        self.alive: list[int] = []

    def fork(self, **settings: Any) -> int:
        self._nurse.tell(("fork", settings))
        child: int = self._nurse.hear("forked")
        self.alive.append(child)
        return child

    def kill(self, child: int, number: signal.Signals) -> None:
        os.kill(child, number)

    def wait(self, child: int) -> int:
        self._nurse.tell(("wait", child))
        code: int = self._nurse.hear("ended")
        self.alive.remove(child)
        return code

    def sent(self) -> str:
        """The next job that somebody sends."""
        while b"\n" not in self._lines:
            self._lines += self._told.read(4096)
        line, _, self._lines = self._lines.partition(b"\n")
        return line.decode()

    def close(self) -> list[str]:
        """What else was sent."""
        for child in self.alive:
            os.kill(child, signal.SIGKILL)
        os.set_blocking(self._told.fileno(), False)
        rest = self._lines + (self._told.read(1 << 20) or b"")
        self._told.close()
        return rest.decode().split()


@pytest.fixture
def nursery(start: Start, path: Path, tmp_path: Path) -> Iterator[Nursery]:
    made = Nursery(start, path, tmp_path / "told")
    yield made
    if not made._told.closed:
        made.close()


@pytest.mark.timeout(400)
def test_every_job_ends_once_however_often_workers_are_killed(
    nursery: Nursery, path: Path, queue: Queue
) -> None:
    chance = random.Random(7)
    enqueued, kills = 0, 0
    sent: Counter[str] = Counter()

    def keep_busy() -> None:
        nonlocal enqueued
        while enqueued - len(sent) < 40:
            queue.enqueue(f"job-{enqueued}", max_attempts=1 + enqueued % 4)
            enqueued += 1

    settings = {"lease_ms": LEASE_MS, "poll_ms": 5, "concurrency": 2, "grace_ms": 30_000}
    for _ in range(TOGETHER):
        nursery.fork(**settings)
    while kills < KILLS:
        keep_busy()
        for _ in range(chance.randint(1, 6)):
            sent[nursery.sent()] += 1
        victim = chance.choice(nursery.alive)
        nursery.kill(victim, signal.SIGKILL)
        assert nursery.wait(victim) == -signal.SIGKILL
        kills += 1
        nursery.fork(**settings)
    while any(row["status"] in ("pending", "leased") for row in rows(path)):
        pass
    for child in list(nursery.alive):
        nursery.kill(child, signal.SIGTERM)
    # One that was forked just now may not have got as far as to heed the signal.
    codes = {nursery.wait(child) for child in list(nursery.alive)}
    assert codes <= {0, -signal.SIGTERM}
    sent.update(nursery.close())

    endings = Counter((row["status"], row["reason"]) for row in rows(path))
    assert set(endings) <= {("done", None), ("dead", "exhausted")}
    assert endings["done", None] > endings["dead", "exhausted"] > 0
    for row in rows(path):
        assert row["attempts"] <= row["max_attempts"], row
        assert sent[row["id"]] <= row["attempts"], (row, sent[row["id"]])
        assert row["status"] == "dead" or sent[row["id"]] >= 1, row
        if row["status"] == "dead":
            assert row["attempts"] == row["max_attempts"], row


def test_a_job_that_kills_its_worker_every_time_ends_dead(
    nursery: Nursery, path: Path, queue: Queue
) -> None:
    queue.enqueue("poison")
    queue.enqueue(*(f"behind-{n}" for n in range(5)))
    codes = []
    while any(row["status"] in ("pending", "leased") for row in rows(path)):
        worker = nursery.fork(lease_ms=LEASE_MS, poll_ms=5, until_empty=True)
        codes.append(nursery.wait(worker))
    assert codes.count(9) == 3
    sent = nursery.close()
    assert sent.count("poison") == 3
    assert sorted(set(sent) - {"poison"}) == [f"behind-{n}" for n in range(5)]
    assert [(row["status"], row["reason"], row["attempts"]) for row in rows(path)] == [
        ("dead", "exhausted", 3),
        *[("done", None, 1)] * 5,
    ]


PHASES = {
    "before the claim": ({"released": 1}, ("pending", "released", 0)),
    "after the claim": ({"released": 1}, ("pending", "released", 0)),
    "sending": ({"done": 1}, ("done", None, 1)),
    "before the finish": ({"done": 1}, ("done", None, 1)),
    # It has claimed the next one by then.
    "after the finish": ({"done": 1, "released": 1}, ("done", None, 1)),
}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_in_any_phase_loses_nothing(
    start: Start, path: Path, queue: Queue, phase: str, number: signal.Signals
) -> None:
    counts, end = PHASES[phase]
    queue.enqueue("a", "b", max_attempts=1)
    worker = start(processes.stand_at, url_of(path), phase, {"lease_ms": LEASE_MS})
    assert worker.listen() == ("started",)
    worker.hear("stands")
    worker.signal(number)
    worker.hear("stopping")
    worker.tell("go on")
    worked = worker.hear("ended")
    assert worked.pop("ended") == "stopped"
    assert {name: count for name, count in worked.items() if count} == counts
    assert worker.ended() == 0
    assert queue.end("a") == end
    reason = "released" if phase == "after the finish" else None
    assert queue.end("b") == ("pending", reason, 0)


def test_a_signal_ends_an_idle_worker(start: Start, path: Path) -> None:
    worker = start(processes.stand_at, url_of(path), "idle", {"poll_ms": 3_600_000})
    worker.hear("started")
    worker.signal(signal.SIGTERM)
    worker.hear("stopping")
    assert worker.hear("ended")["ended"] == "stopped"
    assert worker.ended() == 0


def test_a_second_signal_ends_one_with_a_wedged_handler(
    start: Start, path: Path, queue: Queue
) -> None:
    queue.enqueue("a")
    worker = start(processes.stand_at, url_of(path), "wedged", {"grace_ms": 3_600_000})
    worker.hear("started")
    worker.hear("stands")
    worker.signal(signal.SIGTERM)
    worker.hear("stopping")
    worker.signal(signal.SIGTERM)
    worked = worker.hear("ended")
    assert (worked["ended"], worked["running"]) == ("forced", 1)
    # The thread of the handler keeps no process alive.
    assert worker.ended() == 0
    assert queue.row("a")["status"] == "leased"


def test_a_postgresql_server_that_goes_away_and_comes_back(told: Told) -> None:
    with own_server() as server:
        engine = create_engine(server.fresh())
        queue = Queue(engine, JobRepository(engine))
        queue.enqueue("during")
        gate = Gate()

        def send(event: Any) -> bool:
            gate.stand(event["id"])
            return True

        worker = Worker(queue.jobs, send, lease_ms=60_000, poll_ms=10, concurrency=2)
        with at_work(worker) as going:
            assert gate.came() == "during"
            server.stop()
            # The job has finished, the server is away, and it goes on trying, both ways.
            gate.open()
            told.wait_for("unsettled")
            told.wait_for("outage")
            server.restart("immediate")
            told.wait_for("done")
            told.wait_for("outage-over")
            queue.enqueue("after")
            told.wait_for("done", 2)
            server.restart("fast")
            told.wait_for("outage-over", 2)
            assert going.stopped() == Worked(done=2, ended="stopped")
        for job_id in ("during", "after"):
            assert queue.end(job_id) == ("done", None, 1)
        engine.dispose()


def test_one_that_stays_away_for_longer_than_a_lease_loses_no_job(told: Told) -> None:
    with own_server() as server:
        engine = create_engine(server.fresh())
        queue = Queue(engine, JobRepository(engine))
        queue.enqueue("a")
        gates = [Gate(), Gate()]
        runs: list[str] = []

        def send(event: Any) -> bool:
            runs.append(event["id"])
            gates[len(runs) - 1].stand()
            return True

        worker = Worker(queue.jobs, send, lease_ms=500, poll_ms=10)
        with at_work(worker) as going:
            gates[0].came()
            server.stop()
            told.wait_for("lost")
            gates[0].open()
            told.wait_for("outage")
            server.restart("immediate")
            gates[1].came()
            gates[1].open()
            told.wait_for("done")
            worked = going.stopped()
        assert (worked.done, worked.left + worked.stale) == (1, 1)
        assert runs == ["a", "a"]
        assert queue.end("a") == ("done", None, 2)
        engine.dispose()


def many(path: Path, jobs: int) -> None:
    """So many jobs at once, past the verbs, which would take a commit for each."""
    engine = create_engine(url_of(path))
    now = system_clock()
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO jobs (id, qty, status, attempts, max_attempts, token, available_at, "
            "deadline) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n "
            f"WHERE i < {jobs}) SELECT 'job-' || i, 1, 'pending', 0, 3, 0, 0, {now + 3_600_000} "
            "FROM n"
        )
    engine.dispose()


def sparing_the_disk(path: Path) -> Engine:
    """Every lock is taken as ever; only the disk is not waited for."""
    engine = create_engine(url_of(path))

    @event.listens_for(engine, "connect")
    def spare(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        connection.cursor().execute("PRAGMA synchronous = OFF")

    return engine


@pytest.mark.timeout(400)
def test_eight_threads_on_one_file_never_see_it_locked(path: Path, told: Told) -> None:
    logging.getLogger("leasestore.worker").setLevel(logging.WARNING)
    many(path, JOBS)
    engine = sparing_the_disk(path)
    worker = Worker(JobRepository(engine), lambda _: True, concurrency=8)
    assert worker.run(until_empty=True) == Worked(done=JOBS, ended="empty")
    assert told.texts() == []
    assert {row["attempts"] for row in rows(path)} == {1}
    engine.dispose()


@pytest.mark.timeout(400)
def test_a_worker_keeps_nothing_of_the_jobs_that_it_has_done(path: Path, told: Told) -> None:
    logging.getLogger("leasestore.worker").setLevel(logging.CRITICAL)
    many(path, 2 * JOBS)
    engine = sparing_the_disk(path)
    counted: list[int] = []

    def send(delivery: Delivery) -> bool:
        number = int(delivery.id.partition("-")[2])
        if number in (JOBS // 10, JOBS, 2 * JOBS):
            gc.collect()
            # sqlite3 itself keeps up to 200 dead references to cursors of each connection.
            counted.append(sum(type(each) is not ReferenceType for each in gc.get_objects()))
        if number % 100 == 7:
            raise Retryable("again", delay_ms=0) if delivery.attempt == 1 else Permanent("never")
        if number % 100 == 8:
            with Session(engine) as session, immediate(session):
                delivery.finish_within(session)
        return True

    worker = Worker(JobRepository(engine), send, concurrency=2)
    worked = worker.run(until_empty=True)
    few = 2 * JOBS // 100
    assert worked == Worked(done=2 * JOBS - few, retried=few, dead=few, ended="empty")
    first, middle, last = counted
    assert max(middle, last) - first < 100, counted
    engine.dispose()
