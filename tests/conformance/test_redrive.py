"""redrive: a new budget for a dead job, on record."""

from __future__ import annotations

import pytest

from tests.conformance.scene import insert_held
from tests.conformance.stores import Store


def insert_dead(store: Store, job_id: str = "a") -> None:
    store.insert(
        id=job_id,
        qty=5,
        status="dead",
        attempts=3,
        token=7,
        available_at=20,
        deadline=50,
        reason="exhausted",
    )


def test_a_dead_job_gets_a_new_budget_and_an_audit_row(store: Store) -> None:
    insert_dead(store)
    before = store.row("a")
    assert store.repository.redrive("a", 200, 1000, "by-hand") is True
    assert store.row("a") == {
        **before,
        "status": "pending",
        "attempts": 0,
        "available_at": 200,
        "deadline": 1200,
        "owner": None,
        "lease_until": None,
        "reason": None,
    }
    assert store.rows("redrives") == [
        {"seq": 1, "id": "a", "token": 7, "at_ms": 200, "note": "by-hand"}
    ]


def test_every_redrive_is_on_record(store: Store) -> None:
    repository = store.repository
    insert_dead(store)
    repository.redrive("a", 200, 1000, "first")
    ticket = repository.claim("me", 200)
    assert ticket is not None
    repository.finish(ticket, "permanent", 201)
    repository.redrive("a", 202, 1000, "second")
    audit = [(row["token"], row["at_ms"], row["note"]) for row in store.rows("redrives")]
    assert audit == [(7, 200, "first"), (8, 202, "second")]


def test_a_redriven_job_has_all_its_attempts_again(store: Store) -> None:
    repository = store.repository
    insert_dead(store)
    repository.redrive("a", 200, 1000, "by-hand")
    ticket = repository.claim("me", 200)
    assert ticket is not None
    assert (ticket["attempt"], ticket["token"]) == (1, 8)
    assert repository.finish(ticket, "retry", 201) == "pending"


def test_an_owner_left_in_a_dead_row_is_taken_out(store: Store) -> None:
    store.insert(id="a", status="dead", owner="me", lease_until=5, reason="permanent")
    store.repository.redrive("a", 200, 1000, "by-hand")
    row = store.row("a")
    assert (row["owner"], row["lease_until"]) == (None, None)


def test_only_a_dead_job_can_be_redriven(store: Store) -> None:
    store.insert(id="is-pending")
    insert_held(store)
    store.insert(id="is-done", status="done", attempts=1, token=1)
    before = store.dump()
    for job, found in [
        ("is-pending", "pending"),
        ("held", "leased"),
        ("is-done", "done"),
        ("nobody", "no such job"),
    ]:
        with pytest.raises(ValueError, match=f"job_id.*{job}.*{found}"):
            store.repository.redrive(job, 200, 1000, "by-hand")
        store.assert_clean()
    assert store.dump() == before


def test_a_lease_that_has_ended_is_not_dead_yet(store: Store) -> None:
    insert_held(store, deadline=500)
    with pytest.raises(ValueError, match="leased"):
        store.repository.redrive("held", 900, 1000, "by-hand")


def test_of_two_redrives_one_wins(store: Store) -> None:
    insert_dead(store)
    store.repository.redrive("a", 200, 1000, "first")
    with pytest.raises(ValueError, match="pending"):
        store.repository.redrive("a", 200, 1000, "second")
    assert [row["note"] for row in store.rows("redrives")] == ["first"]


def test_other_dead_jobs_stay_dead(store: Store) -> None:
    insert_dead(store, "a")
    insert_dead(store, "b")
    before = store.row("b")
    store.repository.redrive("a", 200, 1000, "by-hand")
    assert store.row("b") == before
