"""renew: a lease that has not ended may last longer; one that has ended never comes back."""

from __future__ import annotations

from typing import Any

from leasestore import Ticket
from tests.conformance.scene import HELD, insert_held
from tests.conformance.stores import Store
from tests.conformance.test_finish import OTHERWISE


def test_only_the_end_of_the_lease_changes(store: Store) -> None:
    insert_held(store, reason=None, deadline=5000)
    before = store.row("held")
    assert store.repository.renew(HELD, 300, 700) == {**HELD, "lease_until": 1000}
    assert store.row("held") == {**before, "lease_until": 1000}


def test_one_second_unless_said(store: Store) -> None:
    insert_held(store, deadline=5000)
    assert store.repository.renew(HELD, 300) == {**HELD, "lease_until": 1300}


def test_never_beyond_the_deadline(store: Store) -> None:
    insert_held(store, deadline=1000)
    assert store.repository.renew(HELD, 300, 701) == {**HELD, "lease_until": 1000}
    assert store.row("held")["lease_until"] == 1000


def test_the_old_ticket_is_stale_and_the_new_one_serves(store: Store) -> None:
    insert_held(store, deadline=5000)
    renewed = store.repository.renew(HELD, 300, 700)
    assert renewed is not None
    before = store.dump()
    assert store.repository.finish(HELD, "ok", 301) is False
    assert store.repository.renew(HELD, 301) is None
    assert store.repository.release(HELD) is False
    assert store.dump() == before
    assert store.repository.finish(renewed, "ok", 301) == "done"


def test_a_lease_can_be_renewed_to_an_earlier_end(store: Store) -> None:
    insert_held(store, deadline=5000)
    assert store.repository.renew(HELD, 300, 50) == {**HELD, "lease_until": 350}


def test_where_the_end_does_not_change_the_old_ticket_serves_on(store: Store) -> None:
    insert_held(store)
    assert store.repository.renew(HELD, 300, 200) == HELD
    assert store.repository.finish(HELD, "ok", 301) == "done"


def test_the_given_ticket_is_not_touched(store: Store) -> None:
    insert_held(store, deadline=5000)
    ticket: Ticket = {**HELD}
    renewed = store.repository.renew(ticket, 300, 700)
    assert ticket == HELD
    assert renewed is not ticket


def test_a_ticket_that_differs_anywhere_is_stale(store: Store) -> None:
    insert_held(store)
    before = store.dump()
    for change in OTHERWISE:
        ticket: Ticket = {**HELD, **change}  # type: ignore[typeddict-item]
        assert store.repository.renew(ticket, 300) is None, change
    assert store.dump() == before


def test_a_job_that_is_not_leased_cannot_be_renewed(store: Store) -> None:
    for status in ("pending", "done", "dead"):
        insert_held(store, id=status, status=status)
    before = store.dump()
    answers: list[Any] = [
        store.repository.renew({**HELD, "id": job}, 300)
        for job in ("pending", "done", "dead", "nobody")
    ]
    assert answers == [None] * 4
    assert store.dump() == before


def test_an_ended_lease_never_comes_back_even_if_nobody_took_it(store: Store) -> None:
    insert_held(store)
    before = store.dump()
    assert store.repository.renew(HELD, 500) is None
    assert store.dump() == before


def test_renewals_do_not_count_as_attempts(store: Store) -> None:
    repository = store.repository
    repository.enqueue({"id": "a", "qty": 1}, 0, 60_000, 1)
    ticket = repository.claim("me", 0)
    for now in range(500, 5000, 500):
        assert ticket is not None
        ticket = repository.renew(ticket, now)
    assert ticket is not None
    assert (ticket["attempt"], ticket["token"]) == (1, 1)
    assert repository.finish(ticket, "ok", 5000) == "done"
