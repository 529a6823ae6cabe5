"""release: a leased job given back unworked, and its attempt with it."""

from __future__ import annotations

from leasestore import Ticket
from tests.conformance.scene import HELD, insert_held
from tests.conformance.stores import Store
from tests.conformance.test_finish import OTHERWISE


def test_the_job_is_pending_as_if_this_claim_had_not_counted(store: Store) -> None:
    insert_held(store, available_at=17)
    before = store.row("held")
    assert store.repository.release(HELD) is True
    assert store.row("held") == {
        **before,
        "status": "pending",
        "attempts": 1,
        "owner": None,
        "lease_until": None,
        "reason": "released",
    }


def test_a_released_job_can_be_claimed_at_once_with_a_higher_token(store: Store) -> None:
    insert_held(store, deadline=5000)
    store.repository.release(HELD)
    ticket = store.repository.claim("you", 100)
    assert ticket is not None
    assert (ticket["token"], ticket["attempt"]) == (8, 2)


def test_a_job_is_released_once(store: Store) -> None:
    insert_held(store)
    store.repository.release(HELD)
    before = store.dump()
    assert store.repository.release(HELD) is False
    assert store.repository.finish(HELD, "ok", 100) is False
    assert store.dump() == before


def test_a_ticket_that_differs_anywhere_is_stale(store: Store) -> None:
    insert_held(store)
    before = store.dump()
    for change in OTHERWISE:
        ticket: Ticket = {**HELD, **change}  # type: ignore[typeddict-item]
        assert store.repository.release(ticket) is False, change
    assert store.dump() == before


def test_a_job_that_is_not_leased_cannot_be_released(store: Store) -> None:
    for status in ("pending", "done", "dead"):
        insert_held(store, id=status, status=status)
    before = store.dump()
    answers = [
        store.repository.release({**HELD, "id": job})
        for job in ("pending", "done", "dead", "nobody")
    ]
    assert answers == [False] * 4
    assert store.dump() == before


def test_many_releases_and_one_failure_are_one_attempt(store: Store) -> None:
    repository = store.repository
    repository.enqueue({"id": "a", "qty": 1}, 0, 60_000, 2)
    for now in range(20):
        ticket = repository.claim("me", now)
        assert ticket is not None
        assert ticket["attempt"] == 1
        assert repository.release(ticket) is True
    ticket = repository.claim("me", 20)
    assert ticket is not None
    assert repository.finish(ticket, "retry", 21) == "pending"
    row = store.row("a")
    assert (row["attempts"], row["token"]) == (1, 21)


def test_the_last_attempt_given_back_can_be_used_again(store: Store) -> None:
    repository = store.repository
    repository.enqueue({"id": "a", "qty": 1}, 0, 60_000, 1)
    ticket = repository.claim("me", 0)
    assert ticket is not None
    repository.release(ticket)
    again = repository.claim("me", 1)
    assert again is not None
    assert repository.finish(again, "ok", 2) == "done"
