"""finish: every outcome, and every way in which a ticket is stale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import pytest

from leasestore import Outcome, Ticket
from tests.conformance.scene import HELD, insert_held, ticket_of
from tests.conformance.stores import Store

NOW = 300

# outcome, delay_ms, what the row says, and then: status, reason, available_at.
Case = tuple[Outcome, int, Mapping[str, Any], tuple[str, str | None, int]]
OUTCOMES: dict[str, Case] = {
    "ok": ("ok", 0, {}, ("done", None, 300)),
    "ok-with-a-delay": ("ok", 50, {}, ("done", None, 300)),
    "ok-at-the-last-attempt": ("ok", 0, {"attempts": 3}, ("done", None, 300)),
    "permanent": ("permanent", 0, {}, ("dead", "permanent", 300)),
    "permanent-with-a-delay": ("permanent", 50, {}, ("dead", "permanent", 300)),
    "permanent-at-the-last-attempt": (
        "permanent",
        0,
        {"attempts": 3},
        ("dead", "permanent", 300),
    ),
    "retry": ("retry", 0, {}, ("pending", "retry", 300)),
    "retry-with-a-delay": ("retry", 50, {}, ("pending", "retry", 350)),
    "retry-with-the-longest-delay": (
        "retry",
        60_000,
        {"deadline": 60_301},
        ("pending", "retry", 60_300),
    ),
    "retry-just-before-the-deadline": ("retry", 699, {}, ("pending", "retry", 999)),
    "retry-at-the-deadline": ("retry", 700, {}, ("dead", "deadline", 300)),
    "retry-after-the-deadline": ("retry", 701, {}, ("dead", "deadline", 300)),
    "retry-before-the-last-attempt": ("retry", 50, {"attempts": 2}, ("pending", "retry", 350)),
    "retry-at-the-last-attempt": ("retry", 50, {"attempts": 3}, ("dead", "exhausted", 300)),
    "retry-beyond-the-last-attempt": ("retry", 50, {"attempts": 4}, ("dead", "exhausted", 300)),
    "retry-with-neither": ("retry", 700, {"attempts": 3}, ("dead", "exhausted", 300)),
}


def test_each_outcome_leaves_its_status_reason_and_next_instant(store: Store) -> None:
    expected: dict[str, dict[str, Any]] = {}
    for job, (_, _, columns, (status, reason, available_at)) in OUTCOMES.items():
        insert_held(store, id=job, max_attempts=3, available_at=17, **columns)
        expected[job] = {
            **store.row(job),
            "status": status,
            "reason": reason,
            "available_at": available_at,
            "owner": None,
            "lease_until": None,
        }
    answers = {
        job: store.repository.finish(ticket_of(store.row(job)), outcome, NOW, delay_ms)
        for job, (outcome, delay_ms, _, _) in OUTCOMES.items()
    }
    assert answers == {job: row["status"] for job, row in expected.items()}
    assert {row["id"]: row for row in store.rows()} == expected


def test_no_delay_unless_said(store: Store) -> None:
    insert_held(store)
    store.repository.finish(HELD, "retry", NOW)
    assert store.row("held")["available_at"] == NOW


OTHERWISE: list[dict[str, Any]] = [
    {"qty": 4},
    {"qty": 6},
    {"owner": "Me"},
    {"owner": "you"},
    {"token": 6},
    {"token": 8},
    {"attempt": 1},
    {"attempt": 3},
    {"lease_until": 499},
    {"lease_until": 501},
]


@pytest.mark.parametrize("outcome", ["ok", "retry", "permanent"])
def test_a_ticket_that_differs_anywhere_is_stale(store: Store, outcome: Outcome) -> None:
    insert_held(store)
    before = store.dump()
    for change in OTHERWISE:
        ticket: Ticket = {**HELD, **change}  # type: ignore[typeddict-item]
        assert store.repository.finish(ticket, outcome, NOW, 10) is False, change
    assert store.dump() == before
    assert store.repository.finish(HELD, outcome, NOW) is not False


@pytest.mark.parametrize("outcome", ["ok", "retry", "permanent"])
def test_a_job_that_is_not_leased_cannot_be_finished(store: Store, outcome: Outcome) -> None:
    # Rows that match the ticket in every other column.
    for status in ("pending", "done", "dead"):
        insert_held(store, id=status, status=status)
    before = store.dump()
    answers = [
        store.repository.finish({**HELD, "id": job}, outcome, NOW)
        for job in ("pending", "done", "dead", "nobody")
    ]
    assert answers == [False] * 4
    assert store.dump() == before


def test_a_job_is_finished_once(store: Store) -> None:
    insert_held(store)
    assert store.repository.finish(HELD, "ok", NOW) == "done"
    before = store.dump()
    for outcome in get_args(Outcome):
        assert store.repository.finish(HELD, outcome, NOW) is False
    assert store.dump() == before


def test_an_earlier_run_of_the_same_owner_cannot_touch_the_later_one(store: Store) -> None:
    repository = store.repository
    repository.enqueue({"id": "a", "qty": 1}, 0, 10_000)
    earlier = repository.claim("me", 0, 100)
    later = repository.claim("me", 100, 1000)
    assert earlier is not None
    assert later is not None
    before = store.dump()
    assert repository.finish(earlier, "ok", 150) is False
    assert repository.renew(earlier, 150) is None
    assert repository.release(earlier) is False
    assert store.dump() == before
    assert repository.finish(later, "ok", 150) == "done"


def test_tickets_do_not_serve_for_each_others_jobs(store: Store) -> None:
    repository = store.repository
    for job in ("a", "b"):
        repository.enqueue({"id": job, "qty": 1}, 0, 10_000)
    mine, yours = repository.claim("me", 0), repository.claim("you", 0)
    assert mine is not None
    assert yours is not None
    before = store.dump()
    assert repository.finish({**mine, "id": "b"}, "ok", 1) is False
    assert repository.finish({**yours, "id": "a"}, "ok", 1) is False
    assert store.dump() == before


def test_a_retry_does_not_hold_back_the_jobs_after_it(store: Store) -> None:
    repository = store.repository
    for job in ("failing", "b", "c"):
        repository.enqueue({"id": job, "qty": 1}, 0, 10_000)
    order = []
    for now in range(0, 400, 100):
        ticket = repository.claim("me", now)
        assert ticket is not None
        order.append(ticket["id"])
        repository.finish(ticket, "retry" if ticket["id"] == "failing" else "ok", now + 1, 200)
    assert order == ["failing", "b", "c", "failing"]


def test_a_ticket_changed_while_the_call_runs_counts_as_it_was_given(store: Store) -> None:
    insert_held(store)
    ticket: Ticket = {**HELD}

    def clock() -> int:
        ticket["token"] += 1
        return NOW

    assert store.repository.finish(ticket, "ok", clock) == "done"
