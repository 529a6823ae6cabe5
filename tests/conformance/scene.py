"""A small scene with one job in each state, and every write verb as something to do in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from leasestore import Clock, Fault, JobRepository, Ticket
from tests.conformance.stores import Store

NOW = 100
HELD: Ticket = {
    "id": "held",
    "qty": 5,
    "owner": "me",
    "token": 7,
    "attempt": 2,
    "lease_until": 500,
}
"""A ticket that matches the row `held` of the scene."""

STALE: Ticket = {**HELD, "token": 6}


def stage(store: Store) -> None:
    """At NOW: one job to be swept, one ready, one held under HELD, one expired, one dead."""
    store.insert(id="late", deadline=50)
    store.insert(id="ready")
    insert_held(store)
    store.insert(
        id="lost", status="leased", attempts=1, token=4, owner="gone", lease_until=NOW - 10
    )
    store.insert(id="dead", status="dead", attempts=3, token=3, reason="permanent")


def insert_held(store: Store, **columns: Any) -> None:
    """The row that HELD was handed out for."""
    row = {"id": "held", "qty": 5, "status": "leased", "attempts": 2, "token": 7, "owner": "me"}
    store.insert(**{**row, "lease_until": 500, **columns})


def ticket_of(row: Mapping[str, Any]) -> Ticket:
    """The ticket that matches a leased row."""
    return {
        "id": row["id"],
        "qty": row["qty"],
        "owner": row["owner"],
        "token": row["token"],
        "attempt": row["attempts"],
        "lease_until": row["lease_until"],
    }


@dataclass
class Points:
    """A fault that notes the points passed and raises `error` at one of them."""

    at: str | None = None
    error: BaseException | None = None
    passed: list[str] = field(default_factory=list)

    def __call__(self, point: str) -> None:
        self.passed.append(point)
        if point == self.at:
            assert self.error is not None
            raise self.error


FAULTED: dict[str, tuple[tuple[str, ...], Callable[[JobRepository, Fault | None], object]]] = {
    "claim": (("after-claim", "after-commit"), lambda r, f: r.claim("me", NOW, 1000, f)),
    "claim one": (
        ("after-claim", "after-commit"),
        lambda r, f: r.claim("me", NOW, fault=f, job_id="lost"),
    ),
    "finish ok": (("after-finish", "after-commit"), lambda r, f: r.finish(HELD, "ok", NOW, 0, f)),
    "finish retry": (
        ("after-finish", "after-commit"),
        lambda r, f: r.finish(HELD, "retry", NOW, 10, f),
    ),
    "finish permanent": (
        ("after-finish", "after-commit"),
        lambda r, f: r.finish(HELD, "permanent", NOW, fault=f),
    ),
    "redrive": (
        ("after-audit", "after-redrive", "after-commit"),
        lambda r, f: r.redrive("dead", NOW, 1000, "by-hand", f),
    ),
    "renew": (("after-renew", "after-commit"), lambda r, f: r.renew(HELD, NOW, 1000, f)),
    "release": (("after-release", "after-commit"), lambda r, f: r.release(HELD, f)),
    "finish and claim": (
        ("after-finish", "after-claim", "after-commit"),
        lambda r, f: r.finish_and_claim(HELD, "ok", "me", NOW, fault=f),
    ),
    "claim batch": (
        ("after-claim", "after-claim", "after-commit"),
        lambda r, f: r.claim_batch("me", NOW, 5, fault=f),
    ),
    "finish batch": (
        ("after-finish", "after-commit"),
        lambda r, f: r.finish_batch([(HELD, "ok", 0), (STALE, "ok", 0)], NOW, f),
    ),
    "renew batch": (
        ("after-renew", "after-commit"),
        lambda r, f: r.renew_batch([STALE, HELD], NOW, 1000, f),
    ),
}
"""Every verb with fault points: the points in order, and a call that changes something."""

TIMED: dict[str, Callable[[JobRepository, int | Clock], object]] = {
    "enqueue": lambda r, now: r.enqueue({"id": "new", "qty": 1}, now, 1000),
    "claim": lambda r, now: r.claim("me", now),
    "claim one": lambda r, now: r.claim("me", now, job_id="ready"),
    "finish": lambda r, now: r.finish(HELD, "ok", now),
    "redrive": lambda r, now: r.redrive("dead", now, 1000, "by-hand"),
    "renew": lambda r, now: r.renew(HELD, now, 1000),
    "recover": lambda r, now: r.recover(now),
    "finish and claim": lambda r, now: r.finish_and_claim(HELD, "retry", "me", now),
    "claim batch": lambda r, now: r.claim_batch("me", now, 5),
    "finish batch": lambda r, now: r.finish_batch([(HELD, "retry", 10)], now),
    "enqueue many": lambda r, now: r.enqueue_many([{"id": "new", "qty": 1}], now, 1000),
    "renew batch": lambda r, now: r.renew_batch([HELD], now),
}
"""Every write verb that takes the time, as a call that changes something."""


def _at_now(
    call: Callable[[JobRepository, int | Clock], object], repository: JobRepository
) -> object:
    return call(repository, NOW)


WRITES: dict[str, Callable[[JobRepository], object]] = {
    **{name: partial(_at_now, call) for name, call in TIMED.items()},
    "release": lambda r: r.release(HELD),
}
"""Every write verb, as a call that changes something."""

IDLE: dict[str, tuple[object, Callable[[JobRepository, Fault | None], object]]] = {
    "claim of a job that is not there": (
        None,
        lambda r, f: r.claim("me", NOW, fault=f, job_id="nobody"),
    ),
    "claim of a held job": (None, lambda r, f: r.claim("me", NOW, fault=f, job_id="held")),
    "claim of a dead job": (None, lambda r, f: r.claim("me", NOW, fault=f, job_id="dead")),
    "finish": (False, lambda r, f: r.finish(STALE, "ok", NOW, fault=f)),
    "finish for another attempt": (False, lambda r, f: r.finish(STALE, "retry", NOW, 10, f)),
    "renew": (None, lambda r, f: r.renew(STALE, NOW, fault=f)),
    "release": (False, lambda r, f: r.release(STALE, f)),
}
"""Calls that find nothing to change, and their answer."""
