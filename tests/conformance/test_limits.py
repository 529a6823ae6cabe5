"""Limits: the one place where an application widens the bounds of the contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasestore import JobRepository, Limits, Retryable, open_queue, run_once
from tests.conformance.scene import HELD
from tests.conformance.stores import bound
from tests.conformance.test_run_once import Sent, Ticks
from tests.support import insert_row, make_file

DAY = 86_400_000
WIDE = Limits(qty=5000, max_attempts=100, ttl_ms=30 * DAY, lease_ms=900_000, delay_ms=DAY)
EVENT: Any = {"id": "a", "qty": 5000}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_file(tmp_path / "queue.db")


@pytest.fixture
def wide(path: Path) -> Iterator[JobRepository]:
    with bound("default", "engine", path) as bind:
        yield JobRepository(bind, limits=WIDE)


def test_wider_bounds_serve_everywhere(wide: JobRepository, path: Path) -> None:
    assert wide.enqueue(EVENT, 0, 30 * DAY, 100, delay_ms=DAY)
    ticket = wide.claim("me", DAY, 900_000)
    assert ticket is not None
    assert ticket["lease_until"] == DAY + 900_000
    renewed = wide.renew(ticket, DAY + 1, 900_000)
    assert renewed is not None
    assert wide.finish(renewed, "retry", DAY + 2, DAY) == "pending"
    insert_row(path, id="dead", status="dead", reason="permanent")
    assert wide.redrive("dead", 0, 30 * DAY, "by-hand")


def test_a_ticket_of_a_late_attempt_serves(wide: JobRepository, path: Path) -> None:
    insert_row(path, id="a", attempts=98, max_attempts=100, deadline=DAY)
    ticket = wide.claim("me", 0)
    assert ticket is not None
    assert ticket["attempt"] == 99
    assert wide.finish(ticket, "retry", 1) == "pending"


def test_a_retry_after_many_attempts_waits_as_long_as_after_sixteen(
    wide: JobRepository, path: Path
) -> None:
    insert_row(path, id="a", attempts=98, max_attempts=100, deadline=DAY)
    answer = run_once(wide, "me", Ticks(0, 10), Sent(Retryable()), 1)
    assert answer == {"id": "a", "token": 1, "status": "pending"}
    row = wide.get("a")
    assert row is not None
    assert row["available_at"] == 1010


@pytest.mark.parametrize(
    ("verb", "given", "name"),
    [
        ("enqueue", {"event": {"id": "a", "qty": 5001}, "now_ms": 0, "ttl_ms": 1}, "qty"),
        ("enqueue", {"event": EVENT, "now_ms": 0, "ttl_ms": 30 * DAY + 1}, "ttl_ms"),
        (
            "enqueue",
            {"event": EVENT, "now_ms": 0, "ttl_ms": 1, "max_attempts": 101},
            "max_attempts",
        ),
        (
            "enqueue",
            {"event": EVENT, "now_ms": 0, "ttl_ms": 30 * DAY, "delay_ms": DAY + 1},
            "delay_ms",
        ),
        ("claim", {"owner": "me", "now_ms": 0, "lease_ms": 900_001}, "lease_ms"),
        ("renew", {"ticket": HELD, "now_ms": 0, "lease_ms": 900_001}, "lease_ms"),
        (
            "finish",
            {"ticket": HELD, "outcome": "retry", "now_ms": 0, "delay_ms": DAY + 1},
            "delay_ms",
        ),
        ("claim", {"owner": "me", "now_ms": 10**15 - 30 * DAY + 1}, "now_ms"),
    ],
)
def test_the_wider_bounds_are_bounds_too(
    wide: JobRepository, verb: str, given: dict[str, Any], name: str
) -> None:
    with pytest.raises(ValueError, match=name):
        getattr(wide, verb)(**given)


def test_the_last_instant_leaves_room_for_the_longest_time(wide: JobRepository) -> None:
    last = 10**15 - 30 * DAY
    assert wide.enqueue(EVENT, last, 30 * DAY)
    row = wide.get("a")
    assert row is not None
    assert row["deadline"] == 10**15
    assert wide.claim("me", last) is not None


def test_a_queue_file_takes_limits_too(tmp_path: Path) -> None:
    with open_queue(tmp_path / "own.db", limits=WIDE) as queue:
        assert queue.enqueue(EVENT, 0, 30 * DAY) is True
    with (
        open_queue(tmp_path / "own.db") as queue,
        pytest.raises(ValueError, match=r"ttl_ms.*Limits\(ttl_ms=\.\.\.\)"),
    ):
        queue.enqueue(EVENT | {"qty": 1}, 0, 30 * DAY)


@pytest.mark.parametrize("limits", [None, 60_000, {"ttl_ms": 90_000}, "wide"], ids=repr)
def test_limits_of_another_kind_are_refused_at_once(path: Path, limits: Any) -> None:
    with (
        bound("default", "engine", path) as bind,
        pytest.raises(ValueError, match="limits"),
    ):
        JobRepository(bind, limits=limits)
