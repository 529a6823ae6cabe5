"""Each instant before, at and after which an operation answers otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from leasestore import Ticket
from tests.conformance.scene import HELD, insert_held
from tests.conformance.stores import Store

AROUND = (499, 500, 501)


def leased(store: Store, job_id: str, **columns: Any) -> Ticket:
    """A row that HELD was handed out for, under another id."""
    insert_held(store, id=job_id, **columns)
    row = store.row(job_id)
    return {**HELD, "id": job_id, "lease_until": row["lease_until"]}


def test_a_job_can_be_claimed_from_its_first_instant_on(store: Store) -> None:
    for now in AROUND:
        store.insert(id=f"at-{now}", available_at=500, deadline=9000)
        taken = store.repository.claim("me", now, 5000, job_id=f"at-{now}") is not None
        assert taken is (now >= 500), now


@pytest.mark.parametrize(("now", "taken"), [(499, None), (500, "a"), (501, "a")])
def test_any_job_can_be_claimed_from_its_first_instant_on(
    store: Store, now: int, taken: str | None
) -> None:
    store.insert(id="a", available_at=500)
    ticket = store.repository.claim("me", now)
    assert (ticket and ticket["id"]) == taken


@pytest.mark.parametrize(("now", "taken"), [(499, None), (500, "held"), (501, "held")])
def test_a_leased_job_can_be_claimed_from_the_end_of_its_lease_on(
    store: Store, now: int, taken: str | None
) -> None:
    insert_held(store)
    for only in ("held", None):
        ticket = store.repository.claim("you", now, job_id=only)
        assert (ticket and ticket["id"]) == taken
        if ticket is not None:
            assert store.repository.release(ticket)


def test_no_instant_has_two_owners_and_none_has_nobody(store: Store) -> None:
    ticket = leased(store, "a", deadline=9000)
    for now in AROUND:
        before = store.dump()
        mine = store.repository.renew(ticket, now, 500 - now if now < 500 else 1) is not None
        yours = now >= 500
        assert mine is not yours, now
        assert store.dump() == before


@pytest.mark.parametrize("outcome", ["ok", "retry", "permanent"])
def test_a_run_can_be_finished_until_its_lease_ends(store: Store, outcome: Any) -> None:
    for now in AROUND:
        ticket = leased(store, f"at-{now}", deadline=9000)
        done = store.repository.finish(ticket, outcome, now) is not False
        assert done is (now < 500), now


@pytest.mark.parametrize("outcome", ["ok", "retry", "permanent"])
def test_a_run_can_be_finished_until_the_deadline(store: Store, outcome: Any) -> None:
    for now in AROUND:
        ticket = leased(store, f"at-{now}", lease_until=9000, deadline=500)
        before = store.row(f"at-{now}")
        done = store.repository.finish(ticket, outcome, now) is not False
        assert done is (now < 500), now
        assert (store.row(f"at-{now}") != before) is done


def test_a_lease_can_be_renewed_until_it_ends(store: Store) -> None:
    for now in AROUND:
        ticket = leased(store, f"at-{now}", deadline=9000)
        assert (store.repository.renew(ticket, now) is not None) is (now < 500), now


def test_a_lease_can_be_renewed_until_the_deadline(store: Store) -> None:
    for now in AROUND:
        ticket = leased(store, f"at-{now}", lease_until=9000, deadline=500)
        before = store.row(f"at-{now}")
        assert (store.repository.renew(ticket, now) is not None) is (now < 500), now
        assert (store.row(f"at-{now}") != before) is (now < 500)


def test_a_lease_is_stuck_from_its_end_on(store: Store) -> None:
    leased(store, "a")
    found = {now: [row["id"] for row in store.repository.stuck(now)] for now in AROUND}
    assert found == {499: [], 500: ["a"], 501: ["a"]}


@pytest.mark.parametrize(("now", "status"), [(499, "leased"), (500, "pending"), (501, "pending")])
def test_a_lease_is_recovered_from_its_end_on(store: Store, now: int, status: str) -> None:
    leased(store, "a")
    recovered = store.repository.recover(now)["recovered"]
    assert (recovered, store.row("a")["status"]) == (int(now >= 500), status)


SWEEPERS: dict[str, Any] = {
    "claim": lambda repository, now: repository.claim("me", now),
    "claim one": lambda repository, now: repository.claim("me", now, job_id="a"),
    "recover": lambda repository, now: repository.recover(now),
}


@pytest.mark.parametrize("sweeper", SWEEPERS)
def test_a_pending_job_dies_at_its_deadline(store: Store, sweeper: str) -> None:
    # Not yet available, so that nobody takes it at the instant before.
    store.insert(id="a", available_at=600, deadline=500)
    before = store.row("a")
    SWEEPERS[sweeper](store.repository, 499)
    assert store.row("a") == before
    SWEEPERS[sweeper](store.repository, 500)
    assert store.row("a") == {**before, "status": "dead", "reason": "deadline"}


@pytest.mark.parametrize("sweeper", SWEEPERS)
def test_a_leased_job_without_time_dies_at_the_end_of_its_lease(store: Store, sweeper: str) -> None:
    leased(store, "a", lease_until=500, deadline=400)
    before = store.row("a")
    SWEEPERS[sweeper](store.repository, 499)
    assert store.row("a") == before
    SWEEPERS[sweeper](store.repository, 500)
    assert (store.row("a")["status"], store.row("a")["reason"]) == ("dead", "deadline")


@pytest.mark.parametrize("sweeper", SWEEPERS)
def test_a_leased_job_without_attempts_dies_at_the_end_of_its_lease(
    store: Store, sweeper: str
) -> None:
    leased(store, "a", lease_until=500, max_attempts=2)
    SWEEPERS[sweeper](store.repository, 499)
    assert store.row("a")["status"] == "leased"
    SWEEPERS[sweeper](store.repository, 500)
    assert (store.row("a")["status"], store.row("a")["reason"]) == ("dead", "exhausted")


@pytest.mark.parametrize(
    ("delay_ms", "state"), [(199, ("pending", 499)), (200, ("dead", 300)), (201, ("dead", 300))]
)
def test_a_retry_needs_an_instant_before_the_deadline(
    store: Store, delay_ms: int, state: tuple[str, int]
) -> None:
    ticket = leased(store, "a", lease_until=400, deadline=500)
    store.repository.finish(ticket, "retry", 300, delay_ms)
    row = store.row("a")
    assert (row["status"], row["available_at"]) == state


def test_a_stale_worker_cannot_touch_the_next_ones_job(store: Store) -> None:
    repository = store.repository
    repository.enqueue({"id": "a", "qty": 1}, 0, 60_000)
    first = repository.claim("A", 0, 1000)
    assert first is not None
    assert (first["token"], first["lease_until"]) == (1, 1000)
    second = repository.claim("B", 1000)
    assert second is not None
    assert second["token"] == 2
    before = store.dump()
    assert repository.finish(first, "ok", 1001) is False
    assert store.dump() == before
    assert store.row("a")["owner"] == "B"


@pytest.mark.parametrize("now", [0, 10**15 - 60_000])
def test_the_first_and_the_last_instant_serve_for_everything(store: Store, now: int) -> None:
    repository = store.repository
    assert repository.enqueue({"id": "a", "qty": 1000}, now, 60_000, 16)
    ticket = repository.claim("me", now, 60_000)
    assert ticket is not None
    assert ticket["lease_until"] == now + 60_000
    assert repository.renew(ticket, now, 60_000) == ticket
    assert repository.stuck(now) == []
    assert repository.recover(now) == {"recovered": 0, "deadline": 0, "exhausted": 0}
    assert repository.finish(ticket, "permanent", now) == "dead"
    assert repository.redrive("a", now, 60_000, "by-hand")
    row = repository.get("a")
    assert row is not None
    assert row["deadline"] == now + 60_000


def test_the_last_token_serves(store: Store) -> None:
    store.insert(id="a", token=10**15 - 1)
    ticket = store.repository.claim("me", 0)
    assert ticket is not None
    assert ticket["token"] == 10**15
    assert store.repository.finish(ticket, "ok", 0) == "done"
