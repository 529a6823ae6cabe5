"""run_once: claim, send outside any transaction, finish."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from leasestore import (
    Attempt,
    BadAck,
    Delivered,
    JobRepository,
    Permanent,
    Retryable,
    Ticket,
    aio,
    run_once,
)
from leasestore.aio import AsyncJobRepository
from tests.conformance.scene import insert_held
from tests.conformance.stores import SQLiteStore, Store, can_lock
from tests.conformance.values import JITTERS


class Ticks:
    """A clock that gives these values, one a reading."""

    def __init__(self, *values: Any) -> None:
        self.left = list(values)

    def __call__(self) -> Any:
        return self.left.pop(0)


class Sent:
    """A send that notes each call and answers, or raises, what it was given."""

    def __init__(self, answer: Any = True) -> None:
        self.answer = answer
        self.events: list[Any] = []

    def __call__(self, event: Any) -> Any:
        self.events.append(dict(event))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def enqueued(store: Store, **settings: Any) -> None:
    store.repository.enqueue({"id": "a", "qty": 7}, 0, **{"ttl_ms": 60_000, **settings})


def test_a_job_is_claimed_sent_and_done(store: Store) -> None:
    enqueued(store)
    clock, send = Ticks(100, 150), Sent()
    answer = run_once(store.repository, "me", clock, send, 0.5)
    assert answer == {"id": "a", "token": 1, "status": "done"}
    assert send.events == [{"id": "a", "qty": 7}]
    assert clock.left == []
    row = store.row("a")
    assert (row["status"], row["available_at"], row["attempts"]) == ("done", 150, 1)


def test_nothing_to_do_is_none_and_nothing_is_sent(store: Store) -> None:
    store.insert(id="later", available_at=101)
    insert_held(store)
    clock, send = Ticks(100), Sent()
    assert run_once(store.repository, "me", clock, send, 0.5) is None
    assert send.events == []
    assert clock.left == []


def test_the_sweep_of_an_empty_handed_claim_is_kept(store: Store) -> None:
    store.insert(id="late", deadline=50)
    assert run_once(store.repository, "me", Ticks(100), Sent(), 0.5) is None
    assert store.row("late")["reason"] == "deadline"


def test_while_sending_the_job_is_leased_as_asked(store: Store) -> None:
    enqueued(store)
    seen: list[Any] = []

    def send(event: Any) -> bool:
        seen.append(store.row("a"))
        return True

    run_once(store.repository, "me", Ticks(100, 150), send, 0.5, 250)
    (row,) = seen
    assert (row["status"], row["owner"], row["token"]) == ("leased", "me", 1)
    assert row["lease_until"] == 350


def test_a_lease_of_one_second_unless_said(store: Store) -> None:
    enqueued(store)
    with pytest.raises(BadAck):
        run_once(store.repository, "me", Ticks(100), Sent(None), 0)
    assert store.row("a")["lease_until"] == 1100


def test_while_sending_no_transaction_is_open(store: Store) -> None:
    enqueued(store)

    def send(event: Any) -> bool:
        store.assert_clean()
        return True

    answer = run_once(store.repository, "me", Ticks(100, 150), send, 0.5)
    assert answer is not None
    assert answer["status"] == "done"


def test_send_may_use_the_queue_through_another_connection(store: Store) -> None:
    enqueued(store)

    def send(event: Any) -> bool:
        with store.somebody_else() as other:
            assert other.enqueue({"id": "follow-up", "qty": 1}, 120, 60_000)
            follow_up = other.claim("you", 120)
            assert follow_up is not None
            assert other.finish(follow_up, "ok", 121) == "done"
        return True

    answer = run_once(store.repository, "me", Ticks(100, 150), send, 0.5)
    assert answer == {"id": "a", "token": 1, "status": "done"}
    assert [row["status"] for row in store.rows()] == ["done", "done"]


def test_send_may_use_the_same_repository(store: Store) -> None:
    enqueued(store)

    def send(event: Any) -> bool:
        return store.repository.enqueue({"id": "follow-up", "qty": 1}, 120, 60_000)

    answer = run_once(store.repository, "me", Ticks(100, 150), send, 0.5)
    assert answer == {"id": "a", "token": 1, "status": "done"}


def test_whatever_send_does_with_the_dict_harms_nothing(store: Store) -> None:
    enqueued(store)

    def send(event: Any) -> bool:
        assert type(event) is dict
        event.update(id="other", qty=99, token=5)
        event.clear()
        return True

    answer = run_once(store.repository, "me", Ticks(100, 150), send, 0.5)
    assert answer == {"id": "a", "token": 1, "status": "done"}


def test_each_sending_gets_a_dict_of_its_own(store: Store) -> None:
    enqueued(store)
    events: list[Any] = []

    def send(event: Any) -> bool:
        events.append(event)
        raise Retryable

    for now in (0, 2000):
        run_once(store.repository, "me", Ticks(now, now), send, 0)
    assert events == [{"id": "a", "qty": 7}] * 2
    assert events[0] is not events[1]


class TrueInName(int):
    """As a numpy bool: equal to True, true, and not True."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1

    def __repr__(self) -> str:
        return "True"


NOT_TRUE = [None, False, 1, 1.0, "True", "ok", b"1", [True], {"ok": True}, TrueInName(1), object]


def test_only_the_literal_true_is_ok(store: Store) -> None:
    for number, answer in enumerate(NOT_TRUE):
        store.insert(id=f"job-{number}")
        clock = Ticks(100)
        with pytest.raises(BadAck) as caught:
            run_once(store.repository, "me", clock, Sent(answer), 0.5)
        assert caught.value.answer is answer
        assert type(answer).__name__ in str(caught.value)
        row = store.row(f"job-{number}")
        assert (row["status"], row["lease_until"]) == ("leased", 1000)
        assert clock.left == []
        store.assert_clean()


def test_a_permanent_failure_ends_the_job(store: Store) -> None:
    enqueued(store)
    answer = run_once(store.repository, "me", Ticks(100, 150), Sent(Permanent()), 0.5)
    assert answer == {"id": "a", "token": 1, "status": "dead"}
    row = store.row("a")
    assert (row["reason"], row["available_at"]) == ("permanent", 150)


DELAYS: list[tuple[int, float, int]] = [
    (1, 1, 100),
    (2, 1, 200),
    (3, 1, 400),
    (4, 1, 800),
    (5, 1, 1000),
    (16, 1, 1000),
    (1, 0, 0),
    (1, 0.0, 0),
    (16, 0, 0),
    (1, 0.5, 50),
    (1, 0.999, 99),
    (4, 0.25, 200),
    (5, 0.75, 750),
]


def test_a_retryable_failure_waits_by_the_formula(store: Store) -> None:
    for number, (attempt, jitter, delay) in enumerate(DELAYS):
        # One attempt more than the contract allows, so that none of them is the last.
        store.insert(id=f"job-{number}", attempts=attempt - 1, max_attempts=17, deadline=90_000)
        answer = run_once(store.repository, "me", Ticks(100, 150), Sent(Retryable()), jitter)
        assert answer == {"id": f"job-{number}", "token": 1, "status": "pending"}
        row = store.row(f"job-{number}")
        assert (row["reason"], row["available_at"]) == ("retry", 150 + delay), (attempt, jitter)
        # Out of the way of the next.
        assert store.repository.claim("me", 2000, job_id=f"job-{number}") is not None


@pytest.mark.parametrize("delay_ms", [0, 1, 7_000, 59_800])
def test_a_retryable_failure_that_says_when_waits_so_long(store: Store, delay_ms: int) -> None:
    enqueued(store)
    sent = Sent(Retryable("busy", delay_ms=delay_ms))
    answer = run_once(store.repository, "me", Ticks(100, 150), sent, 0)
    assert answer == {"id": "a", "token": 1, "status": "pending"}
    row = store.row("a")
    assert (row["reason"], row["available_at"]) == ("retry", 150 + delay_ms)


def test_a_delay_beyond_the_limits_reaches_the_caller(one_store: Store) -> None:
    store = one_store
    enqueued(store)
    why = Retryable("busy", delay_ms=60_001)
    with pytest.raises(ValueError, match=r"delay_ms: .*Limits\(delay_ms=...\)") as refused:
        run_once(store.repository, "me", Ticks(100, 150), Sent(why), 0)
    assert refused.value.__cause__ is why
    assert store.row("a")["status"] == "leased"


def test_an_attempt_keeps_what_was_raised_without_its_traceback(one_store: Store) -> None:
    ticket: Ticket = {
        "id": "a", "qty": 1, "owner": "me", "token": 1, "attempt": 2, "lease_until": 9,
    }  # fmt: skip
    for error in (Retryable("why", delay_ms=5), Permanent("why")):
        with Attempt(ticket, 1) as attempt:
            raise error
        assert attempt.error is error
        assert error.__traceback__ is None
    again = Attempt(ticket, 1)
    assert again.error is None
    again.retry()
    assert (again.outcome, again.delay_ms) == ("retry", 200)
    again.retry(5_000)
    assert again.delay_ms == 5_000


def test_a_retryable_failure_at_the_last_attempt_ends_the_job(store: Store) -> None:
    enqueued(store, max_attempts=1)
    answer = run_once(store.repository, "me", Ticks(100, 150), Sent(Retryable()), 1)
    assert answer == {"id": "a", "token": 1, "status": "dead"}
    assert store.row("a")["reason"] == "exhausted"


def test_a_retry_that_would_come_too_late_ends_the_job(store: Store) -> None:
    enqueued(store, ttl_ms=250)
    answer = run_once(store.repository, "me", Ticks(100, 150), Sent(Retryable()), 1)
    assert answer == {"id": "a", "token": 1, "status": "dead"}
    assert store.row("a")["reason"] == "deadline"


def test_subclasses_of_the_two_errors_are_classified_too(store: Store) -> None:
    class Throttled(Retryable):
        pass

    class Rejected(Permanent):
        pass

    store.insert(id="a")
    store.insert(id="b")
    statuses = [
        run_once(store.repository, "me", Ticks(100, 150), Sent(error), 0.5)
        for error in (Throttled("slow down"), Rejected("never"))
    ]
    assert [answer and answer["status"] for answer in statuses] == ["pending", "dead"]


@pytest.mark.parametrize(
    "error",
    [RuntimeError("made up"), KeyboardInterrupt(), SystemExit(1), ValueError("jitter"), BadAck(3)],
    ids=repr,
)
def test_every_other_error_reaches_the_caller_and_the_lease_stays(
    store: Store, error: BaseException
) -> None:
    enqueued(store)
    clock = Ticks(100)
    with pytest.raises(type(error)) as caught:
        run_once(store.repository, "me", clock, Sent(error), 0.5)
    assert caught.value is error
    row = store.row("a")
    assert (row["status"], row["owner"], row["lease_until"]) == ("leased", "me", 1100)
    store.assert_clean()
    # The lease ends by itself.
    assert store.repository.claim("you", 1099) is None
    assert store.repository.claim("you", 1100) is not None


RUBBISH: list[Any] = [99, -1, None, True, 100.0, "150", math.nan, 10**15 - 59_999, 10**15]


@pytest.mark.parametrize("answer", [True, Retryable(), Permanent()], ids=repr)
def test_a_second_reading_below_the_first_or_invalid_is_refused(
    store: Store, answer: object
) -> None:
    for number, second in enumerate(RUBBISH):
        store.insert(id=f"job-{number}", deadline=5000)
        clock = Ticks(100, second)
        with pytest.raises(ValueError, match="clock"):
            run_once(store.repository, "me", clock, Sent(answer), 0.5)
        assert clock.left == []
        store.assert_clean()
    claimed = [row for row in store.rows() if row["status"] == "leased"]
    assert len(claimed) == len(RUBBISH)
    assert {row["lease_until"] for row in claimed} == {1100}


@pytest.mark.parametrize("first", [-1, None, True, 1.0, "0", 10**15 - 59_999])
def test_a_first_reading_that_is_invalid_changes_nothing(store: Store, first: object) -> None:
    enqueued(store)
    before = store.dump()
    send = Sent()
    with pytest.raises(ValueError, match="now_ms"):
        run_once(store.repository, "me", Ticks(first), send, 0.5)
    assert send.events == []
    assert store.dump() == before


def test_a_clock_that_stands_still_is_right(store: Store) -> None:
    enqueued(store)
    answer = run_once(store.repository, "me", Ticks(100, 100), Sent(), 0.5)
    assert answer == {"id": "a", "token": 1, "status": "done"}


@pytest.mark.parametrize("answer", [True, Retryable(), Permanent()], ids=repr)
def test_a_lease_that_ended_while_sending_is_stale(store: Store, answer: object) -> None:
    enqueued(store)
    delivered = run_once(store.repository, "me", Ticks(100, 1100), Sent(answer), 0.5)
    assert delivered == {"id": "a", "token": 1, "status": "stale"}
    row = store.row("a")
    assert (row["status"], row["lease_until"]) == ("leased", 1100)


def test_a_job_that_another_took_while_sending_stays_the_others(store: Store) -> None:
    enqueued(store)

    def send(event: Any) -> bool:
        assert store.repository.claim("you", 1100) is not None
        return True

    answer = run_once(store.repository, "me", Ticks(100, 1101), send, 0.5)
    assert answer == {"id": "a", "token": 1, "status": "stale"}
    assert (store.row("a")["owner"], store.row("a")["token"]) == ("you", 2)


def test_both_readings_are_made_under_the_write_lock(sqlite_store: SQLiteStore) -> None:
    store = sqlite_store
    enqueued(store)
    ticks, lockable = Ticks(100, 150), []

    def clock() -> Any:
        lockable.append(can_lock(store.path, "IMMEDIATE"))
        return ticks()

    run_once(store.repository, "me", clock, Sent(), 0.5)
    assert lockable == [False, False]


BAD: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"jitter-{n}": ("jitter", {"jitter": value}) for n, value in enumerate(JITTERS.bad)},
    "jitter-too-long-to-be-printed": ("jitter", {"jitter": 10**5000}),
    "owner": ("owner", {"owner": "a b"}),
    "clock": ("clock", {"clock": 100}),
    "send": ("send", {"send": None}),
    "lease-zero": ("lease_ms", {"lease_ms": 0}),
    "lease-too-long": ("lease_ms", {"lease_ms": 60_001}),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_argument_is_refused_with_nothing_claimed(one_store: Store, case: str) -> None:
    enqueued(one_store)
    before = one_store.dump()
    send = Sent()
    name, changes = BAD[case]
    arguments: dict[str, Any] = {
        "owner": "me",
        "clock": Ticks(100, 150),
        "send": send,
        "jitter": 0.5,
        **changes,
    }
    with pytest.raises(ValueError, match=name):
        run_once(one_store.repository, **arguments)
    assert one_store.dump() == before
    assert send.events == []


def test_the_jitter_is_checked_before_everything_else(one_store: Store) -> None:
    def never() -> int:
        raise AssertionError("the clock was read")

    with pytest.raises(ValueError, match="jitter"):
        run_once(one_store.repository, "a b", never, Sent(), 2, 0)
    with pytest.raises(ValueError, match="jitter"):
        run_once(None, "", None, None, 2, 0)  # type: ignore[arg-type]


def test_a_full_run_through_failures_to_the_end(store: Store) -> None:
    enqueued(store, max_attempts=3)
    statuses: list[Delivered | None] = []
    for now, answer in [(0, Retryable()), (99, True), (100, Retryable()), (300, True)]:
        statuses.append(run_once(store.repository, "me", Ticks(now, now), Sent(answer), 1))
    assert [answer and (answer["token"], answer["status"]) for answer in statuses] == [
        (1, "pending"),
        None,
        (2, "pending"),
        (3, "done"),
    ]


def test_delays_spread_by_the_jitter_given(store: Store) -> None:
    delays = []
    for number in range(20):
        # In front of those that are to be tried again.
        store.insert(id=f"job-{number}", seq=20 - number)
        run_once(store.repository, "me", Ticks(100, 100), Sent(Retryable()), number / 19)
        delays.append(store.row(f"job-{number}")["available_at"] - 100)
    assert delays == sorted(delays)
    assert (delays[0], delays[-1]) == (0, 100)
    assert len(set(delays)) == 20


def test_an_attempt_that_is_not_acknowledged_is_noticed() -> None:
    ticket: Ticket = {
        "id": "a", "qty": 1, "owner": "me", "token": 1, "attempt": 1, "lease_until": 9,
    }  # fmt: skip
    with pytest.raises(ValueError, match="acknowledge what send answered"), Attempt(ticket, 1):
        pass


def test_the_wrong_face_is_refused_before_anything_is_claimed(one_store: Store) -> None:
    jobs = one_store.repository
    one_store.insert(id="a")

    async def awaited(event: Any) -> bool:
        raise AssertionError("never")

    engine = create_async_engine("sqlite+aiosqlite://")
    refused: list[tuple[Any, Any, str]] = [
        (AsyncJobRepository(engine), lambda _: True, r"leasestore\.aio\.run_once is for this one"),
        (jobs.within(Session(jobs._bind)), lambda _: True, "with transactions of its own"),
        (None, lambda _: True, "expected a JobRepository"),
        (jobs, awaited, r"leasestore\.aio\.run_once awaits coroutines"),
    ]
    for repository, send, told in refused:
        with pytest.raises(ValueError, match=told):
            run_once(repository, "me", lambda: 1, send, 1)
    refused = [
        (jobs, awaited, r"leasestore\.run_once is for this one"),
        (AsyncJobRepository(engine), lambda _: True, "expected a coroutine function"),
    ]
    for repository, send, told in refused:
        with pytest.raises(ValueError, match=told):
            asyncio.run(aio.run_once(repository, "me", lambda: 1, send, 1))
    assert one_store.rows()[0]["status"] == "pending"


class Another:
    """A repository of somebody else's, which reads the clock itself."""

    def __init__(self, jobs: JobRepository) -> None:
        self._jobs = jobs

    def claim(self, owner: str, clock: Any, lease_ms: int) -> Ticket | None:
        return self._jobs.claim(owner, clock(), lease_ms)

    def finish(self, ticket: Ticket, outcome: Any, clock: Any, delay_ms: int) -> Any:
        return self._jobs.finish(ticket, outcome, clock(), delay_ms)


def test_any_repository_serves(either_store: Store) -> None:
    either_store.insert(id="a")
    another: Any = Another(either_store.repository)
    assert run_once(another, "me", Ticks(100, 150), Sent(), 0) == {
        "id": "a",
        "token": 1,
        "status": "done",
    }
    either_store.insert(id="b")
    with pytest.raises(ValueError, match="clock, read again"):
        run_once(another, "me", Ticks(200, 150), Sent(), 0)
