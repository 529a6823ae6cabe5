"""get and stuck: what the database says now, and nothing changed by asking."""

from __future__ import annotations

from typing import Any

from tests.conformance.scene import HELD, insert_held, stage
from tests.conformance.stores import Store

COLUMNS = [
    "seq",
    "id",
    "qty",
    "status",
    "attempts",
    "max_attempts",
    "token",
    "available_at",
    "deadline",
    "owner",
    "lease_until",
    "reason",
]


def test_get_answers_the_row_in_its_twelve_columns(store: Store) -> None:
    stage(store)
    for row in store.rows():
        answer: Any = store.repository.get(row["id"])
        assert answer == row
        assert list(answer) == COLUMNS
        assert type(answer) is dict


def test_get_of_a_job_that_is_not_there(store: Store) -> None:
    store.insert(id="a")
    assert store.repository.get("A") is None
    assert store.repository.get("b") is None


def test_get_reads_the_database_and_not_a_cache(store: Store) -> None:
    insert_held(store)
    first: Any = store.repository.get("held")
    first["status"] = "scribbled"
    store.insert(id="b", token=9)
    again, other = store.repository.get("held"), store.repository.get("b")
    assert again is not None
    assert again["status"] == "leased"
    assert other is not None
    assert other["token"] == 9


def test_get_sees_each_change_as_soon_as_it_is_made(store: Store) -> None:
    repository = store.repository
    seen: list[Any] = []
    repository.enqueue({"id": "a", "qty": 1}, 0, 5000)
    seen.append(repository.get("a"))
    ticket = repository.claim("me", 0)
    seen.append(repository.get("a"))
    assert ticket is not None
    repository.finish(ticket, "ok", 1)
    seen.append(repository.get("a"))
    assert [row["status"] for row in seen] == ["pending", "leased", "done"]


def put_ended_leases(store: Store) -> None:
    leased = {"status": "leased", "attempts": 1, "token": 1, "owner": "x"}
    store.insert(id="later", lease_until=300, **leased)
    store.insert(id="sooner", lease_until=100, **leased)
    store.insert(id="as-late", lease_until=300, **leased)
    store.insert(id="no-time", lease_until=200, deadline=200, **leased)
    store.insert(id="no-attempts", lease_until=250, **{**leased, "attempts": 3})
    store.insert(id="live", lease_until=301, **leased)
    store.insert(id="done", status="done", lease_until=1)
    store.insert(id="pending", lease_until=1)
    store.insert(id="dead", status="dead", lease_until=1)


def test_stuck_are_the_leased_jobs_whose_lease_has_ended(store: Store) -> None:
    put_ended_leases(store)
    before = store.dump()
    stuck: Any = store.repository.stuck(300)
    order = ["sooner", "no-time", "no-attempts", "later", "as-late"]
    assert [row["id"] for row in stuck] == order
    assert stuck == [store.row(job) for job in order]
    assert [list(row) for row in stuck] == [COLUMNS] * 5
    assert store.dump() == before


def test_stuck_with_nothing_stuck(store: Store) -> None:
    insert_held(store)
    assert store.repository.stuck(100) == []


def test_stuck_answers_no_more_than_asked(store: Store) -> None:
    put_ended_leases(store)
    assert [row["id"] for row in store.repository.stuck(300, 2)] == ["sooner", "no-time"]
    assert len(store.repository.stuck(300, limit=5)) == 5


def test_stuck_answers_a_hundred_unless_said(one_store: Store) -> None:
    leased = {"status": "leased", "attempts": 1, "token": 1, "owner": "x"}
    for number in range(101):
        one_store.insert(id=f"job-{number}", lease_until=1, **leased)
    assert len(one_store.repository.stuck(300)) == 100


def test_stuck_takes_a_clock_and_reads_it_once(store: Store) -> None:
    put_ended_leases(store)
    reads: list[int] = []

    def clock() -> int:
        reads.append(100)
        return 100

    assert [row["id"] for row in store.repository.stuck(clock)] == ["sooner"]
    assert reads == [100]


def test_a_stuck_job_can_still_be_claimed_and_its_ticket_is_over(store: Store) -> None:
    insert_held(store)
    assert [row["id"] for row in store.repository.stuck(500)] == ["held"]
    assert store.repository.finish(HELD, "ok", 500) is False
    assert store.repository.claim("you", 500) is not None
