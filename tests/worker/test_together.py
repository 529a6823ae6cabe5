"""Claims and finishes of several jobs in one transaction."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from typing import Any, cast

import pytest
from sqlalchemy.exc import OperationalError

from leasestore import JobRepository, Outcome, Retryable, Ticket, Worked, Worker, system_clock
from leasestore.dialects import sqlite
from leasestore.worker import settling
from leasestore.worker.group import Group
from leasestore.worker.hand import Hand
from leasestore.worker.running import Running
from tests.worker.scene import LONGEST_WAIT_S, SHORT_MS, Gate, Meddled, Queue, Told, at_work


def ok(_: Any) -> bool:
    return True


def test_one_claim_fills_all_free_places(meddled: Meddled, queue: Queue) -> None:
    queue.enqueue("a", "b", "c")
    limits: list[int] = []
    meddled.before["claim"] = lambda *args: limits.append(args[2])
    standing = Gate()

    def send(event: Any) -> bool:
        standing.stand(event["id"])
        return True

    with at_work(Worker(meddled, send, concurrency=4)) as going:
        assert sorted(standing.came() for _ in range(3)) == ["a", "b", "c"]
        assert limits[0] == 4
        standing.open()
        assert going.stopped().done == 3


def test_a_finish_claims_for_the_place_that_it_frees(meddled: Meddled, queue: Queue) -> None:
    queue.enqueue("a", "b", "c")
    worked = Worker(meddled, ok).run(until_empty=True)
    assert worked == Worked(done=3, ended="empty")
    assert meddled.called == ["claim", "finish", "finish", "finish", "claim"]


def test_it_claims_none_where_one_was_asked_for(meddled: Meddled, queue: Queue) -> None:
    queue.enqueue("a", "b")
    assert Worker(meddled, ok).run(once=True) == Worked(done=1, ended="once")
    assert queue.end("b") == ("pending", None, 0)


def test_what_a_finish_claims_while_a_stop_comes_is_released(
    meddled: Meddled, queue: Queue, told: Told
) -> None:
    queue.enqueue("a", "b")
    standing = Gate()
    meddled.after["finish"] = lambda *_: standing.stand()
    with at_work(Worker(meddled, ok)) as going:
        standing.came()
        going.worker.stop()
        told.wait_for("stopping")
        standing.open()
        assert going.ended() == Worked(done=1, released=1, ended="stopped")
    assert queue.end("b") == ("pending", "released", 0)


def test_a_short_lease_waits_for_no_others(meddled: Meddled, queue: Queue) -> None:
    queue.enqueue("a")
    ends: list[Any] = []
    meddled.before["finish"] = lambda end, *_: ends.append(end)
    worker = Worker(meddled, ok, lease_ms=SHORT_MS, concurrency=2)
    assert worker.run(until_empty=True).done == 1
    # A ticket, and no list of ends; under load it may be run again.
    assert {*map(type, ends)} == {dict}


def test_one_that_is_lost_while_it_waits_is_not_written(
    three: Three, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling.Settling, "_write", losing(settling.Settling._write))
    assert three.worked() == Worked(done=1, stale=2, ended="empty")


def losing(write: Any) -> Any:
    """As if the leases of a group were over when it is written."""

    def lost(self: Any, ends: Any) -> Any:
        for end in ends if len(ends) > 1 else ():
            end.job.lost.set()
        return write(self, ends)

    return lost


def test_a_retry_in_a_group_is_announced(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.enqueue("a")
    announced: list[str] = []
    monkeypatch.setattr(sqlite, "notify", lambda _, table: announced.append(table.name))

    def send(event: Any) -> bool:
        if not announced:
            raise Retryable("again", delay_ms=0)
        return True

    jobs = JobRepository(queue.engine, notify=True)
    assert Worker(jobs, send).run(until_empty=True) == Worked(done=1, retried=1, ended="empty")
    assert announced == ["jobs"]


class Three:
    """A worker of three, of whose jobs two end while the first one's end is being written."""

    def __init__(self, meddled: Meddled, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        queue.enqueue("a", "b", "c", max_attempts=1)
        self.together: Callable[[list[str]], object] = lambda _: None
        self.groups: list[list[str]] = []
        self._meddled, self._standing = meddled, Gate()
        self._made: list[Group[Any, Any]] = []
        meddled.before["finish"] = self._note
        monkeypatch.setattr(settling, "Group", self._group)

    def _group(self, write: Any) -> Group[Any, Any]:
        self._made.append(Group(write))
        return self._made[-1]

    def _note(self, ends: Any, *_: Any) -> None:
        names = [ends["id"]] if isinstance(ends, dict) else [end[0]["id"] for end in ends]
        self.groups.append(names)
        if len(self.groups) == 1:
            self._standing.stand()
        if len(names) > 1:
            self.together(names)

    def worked(self, **settings: Any) -> Worked:
        worker = Worker(self._meddled, ok, concurrency=3, poll_ms=5, **settings)
        with at_work(worker, until_empty=True) as going:
            self._standing.came()
            give_up = time.monotonic() + LONGEST_WAIT_S
            while len(self._made[0]._waiting) < 2:
                assert time.monotonic() < give_up
                Event().wait(0.001)
            self._standing.open()
            return going.ended()


@pytest.fixture
def three(meddled: Meddled, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Three:
    return Three(meddled, queue, monkeypatch)


def test_ends_that_come_while_one_is_written_are_written_together(three: Three) -> None:
    assert three.worked() == Worked(done=3, ended="empty")
    assert [len(names) for names in three.groups] == [1, 2]


def test_where_a_group_fails_each_goes_on_by_itself(three: Three, told: Told) -> None:
    def fail(names: list[str]) -> None:
        raise OperationalError("UPDATE", {}, Exception("one row's trigger"))

    three.together = fail
    assert three.worked() == Worked(done=3, ended="empty")
    assert [len(names) for names in three.groups] == [1, 2, 1, 1]
    # Whose error it was nobody knows, and none of them has failed by itself.
    assert told.events("unsettled", "settled") == []


def test_one_that_is_stale_leaves_the_others_of_its_group(
    three: Three, queue: Queue, told: Told
) -> None:
    def steal(names: list[str]) -> None:
        with queue.engine.begin() as connection:
            stolen = "UPDATE jobs SET token = token + 1, status = 'done' WHERE id = ?"
            connection.exec_driver_sql(stolen, (names[0],))

    three.together = steal
    assert three.worked() == Worked(done=2, stale=1, ended="empty")
    assert told.events("stale", "done").count("stale") == 1


def test_of_two_tickets_of_one_job_only_the_newer_one_ends_it(queue: Queue) -> None:
    queue.enqueue("a", "b")
    old, other = queue.jobs.claim_batch("me", system_clock, 2, 60_000)
    assert queue.jobs.release(old)
    new = queue.jobs.claim("me", system_clock, 60_000)
    assert new is not None
    ends: list[tuple[Ticket, Outcome, int]] = [(each, "ok", 0) for each in (old, new, other)]
    statuses, _, _ = queue.jobs._finish_and_claim(
        ends, "me", system_clock, 60_000, claims=lambda: False
    )
    assert statuses == [None, "done", "done"]


def test_a_trigger_that_refuses_one_row_takes_no_other_down(three: Three, queue: Queue) -> None:
    refused: list[str] = []

    def refuse(names: list[str]) -> None:
        refused.append(names[0])
        with queue.engine.begin() as connection:
            connection.exec_driver_sql(
                f"CREATE TRIGGER refuse BEFORE UPDATE ON jobs WHEN old.id = '{names[0]}' "
                "AND new.status = 'done' BEGIN SELECT RAISE(ABORT, 'made up'); END"
            )

    three.together = refuse
    worked = three.worked(lease_ms=1_000)
    assert (worked.done, worked.left) == (2, 1)
    assert [len(names) for names in three.groups[:4]] == [1, 2, 1, 1]
    ends = {name: queue.end(name)[0] for name in "abc"}
    # Its lease ends in the same moment: the last claim may have found it dead already.
    assert ends.pop(refused[0]) in ("leased", "dead")
    assert {*ends.values()} == {"done"}


def test_a_group_whose_commit_was_answered_by_an_error_is_done_once(
    three: Three, meddled: Meddled, queue: Queue
) -> None:
    def cut(ends: Any, *_: Any) -> None:
        if isinstance(ends, list) and len(ends) > 1:
            raise OperationalError("COMMIT", {}, Exception("the answer was lost"))

    meddled.after["finish"] = cut
    assert three.worked() == Worked(done=3, ended="empty")
    assert {queue.end(name) for name in "abc"} == {("done", None, 1)}


def test_a_place_is_given_on_once_and_only_while_it_is_there() -> None:
    hand = Hand(1, emptied=lambda: None)
    first, second, third = (cast("Running", object()) for _ in range(3))
    assert hand.take(first)
    assert hand.goes_on()
    assert hand.take(second, first)
    hand.put_down(first, "done")
    assert not hand.take(third, first), "its place is the second one's"
    assert hand.goes_on()
    hand.put_down(second, "done")
    assert not hand.goes_on()
    assert hand.free_places() == 1
    hand.stop()
    assert not hand.take(third)
    assert hand.free_places() == 0
