"""enqueue: a new job, the same job again, other work under the same id."""

from __future__ import annotations

import pytest

from leasestore import Conflict, Event
from tests.conformance.scene import insert_held
from tests.conformance.stores import Store


def test_a_new_job_is_pending_with_its_whole_budget(store: Store) -> None:
    assert store.repository.enqueue({"id": "a", "qty": 2}, 100, 1000, 5) is True
    assert store.rows() == [
        {
            "seq": 1,
            "id": "a",
            "qty": 2,
            "status": "pending",
            "attempts": 0,
            "max_attempts": 5,
            "token": 0,
            "available_at": 100,
            "deadline": 1100,
            "owner": None,
            "lease_until": None,
            "reason": None,
        }
    ]


def test_three_attempts_and_no_delay_unless_said(store: Store) -> None:
    store.repository.enqueue({"id": "a", "qty": 1}, 100, 1000)
    assert store.row("a") | {"max_attempts": 3, "available_at": 100} == store.row("a")


def test_a_delay_moves_only_the_first_instant(store: Store) -> None:
    store.repository.enqueue({"id": "a", "qty": 1}, 100, 1000, delay_ms=999)
    row = store.row("a")
    assert (row["available_at"], row["deadline"]) == (1099, 1100)
    assert store.repository.claim("me", 1098) is None
    assert store.repository.claim("me", 1099) is not None


@pytest.mark.parametrize("delay_ms", [1000, 1001])
def test_a_delay_that_reaches_the_deadline_is_refused(store: Store, delay_ms: int) -> None:
    with pytest.raises(ValueError, match="delay_ms"):
        store.repository.enqueue({"id": "a", "qty": 1}, 100, 1000, delay_ms=delay_ms)
    assert store.rows() == []


def test_the_delay_is_given_by_name_only(one_store: Store) -> None:
    with pytest.raises(TypeError):
        one_store.repository.enqueue({"id": "a", "qty": 1}, 100, 1000, 3, 0)  # type: ignore[call-arg]


def put_one_in_each_state(store: Store) -> list[str]:
    store.insert(id="pending", qty=5)
    insert_held(store)
    store.insert(id="done", qty=5, status="done", attempts=1, token=1)
    store.insert(id="dead", qty=5, status="dead", attempts=1, token=1, reason="permanent")
    return [row["id"] for row in store.rows()]


def test_the_same_job_again_leaves_everything_as_it_is(store: Store) -> None:
    jobs = put_one_in_each_state(store)
    before = store.dump()
    answers = {
        job: store.repository.enqueue({"id": job, "qty": 5}, 900, 5, 9, delay_ms=4) for job in jobs
    }
    assert answers == dict.fromkeys(jobs, False)
    assert store.dump() == before


def test_other_work_under_the_same_id_is_a_conflict_in_every_state(store: Store) -> None:
    jobs = put_one_in_each_state(store)
    before = store.dump()
    for job in jobs:
        with pytest.raises(Conflict, match=job) as caught:
            store.repository.enqueue({"id": job, "qty": 6}, 100, 1000)
        assert (caught.value.job_id, caught.value.stored_qty, caught.value.qty) == (job, 5, 6)
        store.assert_clean()
    assert store.dump() == before


def test_key_order_does_not_make_another_job(store: Store) -> None:
    store.repository.enqueue({"id": "a", "qty": 2}, 0, 1000)
    assert store.repository.enqueue({"qty": 2, "id": "a"}, 0, 1000) is False


def test_ids_differ_by_case(store: Store) -> None:
    store.repository.enqueue({"id": "a", "qty": 1}, 0, 1000)
    assert store.repository.enqueue({"id": "A", "qty": 2}, 0, 1000) is True


def test_a_duplicate_leaves_no_gap_in_the_order(store: Store) -> None:
    for job, qty in [("a", 1), ("a", 1), ("b", 1)]:
        store.repository.enqueue({"id": job, "qty": qty}, 0, 1000)
    assert [row["seq"] for row in store.rows()] == [1, 2]


def test_the_event_stays_the_callers_own(store: Store) -> None:
    event: Event = {"id": "a", "qty": 1}
    store.repository.enqueue(event, 0, 1000)
    assert event == {"id": "a", "qty": 1}
    event["qty"] = 9
    assert store.row("a")["qty"] == 1


def test_an_event_changed_while_the_call_runs_is_stored_as_it_was_given(store: Store) -> None:
    event: Event = {"id": "a", "qty": 1}

    def clock() -> int:
        event.update({"id": "other", "qty": 99_999})
        return 0

    store.repository.enqueue(event, clock, 1000)
    assert [(row["id"], row["qty"]) for row in store.rows()] == [("a", 1)]
