"""Leases are renewed while a handler works, no longer, and are lost when they are lost."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import TimeoutError as PoolTimeout

from leasestore import Delivery, JobRepository, Retryable, Watcher, Worked, Worker, system_clock
from leasestore.clock import monotonic_ms
from tests.worker.scene import (
    LONGEST_WAIT_S,
    SHORT_MS,
    Away,
    Gate,
    Meddled,
    Queue,
    Told,
    at_work,
)


def outlast(told: Told, leases: int = 5) -> None:
    """Waits until a lease of three renewals has been renewed that many times over."""
    told.wait_for("renewed", 3 * leases)


@pytest.mark.parametrize("face", ["plain", "coroutine"])
def test_a_handler_that_takes_five_leases_runs_once(
    either_queue: Queue, told: Told, face: str
) -> None:
    either_queue.enqueue("a", "b")
    sent: list[str] = []

    def plain(event: Any) -> bool:
        sent.append(event["id"])
        outlast(told)
        return True

    async def coroutine(event: Any) -> bool:
        # It blocks the event loop.
        return plain(event)

    other = JobRepository(either_queue.engine)
    watcher = Watcher(other, every_ms=10)
    worker = Worker(
        either_queue.jobs,
        plain if face == "plain" else coroutine,
        lease_ms=2 * SHORT_MS,
        concurrency=2,
        poll_ms=10,
        watcher=watcher,
    )
    with at_work(worker, until_empty=True) as going:
        assert going.ended() == Worked(done=2, ended="empty")
    assert sorted(sent) == ["a", "b"]
    assert [either_queue.end(job_id) for job_id in "ab"] == [("done", None, 1)] * 2


def test_a_handler_that_holds_the_interpreter_for_a_while_keeps_its_job(
    queue: Queue, told: Told
) -> None:
    lease_ms = 20 * SHORT_MS
    queue.enqueue("a")

    def send(delivery: Delivery) -> bool:
        # A C function that keeps every other thread of the process from running: it is not waited
        # for anything here.
        ctypes.PyDLL(None).usleep(600 * lease_ms)
        outlast(told, 1)
        return not delivery.lost.is_set()

    worker = Worker(queue.jobs, send, lease_ms=lease_ms)
    assert worker.run(once=True) == Worked(done=1, ended="once")
    assert queue.end("a") == ("done", None, 1)


def test_no_renewal_comes_after_the_finish_has_begun(meddled: Meddled, queue: Queue) -> None:
    queue.enqueue("a")
    going_on = Gate()
    renewals = threading.Semaphore(0)
    meddled.before["renew"] = lambda *_: renewals.release()

    def send(_: Any) -> bool:
        assert renewals.acquire(timeout=LONGEST_WAIT_S)
        return True

    def finishing(*_: Any) -> None:
        going_on.stand()

    meddled.before["finish"] = finishing
    with at_work(Worker(meddled, send, lease_ms=SHORT_MS), once=True) as going:
        going_on.came()
        # Of a lease that goes on it would have come by now, twice.
        threading.Event().wait(2 * SHORT_MS / 3000)
        going_on.open()
        going.ended()
    called = [verb for verb in meddled.called if verb in ("renew", "finish")]
    assert called.index("finish") == len(called) - 1


def test_a_finish_does_not_wait_for_the_interval_of_the_heartbeat(queue: Queue, told: Told) -> None:
    queue.enqueue("a")
    worker = Worker(queue.jobs, lambda _: True, lease_ms=60_000)
    # Its first renewal would come after twenty seconds, and the test's time is shorter.
    assert worker.run(once=True).done == 1
    assert "renewed" not in told.events()


@pytest.mark.timeout(20)
def test_a_renewal_that_is_stuck_does_not_hold_up_the_finish(
    meddled: Meddled, queue: Queue, told: Told
) -> None:
    queue.enqueue("a")
    stuck = Gate()
    meddled.before["renew"] = lambda *_: stuck.stand()

    def send(_: Any) -> bool:
        stuck.came()
        return True

    worker = Worker(meddled, send, lease_ms=3_000)
    assert worker.run(once=True) == Worked(done=1, ended="once")
    stuck.open()
    told.wait_for("renewed")
    assert queue.end("a") == ("done", None, 1)
    assert "lost" not in told.events()


def test_nor_does_one_that_has_the_row_locked(postgresql_queue: Queue, told: Told) -> None:
    queue = postgresql_queue
    queue.enqueue("a")
    stuck = Gate()

    @event.listens_for(queue.engine, "after_cursor_execute")
    def stand_in_the_middle(_c: Any, _cursor: Any, sent: str, *_: Any) -> None:
        if sent.startswith("UPDATE jobs SET lease_until="):
            stuck.stand()

    def send(_: Any) -> bool:
        stuck.came()
        return True

    with at_work(Worker(queue.jobs, send, lease_ms=3_000, poll_ms=20), once=True) as going:
        told.wait_for("unsettled")
        stuck.open()
        # The renewal has landed meanwhile, so the ticket in hand was an old one.
        assert going.ended() == Worked(done=1, ended="once")
    assert queue.end("a") == ("done", None, 1)


def test_a_stuck_renewal_does_not_cost_the_other_jobs_their_leases(
    meddled: Meddled, queue: Queue, told: Told
) -> None:
    queue.enqueue("stuck", max_attempts=1)
    queue.enqueue("other")
    stuck, renewed = Gate(), threading.Semaphore(0)

    def renewing(ticket: Any, *_: Any) -> None:
        if ticket["id"] == "stuck":
            stuck.stand()
        else:
            renewed.release()

    meddled.before["renew"] = renewing

    def send(delivery: Delivery) -> bool:
        if delivery.id == "stuck":
            assert delivery.lost.wait(LONGEST_WAIT_S)
            return True
        for _ in range(9):
            assert renewed.acquire(timeout=LONGEST_WAIT_S)
        return not delivery.lost.is_set()

    worker = Worker(meddled, send, lease_ms=4 * SHORT_MS, concurrency=2)
    with at_work(worker) as going:
        told.wait_for("done")
        told.wait_for("stale")
        stuck.open()
        worked = going.stopped()
        assert (worked.done, worked.stale) == (1, 1)
    assert queue.end("other") == ("done", None, 1)


def test_a_helper_that_cannot_be_had_does_not_end_the_guard(
    meddled: Meddled, queue: Queue, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is out of threads for a while, and the only renewer is stuck."""
    queue.enqueue("stuck", max_attempts=1)
    queue.enqueue("other")
    stuck, start, tried = Gate(), threading.Thread.start, list[str]()

    def starting(thread: threading.Thread) -> None:
        if thread.name.endswith("renewer"):
            tried.append(thread.name)
            if len(tried) == 2:
                raise RuntimeError("can't start new thread")
        start(thread)

    def renewing(ticket: Any, *_: Any) -> None:
        if ticket["id"] == "stuck":
            stuck.stand()

    def send(delivery: Delivery) -> bool:
        if delivery.id == "stuck":
            return not delivery.lost.wait(LONGEST_WAIT_S)
        told.wait_for("renewed", 2)
        return not delivery.lost.is_set()

    monkeypatch.setattr(threading.Thread, "start", starting)
    meddled.before["renew"] = renewing
    worker = Worker(meddled, send, lease_ms=10 * SHORT_MS, concurrency=2)
    with at_work(worker) as going:
        told.wait_for("done")
        told.wait_for("lost")
        told.wait_for("stale")
        stuck.open()
        worked = going.stopped()
        assert (worked.done, worked.stale, worked.ended) == (1, 1, "stopped")
    assert len(tried) == 3


def test_a_lease_that_cannot_be_renewed_in_time_is_lost_by_our_own_clock(
    meddled: Meddled, queue: Queue, told: Told
) -> None:
    queue.enqueue("a")
    meddled.before["renew"] = Away()

    def send(delivery: Delivery) -> bool:
        assert not delivery.lost.is_set()
        assert delivery.lost.wait(LONGEST_WAIT_S)
        return True

    # By the clock of the database the lease never ends.
    now = system_clock()
    worker = Worker(meddled, send, clock=lambda: now, lease_ms=SHORT_MS)
    assert worker.run(once=True) == Worked(stale=1, ended="once")
    assert "finish" not in meddled.called
    assert queue.row("a")["status"] == "leased"
    assert told.events("lost", "stale") == ["lost", "stale"]
    assert "its lease is lost; what" in told.wait_for("lost").getMessage()
    assert told.wait_for("stale").getMessage().endswith("is lost, and another run may have it")


def test_what_somebody_else_has_buried_was_not_finished_by_a_late_retry(
    queue: Queue, told: Told
) -> None:
    queue.jobs.enqueue({"id": "a", "qty": 1}, system_clock, SHORT_MS)

    def send(delivery: Delivery) -> bool:
        assert delivery.lost.wait(LONGEST_WAIT_S)
        queue.jobs.recover(delivery.deadline)
        raise Retryable("late")

    assert Worker(queue.jobs, send).run(once=True) == Worked(stale=1, ended="once")
    assert queue.end("a") == ("dead", "deadline", 1)


def test_a_renewal_that_fails_is_tried_again_and_told_once(
    meddled: Meddled, queue: Queue, told: Told
) -> None:
    queue.enqueue("a")
    meddled.before["renew"] = Away(times=3)

    def send(delivery: Delivery) -> bool:
        told.wait_for("outage-over")
        return not delivery.lost.is_set()

    worker = Worker(meddled, send, lease_ms=3_000)
    assert worker.run(once=True) == Worked(done=1, ended="once")
    assert told.events("outage", "outage-over", "lost") == ["outage", "outage-over"]
    assert vars(told.wait_for("outage-over"))["failures"] == 3


def test_a_lease_that_somebody_else_has_is_lost_at_once(
    meddled: Meddled, queue: Queue, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the next renewal, which here comes early, long before the lease is over."""
    monkeypatch.setattr("leasestore.worker.heartbeat.monotonic_ms", lambda: monotonic_ms() + 40_000)
    queue.enqueue("a")
    taken, noticed = Gate(), threading.Event()
    meddled.before["renew"] = lambda *_: taken.stand()

    def send(delivery: Delivery) -> bool:
        taken.came()
        with queue.engine.begin() as connection:
            connection.execute(text("UPDATE jobs SET token = token + 1, owner = 'you'"))
        taken.open()
        if delivery.lost.wait(LONGEST_WAIT_S):
            noticed.set()
        return True

    worker = Worker(meddled, send, lease_ms=50_000)
    assert worker.run(once=True) == Worked(stale=1, ended="once")
    assert noticed.is_set()
    assert (queue.row("a")["status"], queue.row("a")["owner"]) == ("leased", "you")
    assert "finish" not in meddled.called


def test_a_job_that_runs_for_too_long_is_renewed_no_more(queue: Queue, told: Told) -> None:
    queue.enqueue("a", max_attempts=1)

    def send(delivery: Delivery) -> bool:
        assert delivery.lost.wait(LONGEST_WAIT_S)
        return True

    worker = Worker(queue.jobs, send, lease_ms=SHORT_MS, max_run_ms=3 * SHORT_MS, poll_ms=10)
    with at_work(worker) as going:
        told.wait_for("stale")
        while queue.row("a")["status"] == "leased":
            told.wait_for("started")
        assert going.stopped().stale == 1
    assert queue.end("a") == ("dead", "exhausted", 1)
    assert told.events("overlong", "lost", "stale") == ["overlong", "lost", "stale"]
    assert told.events().count("renewed") >= 3


def test_a_lease_is_not_renewed_past_the_deadline(
    meddled: Meddled, queue: Queue, told: Told
) -> None:
    queue.jobs.enqueue({"id": "a", "qty": 1}, system_clock, 2 * SHORT_MS)

    def send(delivery: Delivery) -> bool:
        assert delivery.lost.wait(LONGEST_WAIT_S)
        return True

    worker = Worker(meddled, send, lease_ms=SHORT_MS)
    assert worker.run(once=True).stale == 1
    # Up to the deadline, and not again and again at it.
    assert meddled.called.count("renew") <= 4


def test_a_lease_that_reaches_the_deadline_is_not_renewed_at_all(
    meddled: Meddled, queue: Queue
) -> None:
    queue.jobs.enqueue({"id": "a", "qty": 1}, system_clock, SHORT_MS)

    def send(delivery: Delivery) -> bool:
        assert delivery.lost.wait(LONGEST_WAIT_S)
        return True

    assert Worker(meddled, send, lease_ms=1000).run(once=True).stale == 1
    assert "renew" not in meddled.called


def test_handlers_that_use_up_the_pool_do_not_cost_a_lease(path: Any, told: Told) -> None:
    engine: Engine = create_engine(
        f"sqlite:///{path}", pool_size=2, max_overflow=0, pool_timeout=0.01
    )
    queue = Queue(engine, JobRepository(engine))
    queue.enqueue("a")

    def send(_: Any) -> bool:
        told.wait_for("renewed")
        with engine.connect():
            # The heartbeat has the other one, for as long as it lasts.
            with pytest.raises(PoolTimeout):
                engine.connect()
            outlast(told, 2)
        return True

    assert Worker(queue.jobs, send, lease_ms=2 * SHORT_MS).run(once=True).done == 1
    engine.dispose()


def test_a_renewal_that_landed_unseen_does_not_make_the_finish_stale(
    meddled: Meddled, queue: Queue
) -> None:
    queue.enqueue("a")
    landed = Gate()
    meddled.after["renew"] = lambda *_: landed.stand()

    def send(_: Any) -> bool:
        landed.came()
        return True

    worker = Worker(meddled, send, lease_ms=3_000)
    with at_work(worker, once=True) as going:
        assert going.ended() == Worked(done=1, ended="once")
        landed.open()
    assert queue.end("a") == ("done", None, 1)


def test_the_connection_goes_back_to_the_pool_when_there_is_nothing_to_renew(
    queue: Queue, told: Told
) -> None:
    queue.enqueue("a")
    returned = threading.Event()

    @event.listens_for(queue.engine, "checkin")
    def note(*_: Any) -> None:
        if threading.current_thread().name.endswith("renewer"):
            returned.set()

    def send(_: Any) -> bool:
        told.wait_for("renewed", 2)
        return not returned.is_set()

    worker = Worker(queue.jobs, send, lease_ms=2 * SHORT_MS, poll_ms=3_600_000)
    with at_work(worker) as going:
        assert returned.wait(LONGEST_WAIT_S)
        assert going.stopped().done == 1


@pytest.mark.parametrize("renewals", [0, 1])
@pytest.mark.parametrize("gives_up", [False, True])
def test_a_job_whose_deadline_is_over_is_told_as_that(
    queue: Queue, told: Told, renewals: int, gives_up: bool
) -> None:
    ttl_ms, lease_ms = 9 * SHORT_MS, 8 * SHORT_MS if renewals else 60_000
    queue.jobs.enqueue({"id": "a", "qty": 1}, system_clock, ttl_ms)

    def send(delivery: Delivery) -> bool:
        assert delivery.lost.wait(LONGEST_WAIT_S)
        return not gives_up

    worker = Worker(queue.jobs, send, lease_ms=lease_ms)
    assert worker.run(once=True) == Worked(stale=1, ended="once")
    assert told.events("renewed") == ["renewed"] * renewals
    text = told.wait_for("lost").getMessage()
    assert text.endswith(": its deadline is over; what its run comes to will not be written")
    over = "not done, and its deadline is over" if gives_up else "too late, its deadline is over"
    assert told.wait_for("stale").getMessage().endswith(f": {over}")
