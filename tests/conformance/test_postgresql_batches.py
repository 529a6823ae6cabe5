"""Batches on PostgreSQL: what several sessions do to the same jobs at the same time."""

from __future__ import annotations

import pytest

from leasestore import Outcome, Ticket
from tests.conformance.postgresql import PostgreSQLStore, beside
from tests.conformance.scene import NOW, insert_held, ticket_of
from tests.conformance.test_postgresql import each_driver, in_a_thread, lock, until_it_waits


def held(store: PostgreSQLStore, *names: str) -> list[Ticket]:
    for name in names:
        insert_held(store, id=name)
    return [ticket_of(store.row(name)) for name in names]


@each_driver
@pytest.mark.parametrize("back_to_front", [False, True])
def test_jobs_are_locked_in_one_order_whatever_that_of_the_batch(
    postgresql_store: PostgreSQLStore, back_to_front: bool
) -> None:
    store = postgresql_store
    tickets = held(store, "a", "b")
    items: list[tuple[Ticket, Outcome, int]] = [(ticket, "ok", 0) for ticket in tickets]
    if back_to_front:
        items.reverse()
    with beside(store.url) as other:
        other.execute("BEGIN")
        lock(other, "b")
        with in_a_thread(lambda: store.repository.finish_batch(items, NOW)) as answer:
            until_it_waits(store)
            free = other.execute("SELECT id FROM jobs FOR UPDATE SKIP LOCKED").fetchall()
            other.execute("COMMIT")
            assert answer.result() == ["done", "done"]
    # The one that waits for `b` has `a` already.
    assert free == [("b",)]


@each_driver
def test_what_was_changed_meanwhile_is_stale(postgresql_store: PostgreSQLStore) -> None:
    store = postgresql_store
    a, b = held(store, "a", "b")
    items: list[tuple[Ticket, Outcome, int]] = [(a, "ok", 0), (b, "ok", 0)]
    with beside(store.url) as other:
        other.execute("BEGIN")
        other.execute("UPDATE jobs SET token = 8 WHERE id = 'a'")
        with in_a_thread(lambda: store.repository.finish_batch(items, NOW)) as answer:
            until_it_waits(store)
            other.execute("COMMIT")
            assert answer.result() == [False, "done"]
    assert store.row("a")["status"] == "leased"
