"""finish_and_claim: what `finish` and then `claim` would do, in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.orm import Session

from leasestore import Outcome, StaleTicket, Ticket, immediate
from tests.conformance.scene import HELD, NOW, STALE, Points, insert_held, stage
from tests.conformance.stores import SQLiteStore, Store

OUTCOMES: tuple[Outcome, ...] = ("ok", "retry", "permanent")


@pytest.mark.parametrize("ticket", [HELD, STALE, {**HELD, "id": "nobody"}])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_it_is_finish_and_then_claim(store: Store, outcome: Outcome, ticket: Ticket) -> None:
    repository = store.repository
    for now, delay in ((NOW, 0), (NOW, 10), (499, 500), (500, 0), (1000, 0)):
        store.wipe()
        stage(store)
        expected = (
            repository.finish(ticket, outcome, now, delay),
            repository.claim("you", now, 700),
        )
        after = store.dump()
        store.wipe()
        stage(store)
        answer = repository.finish_and_claim(ticket, outcome, "you", now, 700, delay)
        assert answer == expected
        assert store.dump() == after


def test_the_next_lease_is_one_second_unless_said(store: Store) -> None:
    insert_held(store)
    store.insert(id="next", deadline=5000)
    status, ticket = store.repository.finish_and_claim(HELD, "ok", "you", NOW)
    assert status == "done"
    assert ticket is not None
    assert (ticket["id"], ticket["owner"], ticket["lease_until"]) == ("next", "you", NOW + 1000)


def test_a_job_to_be_tried_again_at_once_can_be_the_next(store: Store) -> None:
    insert_held(store)
    status, ticket = store.repository.finish_and_claim(HELD, "retry", "me", NOW)
    assert status == "pending"
    assert ticket == {**HELD, "token": 8, "attempt": 3, "lease_until": 1000}


def test_with_a_stale_ticket_the_next_job_is_claimed_all_the_same(store: Store) -> None:
    stage(store)
    before = store.row("held")
    status, ticket = store.repository.finish_and_claim(
        STALE, "ok", "you", NOW, fault=(points := Points())
    )
    assert status is False
    assert ticket is not None
    assert ticket["id"] == "ready"
    assert store.row("held") == before
    assert points.passed == ["after-claim", "after-commit"]


def test_with_nothing_left_to_claim_the_finish_stands(store: Store) -> None:
    insert_held(store)
    answer = store.repository.finish_and_claim(HELD, "ok", "me", NOW, fault=(points := Points()))
    assert answer == ("done", None)
    assert points.passed == ["after-finish", "after-commit"]


def test_where_neither_changes_anything_no_point_is_passed(store: Store) -> None:
    insert_held(store)
    before = store.dump()
    answer = store.repository.finish_and_claim(STALE, "ok", "me", NOW, fault=(points := Points()))
    assert answer == (False, None)
    assert points.passed == []
    assert store.dump() == before


def test_the_clock_is_read_once(store: Store) -> None:
    stage(store)
    read: list[int] = []

    def clock() -> int:
        read.append(NOW)
        return NOW

    store.repository.finish_and_claim(HELD, "ok", "me", clock)
    assert read == [NOW]


def test_one_transaction_is_all_that_it_takes(one_store: SQLiteStore) -> None:
    stage(one_store)
    bind: Any = one_store.repository._bind
    begun: list[object] = []
    note = begun.append
    event.listen(bind, "begin", note)
    one_store.repository.finish_and_claim(HELD, "ok", "me", NOW)
    event.remove(bind, "begin", note)
    assert len(begun) == 1


# Within the application's transaction


@pytest.fixture
def enlisting(either_store: Store) -> tuple[Store, Engine]:
    bind = either_store.repository._bind
    assert isinstance(bind, Engine)
    return either_store, bind


def test_within_a_transaction_a_stale_ticket_raises_and_nothing_is_claimed(
    enlisting: tuple[Store, Engine],
) -> None:
    store, engine = enlisting
    stage(store)
    before = store.dump()
    with Session(engine) as session, immediate(session):
        jobs = store.repository.within(session)
        with pytest.raises(StaleTicket) as caught:
            jobs.finish_and_claim(STALE, "ok", "you", NOW)
    # Committed, so that whatever it had done would show.
    assert store.dump() == before
    assert caught.value.ticket == STALE
    row = caught.value.row
    assert row is not None
    assert (row["id"], row["token"]) == ("held", 7)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_within_a_transaction_its_end_decides(enlisting: tuple[Store, Engine], end: str) -> None:
    store, engine = enlisting
    stage(store)
    before = store.dump()
    with engine.connect() as connection:
        transaction = connection.begin()
        answer = store.repository.within(connection).finish_and_claim(HELD, "ok", "you", NOW)
        ending: Callable[[], None] = getattr(transaction, end)
        ending()
    assert answer[0] == "done"
    assert (store.dump() == before) is (end == "rollback")
