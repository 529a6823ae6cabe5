"""A job in hand, on its own: what it knows of the time, and whether it may begin."""

from __future__ import annotations

from typing import Any, cast

import pytest

from leasestore import JobState, Ticket
from leasestore.worker.running import Running, Sighting, in_hand_still, was_left_by

TICKET: Ticket = {
    "id": "a", "qty": 1, "owner": "me", "token": 3, "attempt": 2, "lease_until": 1_500,
}  # fmt: skip
ROW: JobState = {
    "seq": 1, "id": "a", "qty": 1, "status": "leased", "attempts": 2, "max_attempts": 3, "token": 3,
    "available_at": 0, "deadline": 9_000, "owner": "me", "lease_until": 1_900, "reason": None,
}  # fmt: skip


@pytest.fixture
def monotonic(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time that this process has, to be set."""
    now = [70_000]
    monkeypatch.setattr("leasestore.worker.running.monotonic_ms", lambda: now[0])
    return now


def running(lease_ms: int = 500, max_run_ms: int | None = None) -> Running:
    sighting = Sighting(lambda: 1_000)
    assert sighting() == 1_000
    return Running(TICKET, sighting, lease_ms, max_run_ms)


def test_the_end_of_a_lease_is_known_by_the_monotonic_clock(monotonic: list[int]) -> None:
    job = running()
    monotonic[0] = 70_499
    assert not job.lost.is_set()
    monotonic[0] = 70_500
    assert job.lost.is_set()
    monotonic[0] = 70_000
    assert job.lost.is_set()
    assert job.lost.wait(0)


def test_it_is_counted_from_before_the_clock_was_asked(monotonic: list[int]) -> None:
    def slow() -> int:
        monotonic[0] += 200
        return 1_000

    sighting = Sighting(slow)
    sighting()
    assert sighting.end_of(TICKET) == 70_500


@pytest.mark.parametrize(("lease_ms", "due_ms"), [(500, 70_000 + 500 / 3), (501, float("inf"))])
def test_a_lease_that_the_deadline_cut_short_is_not_due(
    monotonic: list[int], lease_ms: int, due_ms: float
) -> None:
    assert running(lease_ms).due_ms == due_ms


def test_what_is_to_tell_is_told_once(monotonic: list[int]) -> None:
    job = running(max_run_ms=300)
    assert job.tell_ms() == 70_300
    assert [job.is_to_tell(70_299), job.is_to_tell(70_300), job.is_to_tell(70_301)] == [
        False, True, False,
    ]  # fmt: skip
    assert job.tell_ms() == 70_500
    monotonic[0] = 70_500
    assert [job.is_to_tell(70_500), job.is_to_tell(70_501)] == [True, False]
    assert job.tell_ms() == float("inf")
    assert not job.renewable


@pytest.mark.parametrize(
    ("changed", "swept"),
    [
        ({"status": "dead", "reason": "exhausted"}, True),
        ({"status": "dead", "reason": "deadline"}, True),
        ({"status": "dead", "reason": "exhausted", "available_at": 1_001}, False),
        ({"status": "dead", "reason": "permanent"}, False),
        ({"status": "pending", "reason": "retry"}, False),
    ],
)
def test_a_sweep_is_told_from_a_finish(monotonic: list[int], changed: Any, swept: bool) -> None:
    job, row = running(), cast("JobState", {**ROW, "available_at": 1_000, **changed})
    assert job.was_swept(row) is False
    monotonic[0] = 70_500
    assert job.was_swept(row) is swept


def test_one_that_is_cancelled_may_not_begin() -> None:
    job = running()
    interrupted: list[str] = []
    job.on_cancel(lambda: interrupted.append("first"))
    job.cancel()
    job.on_cancel(lambda: interrupted.append("second"))
    assert interrupted == ["first", "second"]
    assert not job.may_begin()
    assert not job.begun


def test_one_that_has_begun_is_not_cancelled() -> None:
    job = running()
    assert job.may_begin()
    job.on_cancel(lambda: pytest.fail("it has begun"))
    job.cancel()
    assert job.begun


@pytest.mark.parametrize(
    ("changed", "lease_until"),
    [
        ({}, 1_900),
        ({"owner": "you"}, None),
        ({"token": 4}, None),
        ({"attempts": 1}, None),
        ({"qty": 2}, None),
        ({"lease_until": None, "owner": None}, None),
    ],
)
def test_a_row_says_whether_it_is_still_this_run_that_has_the_job(
    changed: Any, lease_until: int | None
) -> None:
    row: Any = {**ROW, **changed}
    expected = None if lease_until is None else {**TICKET, "lease_until": lease_until}
    assert in_hand_still(TICKET, row) == expected
    assert in_hand_still(TICKET, None) is None


@pytest.mark.parametrize("outcome", ["ok", "retry", "permanent"])
@pytest.mark.parametrize(
    ("status", "reason", "left_by"),
    [
        ("done", None, "ok"),
        ("dead", "permanent", "permanent"),
        ("pending", "retry", "retry"),
        ("dead", "exhausted", "retry"),
        ("dead", "deadline", "retry"),
        ("pending", "expired", ""),
        ("pending", "released", ""),
        ("leased", None, ""),
    ],
)
def test_and_what_a_finish_would_have_left(
    outcome: Any, status: Any, reason: Any, left_by: str
) -> None:
    row: Any = {**ROW, "status": status, "reason": reason}
    assert was_left_by(row, outcome) is (outcome == left_by)
