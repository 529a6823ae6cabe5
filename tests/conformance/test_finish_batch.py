"""finish_batch: each item is a finish of its own, all of them are one transaction."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session

from leasestore import Outcome, StaleTicket, Ticket, immediate
from tests.conformance.scene import HELD, NOW, STALE, Points, insert_held, stage, ticket_of
from tests.conformance.stores import Store
from tests.conformance.test_finish import OTHERWISE


def held(store: Store, *names: str, **columns: Any) -> list[Ticket]:
    """Jobs that are leased, and their tickets."""
    for name in names:
        insert_held(store, id=name, **columns)
    return [ticket_of(store.row(name)) for name in names]


def test_each_item_has_an_outcome_and_a_delay_of_its_own(store: Store) -> None:
    a, b, c, d = held(store, "a", "b", "c", "d", deadline=5000)
    items: list[tuple[Ticket, Outcome, int]] = [
        (d, "retry", 5000), (b, "permanent", 70), (a, "ok", 80), (c, "retry", 90),
    ]  # fmt: skip
    assert store.repository.finish_batch(items, NOW) == ["dead", "dead", "done", "pending"]
    ends = {row["id"]: (row["status"], row["reason"], row["available_at"]) for row in store.rows()}
    assert ends == {
        "a": ("done", None, NOW),
        "b": ("dead", "permanent", NOW),
        "c": ("pending", "retry", NOW + 90),
        "d": ("dead", "deadline", NOW),
    }
    assert {(row["owner"], row["lease_until"], row["token"]) for row in store.rows()} == {
        (None, None, 7)
    }


def test_a_retry_without_attempts_left_is_exhausted(store: Store) -> None:
    (ticket,) = held(store, "a", attempts=3)
    assert store.repository.finish_batch([(ticket, "retry", 5)], NOW) == ["dead"]
    assert store.row("a")["reason"] == "exhausted"


def test_a_stale_item_leaves_the_others_as_they_are(store: Store) -> None:
    insert_held(store)
    a, b = held(store, "a", "b")
    near: list[Any] = [{**HELD, **change} for change in OTHERWISE]
    items: list[Any] = [(a, "ok", 0), *((ticket, "ok", 0) for ticket in near), (b, "ok", 0)]
    before = store.row("held")
    answers = store.repository.finish_batch(items, NOW)
    assert answers == ["done", *[False] * len(near), "done"]
    assert store.row("held") == before


def test_of_two_for_the_same_run_the_second_is_stale(store: Store) -> None:
    insert_held(store)
    (other,) = held(store, "other")
    items: list[tuple[Ticket, Outcome, int]] = [
        (STALE, "ok", 0), (HELD, "retry", 10), (other, "ok", 0), (HELD, "ok", 0),
    ]  # fmt: skip
    assert store.repository.finish_batch(items, NOW) == [False, "pending", "done", False]
    assert store.row("held")["available_at"] == NOW + 10


@pytest.mark.parametrize(("now", "answer"), [(499, "done"), (500, False), (501, False)])
def test_at_the_end_of_its_lease_an_item_is_stale(
    store: Store, now: int, answer: str | bool
) -> None:
    insert_held(store)
    (longer,) = held(store, "longer", lease_until=900)
    items: list[tuple[Ticket, Outcome, int]] = [(HELD, "ok", 0), (longer, "ok", 0)]
    assert store.repository.finish_batch(items, now) == [answer, "done"]


def test_of_nothing_nothing_is_sent_and_no_clock_is_read(store: Store) -> None:
    def never() -> int:
        raise AssertionError("the clock was read")

    points = Points()
    assert store.repository.finish_batch([], never, points) == []
    assert points.passed == []


def test_a_thousand_at_once(either_store: Store) -> None:
    repository = either_store.repository
    repository.enqueue({"id": "first", "qty": 1}, NOW, 1000)
    (first,) = repository.claim_batch("me", NOW, 1)
    many: list[Ticket] = [{**first, "id": f"nobody-{number}"} for number in range(998)]
    items: list[tuple[Ticket, Outcome, int]] = [
        (ticket, "ok", 0) for ticket in [*many[:500], first, first, *many[500:]]
    ]
    expected = [False] * 500 + ["done", False] + [False] * 498
    assert repository.finish_batch(items, NOW) == expected


def test_the_points_are_passed_for_what_changed_only(store: Store) -> None:
    insert_held(store)
    (other,) = held(store, "other")
    items: list[tuple[Ticket, Outcome, int]] = [
        (HELD, "ok", 0), (STALE, "ok", 0), (other, "retry", 0),
    ]  # fmt: skip
    store.repository.finish_batch(items, NOW, points := Points())
    assert points.passed == ["after-finish", "after-finish", "after-commit"]
    before = store.dump()
    assert store.repository.finish_batch(items, NOW, points := Points()) == [False] * 3
    assert points.passed == []
    assert store.dump() == before


@pytest.mark.parametrize("at", [1, 2])
def test_a_fault_at_any_of_them_undoes_all(store: Store, at: int) -> None:
    tickets = held(store, "a", "b")
    before = store.dump()
    passed: list[str] = []

    def fault(point: str) -> None:
        passed.append(point)
        if len(passed) == at:
            raise RuntimeError("made up")

    with pytest.raises(RuntimeError, match="made up"):
        store.repository.finish_batch([(ticket, "ok", 0) for ticket in tickets], NOW, fault)
    assert passed == ["after-finish"] * at
    assert store.dump() == before


def test_the_given_items_are_not_touched(store: Store) -> None:
    insert_held(store)
    ticket: Ticket = {**HELD}
    items: list[tuple[Ticket, Outcome, int]] = [(ticket, "ok", 0)]
    store.repository.finish_batch(items, NOW)
    assert items == [(HELD, "ok", 0)]
    assert items[0][0] is ticket


# Within the application's transaction


def engine_of(store: Store) -> Engine:
    bind = store.repository._bind
    assert isinstance(bind, Engine)
    return bind


@pytest.mark.parametrize("stale", [STALE, HELD], ids=["stale", "twin"])
def test_within_a_transaction_a_stale_item_raises_before_anything_is_changed(
    either_store: Store, stale: Ticket
) -> None:
    store = either_store
    stage(store)
    (other,) = held(store, "other")
    before = store.dump()
    with Session(engine_of(store)) as session, immediate(session):
        jobs = store.repository.within(session)
        with pytest.raises(StaleTicket) as caught:
            jobs.finish_batch([(HELD, "ok", 0), (other, "ok", 0), (stale, "ok", 0)], NOW)
    # Committed, so that whatever it had done would show.
    assert store.dump() == before
    assert caught.value.ticket == stale
    row = caught.value.row
    assert row is not None
    assert (row["id"], row["token"]) == ("held", 7)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_within_a_transaction_its_end_decides(either_store: Store, end: str) -> None:
    store = either_store
    tickets = held(store, "a", "b")
    before = store.dump()
    with engine_of(store).connect() as connection:
        transaction = connection.begin()
        jobs = store.repository.within(connection)
        assert jobs.finish_batch([(ticket, "ok", 0) for ticket in tickets], NOW) == ["done"] * 2
        getattr(transaction, end)()
    assert (store.dump() == before) is (end == "rollback")


def test_a_job_that_a_rule_of_the_database_keeps_as_it_is_is_not_said_to_have_ended(
    either_store: Store,
) -> None:
    store = either_store
    a, b = held(store, "a", "b")
    engine = engine_of(store)
    lost: list[str] = []

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def keep_a(
        connection: Connection, cursor: Any, statement: str, parameters: Any, *_: Any
    ) -> tuple[str, Any]:
        if statement.startswith("UPDATE"):
            lost.append(statement)
            statement = statement.replace(" WHERE ", " WHERE jobs.id <> 'a' AND ", 1)
        return statement, parameters

    try:
        answers = store.repository.finish_batch([(a, "ok", 0), (b, "ok", 0)], NOW)
    finally:
        event.remove(engine, "before_cursor_execute", keep_a)
    assert lost
    assert answers == [False, "done"]
    assert store.row("a")["status"] == "leased"
