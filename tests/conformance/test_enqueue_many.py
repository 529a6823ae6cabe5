"""enqueue_many: an answer for each event, one transaction for all of them."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from leasestore import Conflict, Event
from tests.conformance.scene import NOW
from tests.conformance.stores import Store
from tests.conformance.test_enqueue import put_one_in_each_state


def told(answers: list[bool | Conflict]) -> list[object]:
    """The answers, a conflict as what it says."""
    return [one.__reduce__()[1] if isinstance(one, Conflict) else one for one in answers]


def test_new_jobs_are_pending_in_the_order_given(store: Store) -> None:
    events: list[Event] = [{"id": name, "qty": 2} for name in ("c", "a", "b")]
    answers = store.repository.enqueue_many(events, 100, 1000, 5, delay_ms=10)
    assert answers == [True, True, True]
    assert store.rows() == [
        {
            "seq": number,
            "id": name,
            "qty": 2,
            "status": "pending",
            "attempts": 0,
            "max_attempts": 5,
            "token": 0,
            "available_at": 110,
            "deadline": 1100,
            "owner": None,
            "lease_until": None,
            "reason": None,
        }
        for number, name in enumerate(("c", "a", "b"), 1)
    ]


def test_three_attempts_and_no_delay_unless_said(store: Store) -> None:
    store.repository.enqueue_many([{"id": "a", "qty": 1}], 100, 1000)
    assert store.row("a") | {"max_attempts": 3, "available_at": 100} == store.row("a")


def test_each_event_has_an_answer_whatever_becomes_of_the_others(store: Store) -> None:
    known = put_one_in_each_state(store)
    before = store.rows()
    events: list[Any] = [
        {"id": "new-1", "qty": 1},
        *({"id": name, "qty": 5} for name in known),
        {"id": "new-2", "qty": 1},
        *({"id": name, "qty": 6} for name in known),
        {"id": "new-1", "qty": 1},
        {"id": "new-2", "qty": 3},
        {"id": "new-3", "qty": 1},
    ]
    assert told(store.repository.enqueue_many(events, NOW, 1000)) == [
        True,
        *[False] * 4,
        True,
        *((name, 5, 6) for name in known),
        False,
        ("new-2", 1, 3),
        True,
    ]
    after = store.rows()
    assert after[:4] == before
    assert [(row["seq"], row["id"], row["qty"]) for row in after[4:]] == [
        (5, "new-1", 1), (6, "new-2", 1), (7, "new-3", 1),
    ]  # fmt: skip


def test_a_batch_of_duplicates_changes_nothing_and_burns_no_seq(store: Store) -> None:
    put_one_in_each_state(store)
    known: list[Event] = [{"id": row["id"], "qty": row["qty"]} for row in store.rows()]
    other: list[Event] = [{**event, "qty": 9} for event in known]
    before = store.dump()
    for _ in range(3):
        assert store.repository.enqueue_many(known, NOW, 5, 9) == [False] * 4
        conflicts = store.repository.enqueue_many(other, NOW, 5, 9)
        assert all(isinstance(each, Conflict) for each in conflicts)
    assert store.dump() == before
    assert store.repository.enqueue_many([*known, {"id": "new", "qty": 1}], NOW, 5) == [
        *[False] * 4,
        True,
    ]
    assert store.row("new")["seq"] == 5


def test_of_nothing_nothing_is_sent_and_no_clock_is_read(store: Store) -> None:
    def never() -> int:
        raise AssertionError("the clock was read")

    assert store.repository.enqueue_many([], never, 1000, values=[]) == []


def test_a_thousand_at_once_keep_their_order(store: Store) -> None:
    events: list[Event] = [{"id": f"job-{number}", "qty": 1} for number in range(1000)]
    events.reverse()
    assert store.repository.enqueue_many(events, NOW, 1000) == [True] * 1000
    assert [row["id"] for row in store.rows()] == [event["id"] for event in events]
    assert store.repository.enqueue_many(events, NOW, 1000) == [False] * 1000


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_bad_event_refuses_all_and_is_named(store: Store, place: int) -> None:
    events: list[Any] = [{"id": f"job-{number}", "qty": 1} for number in range(3)]
    events[place]["qty"] = 0
    with pytest.raises(ValueError, match=rf"^events\[{place}\]: qty: expected"):
        store.repository.enqueue_many(events, NOW, 1000)
    assert store.rows() == []


def test_a_delay_that_reaches_the_deadline_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="delay_ms"):
        store.repository.enqueue_many([{"id": "a", "qty": 1}], NOW, 10, delay_ms=10)
    assert store.rows() == []


def test_too_many_are_refused_with_what_to_do(one_store: Store) -> None:
    events: list[Event] = [{"id": f"job-{number}", "qty": 1} for number in range(1001)]
    with pytest.raises(ValueError, match=r"up to 1000 items, got 1001; give them in portions"):
        one_store.repository.enqueue_many(events, NOW, 1000)
    assert one_store.rows() == []


def test_the_clock_is_read_once(store: Store) -> None:
    times = iter([NOW])
    store.repository.enqueue_many(
        [{"id": "a", "qty": 1}, {"id": "b", "qty": 1}], lambda: next(times), 1000
    )
    assert {row["available_at"] for row in store.rows()} == {NOW}


def test_events_changed_while_the_call_runs_are_stored_as_they_were_given(store: Store) -> None:
    events: list[Event] = [{"id": "a", "qty": 1}]

    def clock() -> int:
        events[0]["qty"] = 99
        events.append({"id": "b", "qty": 1})
        return NOW

    assert store.repository.enqueue_many(events, clock, 1000) == [True]
    assert [(row["id"], row["qty"]) for row in store.rows()] == [("a", 1)]


# Within the application's transaction


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_within_a_transaction_its_end_decides_and_a_duplicate_does_it_no_harm(
    either_store: Store, end: str
) -> None:
    store = either_store
    store.insert(id="known")
    before = store.dump()
    engine = store.repository._bind
    assert isinstance(engine, Engine)
    with Session(engine) as session:
        session.begin()
        jobs = store.repository.within(session)
        known: Event = {"id": "known", "qty": 1}
        events: list[Event] = [known, {"id": "a", "qty": 1}, {"id": "known", "qty": 2}]
        assert told(jobs.enqueue_many(events, NOW, 1000)) == [False, True, ("known", 1, 2)]
        # The transaction goes on.
        assert jobs.enqueue({"id": "b", "qty": 1}, NOW, 1000) is True
        getattr(session, end)()
    if end == "commit":
        assert [row["id"] for row in store.rows()] == ["known", "a", "b"]
    else:
        assert store.dump() == before


def test_what_the_database_refuses_in_the_middle_undoes_all(either_store: Store) -> None:
    store = either_store
    engine = store.repository._bind
    assert isinstance(engine, Engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE UNIQUE INDEX its_own ON jobs (qty)")
    try:
        before = store.dump()
        events: list[Event] = [
            {"id": f"job-{number}", "qty": number % 5 + 1} for number in range(9)
        ]
        with pytest.raises(IntegrityError):
            store.repository.enqueue_many(events, NOW, 1000)
        assert store.dump()["jobs"] == before["jobs"] == []
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP INDEX its_own")
