"""Whatever the tables hold and whatever is asked: a batch answers and leaves behind what the single
verbs do, one after the other at the same instant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasestore import Conflict, Outcome, Ticket
from tests.conformance.scene import HELD, ticket_of
from tests.conformance.stores import Store

IDS = ("a", "b", "c", "d", "e")
OWNERS = ("me", "you")
# A small world, so that things meet.
TIMES = st.integers(0, 9)
SPANS = st.integers(1, 9)

# The fixture is made ready again by `both`.
on_both = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

Rows = list[dict[str, Any]]


@st.composite
def tables(draw: st.DrawFn) -> Rows:
    """Rows of jobs in any state that they can be in."""
    rows: Rows = []
    for name in draw(st.lists(st.sampled_from(IDS), unique=True)):
        row: dict[str, Any] = {
            "id": name,
            "qty": draw(st.integers(1, 2)),
            "status": draw(st.sampled_from(["pending", "leased", "leased", "done", "dead"])),
            "attempts": draw(st.integers(0, 3)),
            "max_attempts": draw(st.integers(1, 3)),
            "token": draw(st.integers(1, 2)),
            "available_at": draw(TIMES),
            "deadline": draw(st.integers(1, 12)),
        }
        if row["status"] == "leased":
            row |= {"attempts": max(1, row["attempts"]), "owner": draw(st.sampled_from(OWNERS))}
            row |= {"lease_until": draw(st.integers(1, 12))}
        rows.append(row)
    return rows


@st.composite
def tickets(draw: st.DrawFn, rows: Rows) -> Ticket:
    """One that matches a row, or comes near it."""
    leased = [row for row in rows if row["status"] == "leased"]
    matching = bool(leased) and draw(st.integers(0, 4)) > 0
    if matching:
        return ticket_of(draw(st.sampled_from(leased)))
    near = ticket_of(draw(st.sampled_from(leased))) if leased else HELD
    changed: dict[str, Any] = {
        "id": draw(st.sampled_from(IDS)),
        "token": draw(st.integers(1, 2)),
        "lease_until": draw(st.integers(1, 20)),
    }
    kept: dict[str, Any] = {**near, **changed}
    return cast("Ticket", kept)


@st.composite
def tables_and_tickets(draw: st.DrawFn) -> tuple[Rows, list[Ticket]]:
    rows = draw(tables())
    return rows, draw(st.lists(tickets(rows), max_size=8))


def both(store: Store, rows: Rows, *calls: Callable[[], Any]) -> None:
    """Each call on the same rows comes to the same."""
    outcomes = []
    for call in calls:
        store.wipe()
        for row in rows:
            store.insert(**row)
        outcomes.append((call(), store.dump()))
    first, second = outcomes
    assert first == second


@on_both
@given(rows=tables(), now=TIMES, limit=st.integers(1, 7), lease_ms=SPANS)
def test_claim_batch(either_store: Store, rows: Rows, now: int, limit: int, lease_ms: int) -> None:
    jobs = either_store.repository

    def one_by_one() -> list[Any]:
        claimed = [jobs.claim("me", now, lease_ms) for _ in range(limit)]
        return [ticket for ticket in claimed if ticket is not None]

    both(either_store, rows, one_by_one, lambda: jobs.claim_batch("me", now, limit, lease_ms))


OUTCOMES: list[Outcome] = ["ok", "retry", "permanent"]


@on_both
@given(
    given=tables_and_tickets(),
    ends=st.lists(st.tuples(st.sampled_from(OUTCOMES), TIMES), min_size=8, max_size=8),
    now=TIMES,
)
def test_finish_batch(
    either_store: Store,
    given: tuple[Rows, list[Ticket]],
    ends: list[tuple[Outcome, int]],
    now: int,
) -> None:
    jobs, (rows, tickets) = either_store.repository, given
    items = [(ticket, *end) for ticket, end in zip(tickets, ends, strict=False)]
    both(
        *(either_store, rows),
        lambda: [jobs.finish(ticket, how, now, delay) for ticket, how, delay in items],
        lambda: jobs.finish_batch(items, now),
    )


@on_both
@given(given=tables_and_tickets(), now=TIMES, lease_ms=SPANS, shown_next=st.integers(0, 8))
def test_renew_batch(
    either_store: Store,
    given: tuple[Rows, list[Ticket]],
    now: int,
    lease_ms: int,
    shown_next: int,
) -> None:
    jobs, (rows, tickets) = either_store.repository, given
    # What some of them become, too, and the same once more.
    for ticket in tickets[:shown_next]:
        tickets.append({**ticket, "lease_until": now + lease_ms})
    tickets += tickets[:2]
    both(
        *(either_store, rows),
        lambda: [jobs.renew(ticket, now, lease_ms) for ticket in tickets],
        lambda: jobs.renew_batch(tickets, now, lease_ms),
    )


EVENTS = st.lists(
    st.fixed_dictionaries({"id": st.sampled_from(IDS), "qty": st.integers(1, 2)}), max_size=8
)


@on_both
@given(
    rows=tables(),
    events=EVENTS,
    now=TIMES,
    spans=st.tuples(SPANS, SPANS),
    max_attempts=st.integers(1, 3),
)
def test_enqueue_many(
    either_store: Store,
    rows: Rows,
    events: list[Any],
    now: int,
    spans: tuple[int, int],
    max_attempts: int,
) -> None:
    jobs, (delay_ms, rest_ms) = either_store.repository, spans
    given = (now, delay_ms + rest_ms, max_attempts)

    def told(answer: bool | Conflict) -> object:
        return answer.__reduce__() if isinstance(answer, Conflict) else answer

    def one_by_one() -> list[object]:
        answers: list[object] = []
        for event in events:
            try:
                answers.append(jobs.enqueue(event, *given, delay_ms=delay_ms))
            except Conflict as conflict:
                answers.append(told(conflict))
        return answers

    both(
        *(either_store, rows, one_by_one),
        lambda: [told(one) for one in jobs.enqueue_many(events, *given, delay_ms=delay_ms)],
    )
