"""claim: the sweep, the choice, the ticket; and the claim of one job."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from leasestore import Ticket
from leasestore.statements import FEW_DEAD
from tests.conformance.scene import insert_held
from tests.conformance.stores import SQLITE, Store


def test_the_ticket_says_what_the_row_says(store: Store) -> None:
    store.repository.enqueue({"id": "a", "qty": 2}, 100, 5000)
    ticket = store.repository.claim("me", 150, 700)
    assert ticket == {
        "id": "a",
        "qty": 2,
        "owner": "me",
        "token": 1,
        "attempt": 1,
        "lease_until": 850,
    }
    assert list(ticket) == ["id", "qty", "owner", "token", "attempt", "lease_until"]
    assert type(ticket) is dict


def test_what_a_claim_changes_and_what_stays(store: Store) -> None:
    store.insert(id="a", attempts=1, token=4, reason="retry", max_attempts=3, deadline=5000)
    before = store.row("a")
    store.repository.claim("me", 150, 700)
    assert store.row("a") == {
        **before,
        "status": "leased",
        "attempts": 2,
        "token": 5,
        "owner": "me",
        "lease_until": 850,
        "reason": None,
    }


def test_a_lease_of_one_second_unless_said(store: Store) -> None:
    store.insert(id="a", deadline=5000)
    ticket = store.repository.claim("me", 100)
    assert ticket is not None
    assert ticket["lease_until"] == 1100


def test_a_lease_never_outlasts_the_deadline(store: Store) -> None:
    store.insert(id="a", deadline=100)
    ticket = store.repository.claim("me", 0, 1000)
    assert ticket is not None
    assert ticket["lease_until"] == 100
    assert store.row("a")["lease_until"] == 100


def test_an_expired_lease_goes_to_the_next_owner_with_a_higher_token(store: Store) -> None:
    insert_held(store, max_attempts=3)
    ticket = store.repository.claim("you", 500, 100)
    assert ticket == {
        "id": "held",
        "qty": 5,
        "owner": "you",
        "token": 8,
        "attempt": 3,
        "lease_until": 600,
    }


def test_no_job_is_claimed_twice(store: Store) -> None:
    for job in ("a", "b"):
        store.repository.enqueue({"id": job, "qty": 1}, 0, 1000)
    claimed = [store.repository.claim("me", 0) for _ in range(3)]
    assert [ticket and ticket["id"] for ticket in claimed] == ["a", "b", None]


def test_the_lowest_seq_comes_first_whether_pending_or_expired(store: Store) -> None:
    store.insert(id="c", seq=30)
    store.insert(id="not-yet", seq=1, available_at=101)
    store.insert(id="b", seq=20, status="leased", attempts=1, token=1, owner="x", lease_until=100)
    store.insert(id="held", seq=2, status="leased", attempts=1, token=1, owner="x", lease_until=101)
    store.insert(id="a", seq=10, available_at=100)
    order = [store.repository.claim("me", 100) for _ in range(4)]
    assert [ticket and ticket["id"] for ticket in order] == ["a", "b", "c", None]


def test_a_job_is_found_however_many_seqs_are_in_front_of_it(store: Store) -> None:
    leased: dict[str, Any] = {"status": "leased", "attempts": 1, "token": 1, "owner": "x"}
    store.insert(id="not-yet", seq=1, available_at=101)
    store.insert(id="held", seq=9_000, lease_until=101, **leased)
    store.insert(id="late", seq=20_000, deadline=100)
    store.insert(id="spent", seq=30_000, lease_until=99, **{**leased, "attempts": 3})
    store.insert(id="nor-yet", seq=50_000, available_at=101)
    store.insert(id="c", seq=5_000_000)
    store.insert(id="b", seq=80_001, lease_until=100, **leased)
    store.insert(id="a", seq=80_000)
    order = [store.repository.claim("me", 100) for _ in range(4)]
    assert [ticket and ticket["id"] for ticket in order] == ["a", "b", "c", None]
    assert [store.row(name)["reason"] for name in ("late", "spent")] == ["deadline", "exhausted"]
    ticket = store.repository.claim("me", 101)
    assert ticket is not None
    assert ticket["id"] == "not-yet"


SWEPT: dict[str, tuple[dict[str, Any], str | None]] = {
    "pending-no-time": ({"deadline": 100}, "deadline"),
    "pending-no-attempts": ({"attempts": 3}, "exhausted"),
    "pending-neither": ({"attempts": 3, "deadline": 100}, "deadline"),
    "pending-beyond-attempts": ({"attempts": 9}, "exhausted"),
    "pending-later-no-attempts": ({"attempts": 3, "available_at": 900}, "exhausted"),
    "pending-later-no-time": ({"available_at": 900, "deadline": 99}, "deadline"),
    "expired-no-time": ({"lease_until": 100, "deadline": 100}, "deadline"),
    "expired-no-attempts": ({"lease_until": 100, "attempts": 3}, "exhausted"),
    "expired-neither": ({"lease_until": 99, "attempts": 3, "deadline": 99}, "deadline"),
    "live-no-attempts": ({"lease_until": 101, "attempts": 3}, None),
    "live-no-time": ({"lease_until": 101, "deadline": 100}, None),
    "done-no-time": ({"status": "done", "deadline": 1}, None),
    "dead-no-time": ({"status": "dead", "deadline": 1, "reason": "permanent"}, None),
}
"""Rows at 100, and the reason for which they die there."""


def put_rows_to_sweep(store: Store) -> None:
    for job, (columns, _) in SWEPT.items():
        leased = {"status": "leased", "owner": "x", "token": 1, "attempts": 1}
        store.insert(id=job, **{**(leased if "lease_until" in columns else {}), **columns})


def expected_after_sweep(store: Store, *jobs: str) -> dict[str, dict[str, Any]]:
    rows = {row["id"]: row for row in store.rows()}
    for job in jobs:
        if reason := SWEPT[job][1]:
            rows[job] |= {"status": "dead", "reason": reason, "owner": None, "lease_until": None}
    return rows


def test_the_sweep_ends_what_has_no_time_or_attempts_left_and_nothing_else(store: Store) -> None:
    put_rows_to_sweep(store)
    expected = expected_after_sweep(store, *SWEPT)
    assert store.repository.claim("me", 100) is None
    assert {row["id"]: row for row in store.rows()} == expected


def test_the_sweep_is_kept_when_a_job_is_taken_too(store: Store) -> None:
    put_rows_to_sweep(store)
    expected = expected_after_sweep(store, *SWEPT)
    store.insert(id="ready")
    ticket = store.repository.claim("me", 100)
    assert ticket is not None
    assert ticket["id"] == "ready"
    assert {row["id"]: row for row in store.rows() if row["id"] != "ready"} == expected


def put_very_many_to_sweep(store: Store, each: int) -> dict[str, str]:
    """So many of each kind, and the reason for which each has to die."""
    leased: dict[str, Any] = {"status": "leased", "attempts": 3, "token": 3, "owner": "x"}
    for number in range(each):
        store.insert(id=f"late-{number}", deadline=100 - number)
        store.insert(id=f"spent-{number}", lease_until=100 - number, **leased)
        store.insert(id=f"neither-{number}", lease_until=99, **{**leased, "deadline": 100})
    why = {"late": "deadline", "spent": "exhausted", "neither": "deadline"}
    return {f"{kind}-{number}": why[kind] for kind in why for number in range(each)}


# Fewer than a claim itself takes along, as many of each kind, and more.
@pytest.mark.parametrize("each", [FEW_DEAD // 4, FEW_DEAD, FEW_DEAD + 5])
def test_the_sweep_leaves_nothing_however_many_there_are(store: Store, each: int) -> None:
    reasons = put_very_many_to_sweep(store, each)
    store.insert(id="ready")
    store.insert(id="held", status="leased", attempts=3, token=3, owner="x", lease_until=101)
    ticket = store.repository.claim("me", 100)
    assert ticket is not None
    assert ticket["id"] == "ready"
    assert {row["id"]: row["reason"] for row in store.rows() if row["status"] == "dead"} == reasons
    assert store.row("held")["status"] == "leased"


@pytest.mark.parametrize("count", [FEW_DEAD // 2, FEW_DEAD - 1, FEW_DEAD, FEW_DEAD + 1, 45])
@pytest.mark.parametrize("kind", ["late", "spent", "neither"])
def test_however_many_die_of_one_kind_the_claim_takes_its_job(
    store: Store, kind: str, count: int
) -> None:
    ends = {"late": {"deadline": 100}, "spent": {}, "neither": {"deadline": 100}}[kind]
    leased = {"status": "leased", "attempts": 3, "token": 3, "owner": "x", "lease_until": 100}
    for number in range(count):
        store.insert(id=f"{number}", **({} if kind == "late" else leased), **ends)
    store.insert(id="ready")
    ticket = store.repository.claim("me", 100)
    assert ticket is not None
    assert (ticket["id"], ticket["token"]) == ("ready", 1)
    assert [row["status"] for row in store.rows()] == ["dead"] * count + ["leased"]


def test_who_sweeps_is_told_of_each(one_store: Store) -> None:
    reasons = put_very_many_to_sweep(one_store, FEW_DEAD + 5)
    attempts = {"late": 0, "spent": 3, "neither": 3}
    tickets, swept = one_store.repository._claim_and_sweep("me", 100, 1, 1000)
    assert tickets == []
    assert len(swept) == len(reasons)
    assert {job["id"]: job["reason"] for job in swept} == reasons
    for job in swept:
        assert job["attempts"] == job["token"] == attempts[job["id"].partition("-")[0]]
    assert one_store.repository._claim_and_sweep("me", 100, 1, 1000) == ([], [])


def test_a_claim_of_one_job_sweeps_that_job_alone(store: Store) -> None:
    put_rows_to_sweep(store)
    for job in SWEPT:
        expected = expected_after_sweep(store, job)
        assert store.repository.claim("me", 100, job_id=job) is None
        assert {row["id"]: row for row in store.rows()} == expected


def test_a_claim_of_one_job_takes_that_job(store: Store) -> None:
    store.insert(id="a")
    store.insert(id="b", deadline=5000)
    ticket = store.repository.claim("me", 100, 200, job_id="b")
    assert ticket == {
        "id": "b",
        "qty": 1,
        "owner": "me",
        "token": 1,
        "attempt": 1,
        "lease_until": 300,
    }
    assert store.row("a")["status"] == "pending"


def test_a_claim_of_one_job_takes_an_expired_one(store: Store) -> None:
    store.insert(id="a")
    insert_held(store, max_attempts=3)
    assert store.repository.claim("you", 499, job_id="held") is None
    ticket = store.repository.claim("you", 500, job_id="held")
    assert ticket is not None
    assert (ticket["token"], ticket["attempt"]) == (8, 3)


def test_a_claim_of_one_job_that_cannot_be_had_changes_nothing(store: Store) -> None:
    store.insert(id="other")
    insert_held(store)
    store.insert(id="done", status="done", attempts=1, token=1)
    store.insert(id="dead", status="dead", reason="permanent")
    store.insert(id="later", available_at=101)
    before = store.dump()
    for job in ("nobody", "held", "done", "dead", "later"):
        assert store.repository.claim("me", 100, job_id=job) is None, job
    assert store.dump() == before


def test_the_job_to_claim_is_given_by_name_only(one_store: Store) -> None:
    with pytest.raises(TypeError):
        one_store.repository.claim("me", 100, 1000, None, "a")  # type: ignore[call-arg]


def test_the_token_rises_by_one_at_every_claim_of_a_jobs_life(store: Store) -> None:
    repository = store.repository
    repository.enqueue({"id": "a", "qty": 1}, 0, 10_000, 3)
    tokens: list[int] = []

    def claim(now: int) -> Ticket:
        ticket = repository.claim("me", now, 10)
        assert ticket is not None
        tokens.append(ticket["token"])
        return ticket

    assert repository.release(claim(0))
    assert repository.finish(claim(10), "retry", 11) == "pending"
    claim(20)  # it expires
    assert repository.recover(30)["recovered"] == 1
    claim(40)  # it expires with the last attempt
    assert repository.recover(50)["exhausted"] == 1
    repository.redrive("a", 60, 10_000, "again")
    assert repository.finish(claim(70), "permanent", 71) == "dead"
    repository.redrive("a", 80, 10_000, "once-more")
    assert repository.finish(claim(90), "ok", 91) == "done"
    assert tokens == [1, 2, 3, 4, 5, 6]


def test_the_lowest_seq_comes_first_whatever_indexes_there_are(tmp_path: Path) -> None:
    with SQLITE["default-engine"](tmp_path / "queue.db") as store:
        with closing(sqlite3.connect(store.path)) as plain:
            plain.execute("CREATE INDEX by_time ON jobs(status, available_at)")
            plain.execute("CREATE INDEX by_lease ON jobs(status, lease_until)")
        for number in range(5):
            leased = {"status": "leased", "attempts": 1, "token": 1, "owner": "x"}
            store.insert(id=f"pending-{number}", available_at=50 - number)
            store.insert(id=f"leased-{number}", lease_until=50 - number, **leased)
        order = [store.repository.claim("me", 100) for _ in range(10)]
        assert [ticket and ticket["id"] for ticket in order] == [row["id"] for row in store.rows()]
