"""How a run begins, what it claims, and how it ends when nobody stops it."""

from __future__ import annotations

import functools
import logging
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from leasestore import (
    JobRepository,
    SchemaError,
    UnsupportedEngine,
    Watcher,
    Worked,
    Worker,
    database_clock,
    system_clock,
)
from leasestore.worker.hand import Hand
from tests.support import rows
from tests.worker.scene import (
    LONGEST_WAIT_S,
    SHORT_MS,
    Gate,
    Meddled,
    Queue,
    Told,
    at_work,
    is_claim,
    statements,
)

ROOT = Path(__file__).parents[2]


def ok(_: Any) -> bool:
    return True


def test_until_empty_works_all_there_is(either_queue: Queue) -> None:
    either_queue.enqueue(*(f"job-{n}" for n in range(30)))
    clock = database_clock(either_queue.engine)
    worker = Worker(either_queue.jobs, ok, concurrency=4, clock=clock)
    assert worker.run(until_empty=True) == Worked(done=30, ended="empty")
    assert {either_queue.end(f"job-{n}") for n in range(30)} == {("done", None, 1)}


def test_until_empty_waits_for_what_is_in_hand(queue: Queue) -> None:
    queue.enqueue("first")
    gate = Gate()

    def send(event: Any) -> bool:
        if event["id"] == "first":
            gate.stand()
            queue.enqueue("second")
        return True

    sent = statements(queue.engine)
    with at_work(Worker(queue.jobs, send, concurrency=2), until_empty=True) as going:
        gate.came()
        gate.open()
        assert going.ended() == Worked(done=2, ended="empty")
    # It did not ask over and over while it waited.
    assert sum(map(is_claim, sent)) < 40


def test_until_empty_works_what_a_job_enqueued_while_a_claim_found_nothing(
    meddled: Meddled, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is put down before anybody looks at what is in hand."""
    queue.enqueue("first")
    gate, is_put_down, put_down = Gate(), threading.Event(), Hand.put_down

    def putting_down(hand: Hand, *args: Any) -> None:
        put_down(hand, *args)
        is_put_down.set()

    def after_the_claim(*_: Any) -> None:
        if meddled.called.count("claim") == 2:
            gate.open()
            assert is_put_down.wait(LONGEST_WAIT_S)

    def send(event: Any) -> bool:
        if event["id"] == "first":
            gate.stand()
            queue.enqueue("second")
        return True

    monkeypatch.setattr(Hand, "put_down", putting_down)
    meddled.after["claim"] = after_the_claim
    worker = Worker(meddled, send, concurrency=2)
    assert worker.run(until_empty=True) == Worked(done=2, ended="empty")


def test_once_works_one_job(queue: Queue) -> None:
    queue.enqueue("a", "b")
    worker = Worker(queue.jobs, ok, concurrency=3)
    assert worker.run(once=True) == Worked(done=1, ended="once")
    assert worker.run(once=True) == Worked(done=1, ended="once")
    assert worker.run(once=True) == Worked(ended="empty")


def test_no_more_jobs_are_claimed_than_there_are_places(queue: Queue, told: Told) -> None:
    queue.enqueue("a", "b", "c", "d")
    gate = Gate()

    def send(_: Any) -> bool:
        gate.stand()
        return True

    worker = Worker(queue.jobs, send, concurrency=2, lease_ms=SHORT_MS)
    with at_work(worker, until_empty=True) as going:
        gate.came()
        gate.came()
        told.wait_for("renewed", 4)
        assert [queue.row(n)["status"] for n in "abcd"] == [*["leased"] * 2, *["pending"] * 2]
        gate.open()
        assert going.ended().done == 4


def test_a_job_enqueued_while_it_idles_is_worked(queue: Queue, told: Told) -> None:
    with at_work(Worker(queue.jobs, ok, poll_ms=20)) as going:
        told.wait_for("started")
        queue.enqueue("a")
        told.wait_for("done")
        assert going.stopped() == Worked(done=1, ended="stopped")


class CountedPauses:
    """A wakeup that passes the time of each pause without waiting, until it has counted so much."""

    def __init__(self, total_ms: int, share: float = 1) -> None:
        self._left_ms, self._share = float(total_ms), share
        self.pauses: list[int] = []
        self.done, self._over = threading.Event(), threading.Event()

    def wait(self, timeout_ms: int) -> bool:
        self._left_ms -= timeout_ms * self._share
        if self._left_ms < 0:
            self.done.set()
            return self._over.wait(LONGEST_WAIT_S)
        self.pauses.append(timeout_ms)
        return False

    def wake(self) -> None:
        self._over.set()

    def close(self) -> None:
        raise AssertionError("it is the caller's")


@pytest.mark.parametrize(("share", "at_most"), [(1, 64), (0.75, 84), (0.5, 124)])
def test_an_idle_minute_costs_little(queue: Queue, share: float, at_most: int) -> None:
    wakeup = CountedPauses(60_000, share)
    sent = statements(queue.engine)
    with at_work(Worker(queue.jobs, ok, wakeup=wakeup)) as going:
        assert wakeup.done.wait(LONGEST_WAIT_S)
        claims = sum(map(is_claim, sent))
        going.stopped()
    assert wakeup.pauses[:6] == [50, 100, 200, 400, 800, 1000]
    assert set(wakeup.pauses[5:]) == {1000}
    assert claims == len(wakeup.pauses) + 1 <= at_most
    assert len(sent) == claims


def test_a_wakeup_that_wakes_makes_it_look_at_once(queue: Queue) -> None:
    class Woken(CountedPauses):
        def wait(self, timeout_ms: int) -> bool:
            super().wait(timeout_ms)
            return True

    wakeup = Woken(500)
    with at_work(Worker(queue.jobs, ok, wakeup=wakeup)) as going:
        assert wakeup.done.wait(LONGEST_WAIT_S)
        going.stopped()
    assert set(wakeup.pauses) == {50}


def test_a_wakeup_that_fails_leaves_the_poll(queue: Queue, told: Told) -> None:
    tried = threading.Semaphore(0)

    class Broken(CountedPauses):
        def wait(self, timeout_ms: int) -> bool:
            tried.release()
            raise OSError("the wire is cut")

    with at_work(Worker(queue.jobs, ok, poll_ms=10, wakeup=Broken(0))) as going:
        for _ in range(3):
            assert tried.acquire(timeout=LONGEST_WAIT_S)
        queue.enqueue("a")
        told.wait_for("done")
        assert going.stopped().done == 1
    assert told.events("wakeup-failed") == ["wakeup-failed"]


def test_it_raises_before_anything_is_claimed_where_the_tables_are_missing(
    tmp_path: Path, told: Told
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'empty.db'}")
    worker = Worker(JobRepository(engine), ok)
    with pytest.raises(SchemaError, match="lacks jobs"):
        worker.run()
    assert told.events() == ["started", "ended"]
    engine.dispose()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the mode is younger")
def test_it_raises_where_the_engine_cannot_hold_a_transaction(path: Path) -> None:
    engine = create_engine(f"sqlite:///{path}", connect_args={"autocommit": True})
    with pytest.raises(UnsupportedEngine, match="autocommit"):
        Worker(JobRepository(engine), ok).run()
    engine.dispose()


def test_a_worker_runs_once_at_a_time_and_again_later(queue: Queue, told: Told) -> None:
    worker = Worker(queue.jobs, ok)
    assert worker.owner is None
    with at_work(worker) as going:
        told.wait_for("started")
        first = worker.owner
        with pytest.raises(RuntimeError, match="running already"):
            worker.run()
        going.stopped()
    assert worker.run(until_empty=True) == Worked(ended="empty")
    assert worker.owner != first


def test_names_tell_workers_apart(queue: Queue) -> None:
    names = set()
    for _ in range(3):
        worker = Worker(queue.jobs, ok)
        worker.run(until_empty=True)
        assert worker.owner
        assert re.fullmatch(rf"[A-Za-z0-9_-]+-{os.getpid()}-[0-9a-f]{{8}}", worker.owner)
        assert len(worker.owner) <= 64
        names.add(worker.owner)
    assert len(names) == 3
    named = Worker(queue.jobs, ok, owner="me")
    named.run(until_empty=True)
    assert named.owner == "me"


@pytest.mark.parametrize("host", ["h" * 300, "h\u00f6st.example.org", ""])
def test_a_name_is_an_identifier_whatever_the_host_is_called(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    queue.enqueue("a")
    assert Worker(queue.jobs, ok).run(once=True).done == 1


FORKED = """
import os, sys
from sqlalchemy import create_engine
from leasestore import JobRepository, Worker, system_clock
jobs = JobRepository(create_engine(sys.argv[1]))
for n in range(60):
    jobs.enqueue({"id": f"job-{n}", "qty": 1}, system_clock, 60_000)
def send(event):
    return True
def tell(worked):
    # At once, so that no two lines are mixed.
    line = f"{worker.owner} {worked.done} {worked.left} {worked.stale}"
    os.write(1, (line + os.linesep).encode())
worker = Worker(jobs, send, concurrency=2)
children = []
for _ in range(3):
    child = os.fork()
    if not child:
        tell(worker.run(until_empty=True))
        os._exit(0)
    children.append(child)
tell(worker.run(until_empty=True))
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
"""


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_forked_worker_has_a_name_and_connections_of_its_own(
    database: str, path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{path}"
    if database == "postgresql":
        url = request.getfixturevalue("postgresql").fresh().render_as_string(hide_password=False)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKED, url],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    told = [line.split() for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert len({name for name, *_ in told}) == 4
    assert sum(int(count) for _, count, *_ in told) == 60
    assert {tuple(rest) for _, _, *rest in told} == {("0", "0")}


def test_a_watcher_runs_beside_it_and_is_stopped_with_it(queue: Queue, path: Path) -> None:
    queue.enqueue("lost")
    ticket = queue.jobs.claim("gone", system_clock, 1)
    assert ticket
    found = Gate()

    def report(job: Any) -> None:
        found.stand(job["owner"])

    while system_clock() < ticket["lease_until"]:
        pass
    # A clock that stands still before the lease's end: the worker itself leaves the job alone.
    watcher = Watcher(queue.jobs, report=report)
    worker = Worker(queue.jobs, ok, clock=lambda: ticket["lease_until"] - 1, watcher=watcher)
    with at_work(worker) as going:
        assert found.came() == "gone"
        found.open()
        assert going.stopped().ended == "stopped"
    assert not [t for t in threading.enumerate() if t.name.endswith("watcher")]
    assert [row["owner"] for row in rows(path)] == [None]


def test_a_watcher_that_fails_is_no_reason_to_stop(queue: Queue, told: Told) -> None:
    class Broken:
        def run(self) -> None:
            raise SystemExit(1)

        def stop(self) -> None:
            pass

    queue.enqueue("a")
    with at_work(Worker(queue.jobs, ok, watcher=Broken())) as going:
        assert told.wait_for("watcher-failed").levelno == logging.ERROR
        told.wait_for("done")
        assert going.stopped().done == 1


def test_no_thread_is_left_and_no_connection(queue: Queue) -> None:
    async def send(_: Any) -> bool:
        return True

    before = set(threading.enumerate())
    queue.enqueue("a", "b")
    for handler in (ok, send):
        Worker(queue.jobs, handler, concurrency=3).run(until_empty=True)
    assert set(threading.enumerate()) == before
    pool: Any = queue.engine.pool
    assert pool.checkedout() == 0


@pytest.mark.parametrize("face", ["plain", "coroutine"])
@pytest.mark.parametrize(
    "name", ["event loop", "guard", "renewer", "place 1", "place 3", "claims", "watcher"]
)
def test_nor_where_a_thread_cannot_be_had(
    queue: Queue, told: Told, monkeypatch: pytest.MonkeyPatch, face: str, name: str
) -> None:
    async def send(_: Any) -> bool:
        return True

    if (name, face) == ("event loop", "plain"):
        pytest.skip("it has none")
    before, start = set(threading.enumerate()), threading.Thread.start

    def starting(thread: threading.Thread) -> None:
        if thread.name.endswith(name):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starting)
    queue.enqueue("a")
    handler = ok if face == "plain" else send
    worker = Worker(queue.jobs, handler, concurrency=3, watcher=Watcher(queue.jobs))
    with pytest.raises(RuntimeError, match="can't start new thread"):
        worker.run()
    assert set(threading.enumerate()) == before
    assert queue.row("a")["attempts"] == 0
    monkeypatch.undo()
    assert worker.run(once=True).done == 1


def test_what_it_tells_names_the_job_and_the_run(queue: Queue, told: Told) -> None:
    queue.enqueue("a")
    Worker(queue.jobs, ok, owner="w").run(once=True)
    assert told.events() == ["started", "claimed", "done", "ended"]
    fields = [vars(record) for record in told.records]
    assert {record["owner"] for record in fields} == {"w"}
    assert (fields[2]["job_id"], fields[2]["token"], fields[2]["attempt"]) == ("a", 1, 1)
    assert (fields[3]["done"], fields[3]["ended"]) == (1, "once")


def test_a_claim_tells_which_jobs_it_found_dead(either_queue: Queue, told: Told) -> None:
    jobs = either_queue.jobs
    jobs.enqueue({"id": "late", "qty": 1}, 0, 100)
    jobs.enqueue({"id": "spent", "qty": 1}, 0, 60_000, max_attempts=1)
    jobs.enqueue({"id": "good", "qty": 1}, 0, 60_000)
    assert jobs.claim("gone", 0, 100, job_id="spent")
    worker = Worker(jobs, ok, clock=lambda: 1_000, owner="w")
    assert worker.run(until_empty=True) == Worked(done=1, swept=2, ended="empty")
    swept = {vars(r)["job_id"]: r for r in told.records if vars(r)["event"] == "swept"}
    assert {name: record.getMessage() for name, record in swept.items()} == {
        "late": "job late is dead: its deadline is over",
        "spent": "job spent is dead: its attempts are used up",
    }
    assert {record.levelno for record in swept.values()} == {logging.WARNING}
    keys = ("token", "attempt", "reason", "owner")
    assert [vars(swept["late"])[key] for key in keys] == [0, 0, "deadline", "w"]
    assert [vars(swept["spent"])[key] for key in keys] == [1, 1, "exhausted", "w"]


def test_of_very_many_dead_jobs_the_rest_is_a_number(queue: Queue, told: Told) -> None:
    with queue.engine.connect() as connection:
        jobs = JobRepository(connection)
        for number in range(103):
            jobs.enqueue({"id": f"late-{number}", "qty": 1}, 0, 100)
    worker = Worker(queue.jobs, ok, clock=lambda: 1_000)
    assert worker.run(until_empty=True) == Worked(swept=103, ended="empty")
    swept = [record for record in told.records if vars(record)["event"] == "swept"]
    assert len(swept) == 101
    text = "3 more jobs are dead: 3 of their deadline, 0 of their attempts"
    assert swept[-1].getMessage() == text
    assert (vars(swept[-1])["deadline"], vars(swept[-1])["exhausted"]) == (3, 0)


def test_the_first_and_the_last_line_are_for_people(queue: Queue, told: Told) -> None:
    queue.enqueue("a", "b")
    worker = Worker(queue.jobs, ok, owner="w", concurrency=2, lease_ms=9_000)
    worker.run(until_empty=True)
    worker.run(until_empty=True)
    url = queue.engine.url.render_as_string()
    started, ended = told.records[0], told.records[-1]
    assert started.getMessage() == (
        f"worker w starts: {__name__}:ok for the jobs in {url}, 2 at a time, with leases of 9000 ms"
    )
    told_fields = {"function": f"{__name__}:ok", "database": url, "concurrency": 2}
    assert vars(started).items() >= {**told_fields, "lease_ms": 9_000}.items()
    assert ended.getMessage() == "worker w ends (empty): no jobs"
    assert "worker w ends (empty): 2 done" in told.texts()


def test_the_first_line_gives_no_secrets_away(told: Told) -> None:
    url = "postgresql+psycopg://shop:SECRET@localhost:1/shop?sslpassword=SECRET"
    worker = Worker(JobRepository(create_engine(url)), functools.partial(functools.partial(ok)))
    with at_work(worker) as going:
        text = told.wait_for("started").getMessage()
        going.stopped()
    assert "://shop:***@localhost:1/shop, 1 at a time" in text
    assert f"{__name__}:ok" in text
    assert "SECRET" not in text
