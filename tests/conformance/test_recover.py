"""recover: every job whose lease has ended is freed, or found dead."""

from __future__ import annotations

from typing import Any

from tests.conformance.scene import HELD, insert_held
from tests.conformance.stores import Store
from tests.conformance.test_claim import SWEPT, expected_after_sweep, put_rows_to_sweep


def expired(store: Store, job_id: str, **columns: Any) -> None:
    leased = {"status": "leased", "attempts": 1, "token": 4, "owner": "gone"}
    store.insert(id=job_id, **{**leased, "lease_until": 90, **columns})


def test_an_ended_lease_goes_back_and_all_else_stays(store: Store) -> None:
    expired(store, "a", available_at=20, attempts=2)
    before = store.row("a")
    answer = store.repository.recover(100)
    assert answer == {"recovered": 1, "deadline": 0, "exhausted": 0}
    assert store.row("a") == {
        **before,
        "status": "pending",
        "owner": None,
        "lease_until": None,
        "reason": "expired",
    }


def test_it_sweeps_as_a_claim_does(store: Store) -> None:
    put_rows_to_sweep(store)
    expected = expected_after_sweep(store, *SWEPT)
    reasons = [reason for _, reason in SWEPT.values()]
    assert store.repository.recover(100) == {
        "recovered": 0,
        "deadline": reasons.count("deadline"),
        "exhausted": reasons.count("exhausted"),
    }
    assert {row["id"]: row for row in store.rows()} == expected


def test_each_row_is_counted_once_by_what_became_of_it(store: Store) -> None:
    expired(store, "a")
    expired(store, "b")
    expired(store, "no-time", deadline=100)
    expired(store, "no-attempts", attempts=3)
    expired(store, "neither", attempts=3, deadline=100)
    store.insert(id="late", deadline=50)
    store.insert(id="ready")
    insert_held(store)
    assert store.repository.recover(100) == {"recovered": 2, "deadline": 3, "exhausted": 1}
    assert {row["id"]: (row["status"], row["reason"]) for row in store.rows()} == {
        "a": ("pending", "expired"),
        "b": ("pending", "expired"),
        "no-time": ("dead", "deadline"),
        "no-attempts": ("dead", "exhausted"),
        "neither": ("dead", "deadline"),
        "late": ("dead", "deadline"),
        "ready": ("pending", None),
        "held": ("leased", None),
    }


def test_a_second_recovery_finds_nothing(store: Store) -> None:
    for number in range(10):
        expired(store, f"job-{number}", deadline=100 if number % 2 else 1000)
    assert store.repository.recover(100) == {"recovered": 5, "deadline": 5, "exhausted": 0}
    before = store.dump()
    assert store.repository.recover(100) == {"recovered": 0, "deadline": 0, "exhausted": 0}
    assert store.dump() == before


def test_a_live_lease_is_never_touched(store: Store) -> None:
    insert_held(store)
    before = store.dump()
    assert store.repository.recover(499) == {"recovered": 0, "deadline": 0, "exhausted": 0}
    assert store.dump() == before
    assert store.repository.finish(HELD, "ok", 499) == "done"


def test_a_job_finished_meanwhile_stays_finished(store: Store) -> None:
    insert_held(store)
    seen = store.repository.stuck(500)
    assert [row["id"] for row in seen] == ["held"]
    assert store.repository.finish(HELD, "ok", 499) == "done"
    before = store.dump()
    assert store.repository.recover(500) == {"recovered": 0, "deadline": 0, "exhausted": 0}
    assert store.dump() == before


def test_the_ticket_of_a_recovered_job_is_stale(store: Store) -> None:
    insert_held(store)
    store.repository.recover(500)
    before = store.dump()
    # Even where the clock that comes with it is behind.
    assert store.repository.finish(HELD, "ok", 400) is False
    assert store.repository.renew(HELD, 400) is None
    assert store.repository.release(HELD) is False
    assert store.dump() == before


def test_a_job_that_kills_its_worker_is_dead_after_its_attempts(store: Store) -> None:
    repository = store.repository
    repository.enqueue({"id": "poison", "qty": 1}, 0, 60_000, 3)
    for number in range(5):
        repository.enqueue({"id": f"good-{number}", "qty": 1}, 0, 60_000)
    starts: list[str] = []
    for now in range(0, 10_000, 1000):
        ticket = repository.claim("me", now)
        if ticket is None:
            break
        starts.append(ticket["id"])
        if ticket["id"] != "poison":
            repository.finish(ticket, "ok", now + 1)
    assert starts == ["poison"] * 3 + [f"good-{number}" for number in range(5)]
    row = store.row("poison")
    assert (row["status"], row["reason"], row["attempts"]) == ("dead", "exhausted", 3)


def test_the_limit_is_the_rows_own(store: Store) -> None:
    store.insert(id="one", max_attempts=1)
    store.insert(id="sixteen", max_attempts=16)
    for _ in range(2):
        ticket = store.repository.claim("me", 0)
        assert ticket is not None
        store.repository.finish(ticket, "retry", 1)
    states = {row["id"]: (row["status"], row["reason"]) for row in store.rows()}
    assert states == {"one": ("dead", "exhausted"), "sixteen": ("pending", "retry")}
