"""Batches on PostgreSQL: what several sessions do to the same jobs at the same time."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, event

from leasestore import Conflict, Event, JobRepository, LeaseStoreError, Outcome, Ticket
from tests.conformance.postgresql import PostgreSQLStore, beside, insert_row
from tests.conformance.scene import NOW, insert_held, ticket_of
from tests.conformance.stores import READY
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


EVENTS: list[Event] = [{"id": name, "qty": 1} for name in ("a", "b", "c")]


@each_driver
@pytest.mark.parametrize("qty", [1, 2])
@pytest.mark.parametrize("committed", [True, False])
def test_an_enqueue_of_many_waits_for_one_of_them_that_another_enqueues(
    postgresql_store: PostgreSQLStore, qty: int, committed: bool
) -> None:
    store = postgresql_store

    def enqueue() -> object:
        answers = store.repository.enqueue_many(EVENTS, NOW, 1000)
        return ["conflict" if isinstance(each, Conflict) else each for each in answers]

    with beside(store.url) as other:
        other.execute("BEGIN")
        insert_row(other, {**READY, "id": "b", "qty": qty})
        with in_a_thread(enqueue) as answer:
            until_it_waits(store)
            other.execute("COMMIT" if committed else "ROLLBACK")
            found = answer.result()
    second = ("conflict" if qty == 2 else False) if committed else True
    assert found == [True, second, True]
    assert store.row("b")["qty"] == (qty if committed else 1)


@pytest.mark.parametrize("postgresql_store", ["psycopg-engine"], indirect=True)
@pytest.mark.parametrize("times", [1, 2])
def test_a_row_that_is_gone_before_it_can_be_read_is_no_duplicate(
    postgresql_store: PostgreSQLStore, times: int
) -> None:
    store = postgresql_store
    inserts: list[str] = []

    def there(connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT") and len(inserts) < times:
            insert_row(store.plain, {**READY, "id": "b"})

    def gone(connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT"):
            inserts.append(statement)
            store.plain.execute("DELETE FROM jobs WHERE id = 'b'")

    engine = store.other_engine()
    event.listen(engine, "before_cursor_execute", there)
    event.listen(engine, "after_cursor_execute", gone)
    jobs = JobRepository(engine)
    if times == 1:
        assert jobs.enqueue_many(EVENTS, NOW, 1000) == [True] * 3
        assert sorted(row["id"] for row in store.rows()) == ["a", "b", "c"]
    else:
        with pytest.raises(LeaseStoreError, match="'b' was neither stored nor found"):
            jobs.enqueue_many(EVENTS, NOW, 1000)
        assert store.rows() == []
    engine.dispose()
    assert len(inserts) == 2
