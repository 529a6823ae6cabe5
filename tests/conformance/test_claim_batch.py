"""claim_batch: what so many claims would take, and never more."""

from __future__ import annotations

from typing import Any

import pytest

from leasestore import Ticket
from leasestore.statements import FEW_DEAD
from tests.conformance.scene import NOW, Points, stage
from tests.conformance.stores import Store
from tests.conformance.test_claim import (
    SWEPT,
    expected_after_sweep,
    put_rows_to_sweep,
    put_very_many_to_sweep,
)


def ids(tickets: list[Ticket]) -> list[str]:
    return [ticket["id"] for ticket in tickets]


def test_the_first_so_many_are_taken_in_order(store: Store) -> None:
    for number in range(20):
        store.insert(id=f"job-{number}", qty=number + 1)
    repository = store.repository
    assert ids(repository.claim_batch("me", NOW, 1)) == ["job-0"]
    assert ids(repository.claim_batch("me", NOW, 7)) == [f"job-{n}" for n in range(1, 8)]
    assert ids(repository.claim_batch("me", NOW, 1000)) == [f"job-{n}" for n in range(8, 20)]
    assert repository.claim_batch("me", NOW, 1) == []


def test_each_ticket_says_what_its_row_says_and_serves(store: Store) -> None:
    store.insert(id="a", qty=2, attempts=1, token=4, reason="retry", deadline=5000)
    store.insert(id="b", deadline=600)
    tickets = store.repository.claim_batch("me", NOW, 5, 700)
    assert tickets == [
        {"id": "a", "qty": 2, "owner": "me", "token": 5, "attempt": 2, "lease_until": 800},
        {"id": "b", "qty": 1, "owner": "me", "token": 1, "attempt": 1, "lease_until": 600},
    ]
    assert all(type(ticket) is dict for ticket in tickets)
    assert list(tickets[0]) == ["id", "qty", "owner", "token", "attempt", "lease_until"]
    assert [store.repository.finish(ticket, "ok", NOW) for ticket in tickets] == ["done", "done"]


def test_a_lease_of_one_second_unless_said(store: Store) -> None:
    store.insert(id="a", deadline=5000)
    (ticket,) = store.repository.claim_batch("me", NOW, 1)
    assert ticket["lease_until"] == NOW + 1000


def test_pending_and_expired_ones_come_by_seq_and_the_others_stay(store: Store) -> None:
    leased: dict[str, Any] = {"status": "leased", "attempts": 1, "token": 1, "owner": "x"}
    store.insert(id="c", seq=3000)
    store.insert(id="not-yet", seq=1, available_at=101)
    store.insert(id="b", seq=2000, lease_until=100, **leased)
    store.insert(id="held", seq=2, lease_until=101, **leased)
    store.insert(id="a", seq=10, available_at=100)
    assert ids(store.repository.claim_batch("me", 100, 10)) == ["a", "b", "c"]


def test_it_sweeps_as_a_claim_does(store: Store) -> None:
    put_rows_to_sweep(store)
    expected = expected_after_sweep(store, *SWEPT)
    assert store.repository.claim_batch("me", 100, 100) == []
    assert {row["id"]: row for row in store.rows()} == expected


def test_its_sweep_leaves_nothing_however_many_there_are(store: Store) -> None:
    reasons = put_very_many_to_sweep(store, FEW_DEAD + 5)
    for name in ("b", "a"):
        store.insert(id=name)
    assert ids(store.repository.claim_batch("me", 100, 5)) == ["b", "a"]
    assert {row["id"]: row["reason"] for row in store.rows() if row["status"] == "dead"} == reasons


def test_nothing_taken_is_no_point_passed(store: Store) -> None:
    store.insert(id="late", deadline=50)
    assert store.repository.claim_batch("me", NOW, 5, fault=(points := Points())) == []
    assert points.passed == []
    assert store.row("late")["status"] == "dead"


@pytest.mark.parametrize("at", [1, 2])
def test_a_fault_at_any_of_them_undoes_all(store: Store, at: int) -> None:
    stage(store)
    before = store.dump()
    passed: list[str] = []

    def fault(point: str) -> None:
        passed.append(point)
        if len(passed) == at:
            raise RuntimeError("made up")

    with pytest.raises(RuntimeError, match="made up"):
        store.repository.claim_batch("me", NOW, 5, fault=fault)
    assert passed == ["after-claim"] * at
    assert store.dump() == before
