"""The verdict: what counts as lost, and what as doubled."""

from __future__ import annotations

import pytest

from leasestore import JobState, Status
from leasestore.demo.facts import Count, Fact, Result


def row(job: str, status: Status = "done", qty: int = 2) -> JobState:
    return {
        "seq": 1,
        "id": job,
        "qty": qty,
        "status": status,
        "attempts": 1,
        "max_attempts": 3,
        "token": 1,
        "available_at": 0,
        "deadline": 1000,
        "owner": None,
        "lease_until": None,
        "reason": None,
    }


def judged(status: Status, count: Count | None) -> tuple[list[str], list[str]]:
    counts = {} if count is None else {"a": count}
    result = Result("a", [], [row("a", status)], counts)
    return result.lost, result.doubled


@pytest.mark.parametrize(
    ("status", "count", "verdict"),
    [
        ("done", Count(1, 1, 2), ([], [])),
        ("done", Count(2, 1, 2), ([], [])),
        ("done", Count(2, 2, 4), ([], ["a"])),
        ("done", Count(1, 1, 3), ([], ["a"])),
        ("done", None, (["a"], [])),
        ("done", Count(1, 0, 0), (["a"], [])),
        ("done", Count(1, 1, 1), (["a"], [])),
        ("dead", Count(1, 1, 2), (["a"], [])),
        ("dead", Count(3, 3, 6), (["a"], ["a"])),
        ("pending", None, (["a"], [])),
        ("leased", Count(1, 1, 2), (["a"], [])),
    ],
)
def test_verdict(status: Status, count: Count | None, verdict: tuple[list[str], list[str]]) -> None:
    assert judged(status, count) == verdict


def test_each_order_is_judged_by_itself() -> None:
    rows = [row("a"), row("b", "dead"), row("c")]
    result = Result("a", [], rows, {"a": Count(1, 1, 2), "c": Count(2, 2, 4)})
    assert (result.lost, result.doubled) == (["b"], ["c"])


def test_an_order_was_done_by_who_finished_it_as_done() -> None:
    facts = [
        Fact(1, "x", "finished", "a", 1, "stale"),
        Fact(2, "y", "claimed", "a", 2),
        Fact(3, "y", "finished", "a", 2, "done"),
        Fact(4, "x", "finished", "b", 1, "pending"),
    ]
    assert Result("a", facts, [], {}).done_by == {"a": "y"}
