"""renew_batch: each ticket is a renewal of its own, all of them are one transaction."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from leasestore import StaleTicket, Ticket, immediate
from tests.conformance.scene import HELD, NOW, STALE, Points, insert_held, stage, ticket_of
from tests.conformance.stores import Store
from tests.conformance.test_finish import OTHERWISE


def held(store: Store, *names: str, **columns: Any) -> list[Ticket]:
    """Jobs that are leased, and their tickets."""
    for name in names:
        insert_held(store, id=name, **columns)
    return [ticket_of(store.row(name)) for name in names]


def until(ticket: Ticket, lease_until: int) -> Ticket:
    return {**ticket, "lease_until": lease_until}


def test_only_the_ends_of_the_leases_change(store: Store) -> None:
    (a,), (b,) = held(store, "a", deadline=5000), held(store, "b", deadline=700)
    before = store.rows()
    assert store.repository.renew_batch([b, a], 300, 800) == [until(b, 700), until(a, 1100)]
    ends = {"a": 1100, "b": 700}
    assert store.rows() == [{**row, "lease_until": ends[row["id"]]} for row in before]


def test_one_second_unless_said(store: Store) -> None:
    (a,) = held(store, "a", deadline=5000)
    assert store.repository.renew_batch([a], 300) == [until(a, 1300)]


def test_a_stale_ticket_leaves_the_others_as_they_are(store: Store) -> None:
    insert_held(store)
    a, b = held(store, "a", "b", deadline=5000)
    near: list[Any] = [{**HELD, **change} for change in OTHERWISE]
    before = store.row("held")
    answers = store.repository.renew_batch([a, *near, b], 300, 900)
    assert answers == [until(a, 1200), *[None] * len(near), until(b, 1200)]
    assert store.row("held") == before


@pytest.mark.parametrize(("now", "renewed"), [(499, True), (500, False), (501, False)])
def test_an_ended_lease_never_comes_back(store: Store, now: int, renewed: bool) -> None:
    (a,), (b,) = held(store, "a", deadline=5000), held(store, "b", deadline=5000, lease_until=900)
    answers = store.repository.renew_batch([a, b], now, 1000)
    assert answers == [until(a, now + 1000) if renewed else None, until(b, now + 1000)]


def test_where_the_end_changes_the_second_of_two_is_stale(either_store: Store) -> None:
    (a,) = held(either_store, "a", deadline=5000)
    new = until(a, 1100)
    # The new one serves from then on, and not before.
    answers = either_store.repository.renew_batch([new, a, a, new], NOW)
    assert answers == [None, new, None, new]


def test_where_it_does_not_the_second_serves_too(either_store: Store) -> None:
    (a,) = held(either_store, "a", deadline=5000, lease_until=1100)
    answers = either_store.repository.renew_batch([a, a], NOW)
    assert answers == [a, a]
    assert answers[0] is not answers[1]


def test_of_nothing_nothing_is_sent_and_no_clock_is_read(store: Store) -> None:
    def never() -> int:
        raise AssertionError("the clock was read")

    assert store.repository.renew_batch([], never) == []


def test_a_thousand_at_once(either_store: Store) -> None:
    repository = either_store.repository
    names = [f"job-{number}" for number in range(1000)]
    repository.enqueue_many([{"id": name, "qty": 1} for name in names], NOW, 60_000)
    tickets = repository.claim_batch("me", NOW, 1000, 500)
    renewed = repository.renew_batch(tickets, NOW + 1, 1000)
    assert renewed == [until(ticket, NOW + 1001) for ticket in tickets]
    assert [row["lease_until"] for row in either_store.rows()] == [NOW + 1001] * 1000


def test_the_points_are_passed_for_what_changed_only(store: Store) -> None:
    a, b = held(store, "a", "b", deadline=5000)
    tickets: list[Ticket] = [a, {**a, "token": 6}, b]
    store.repository.renew_batch(tickets, NOW, 500, points := Points())
    assert points.passed == ["after-renew", "after-renew", "after-commit"]
    before = store.dump()
    assert store.repository.renew_batch(tickets, NOW, 500, points := Points()) == [None] * 3
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
        store.repository.renew_batch(tickets, NOW, 1000, fault)
    assert passed == ["after-renew"] * at
    assert store.dump() == before


# Within the application's transaction


@pytest.mark.parametrize("stale", [STALE, HELD], ids=["stale", "twin"])
def test_within_a_transaction_a_stale_ticket_raises_before_anything_is_changed(
    either_store: Store, stale: Ticket
) -> None:
    store = either_store
    stage(store)
    (other,) = held(store, "other")
    before = store.dump()
    engine = store.repository._bind
    assert isinstance(engine, Engine)
    with Session(engine) as session, immediate(session), pytest.raises(StaleTicket) as caught:
        store.repository.within(session).renew_batch([HELD, other, stale], NOW, 50)
    # Committed, so that whatever it had done would show.
    assert store.dump() == before
    assert caught.value.ticket == stale
    with Session(engine) as session, immediate(session):
        renewed = store.repository.within(session).renew_batch([HELD, other], NOW, 50)
    assert renewed == [until(HELD, 150), until(other, 150)]
