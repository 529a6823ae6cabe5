"""One function a verb that does several things in one transaction, made of `operations`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NoReturn

from sqlalchemy import Connection

from leasestore import execution, operations
from leasestore.batch_statements import BatchStatements
from leasestore.errors import Conflict, StaleTicket
from leasestore.statements import Statements, parameters
from leasestore.tickets import Event, Outcome, Status, SweptJob, Ticket
from leasestore.validation import Fault


def finish_and_claim(
    connection: Connection,
    statements: Statements,
    ticket: Ticket,
    outcome: Outcome,
    owner: str,
    now: int,
    lease_ms: int,
    delay_ms: int,
    values: Mapping[str, Any],
    fault: Fault | None,
    *,
    stale_raises: bool,
) -> tuple[Status | None, Ticket | None]:
    status = operations.finish(
        connection, statements, ticket, outcome, now, delay_ms, values, fault
    )
    if status is None and stale_raises:
        _refuse(connection, statements, ticket)
    claimed, _ = operations.claim(connection, statements, owner, now, lease_ms, None, fault)
    return status, claimed


def claim_batch(
    connection: Connection,
    statements: BatchStatements,
    owner: str,
    now: int,
    limit: int,
    lease_ms: int,
    fault: Fault | None,
) -> tuple[list[Ticket], list[SweptJob]]:
    """The tickets in order of seq, and the jobs that are dead now."""
    bound = parameters(now=now, owner=owner, until=now + lease_ms, limit=limit)
    tickets, swept = operations.sweep_and_lease(
        connection, statements, statements.claim_batch, bound
    )
    for _ in tickets:
        operations.pass_point(fault, "after-claim")
    return tickets, swept


def finish_batch(
    connection: Connection,
    statements: BatchStatements,
    items: Sequence[tuple[Ticket, Outcome, int]],
    now: int,
    fault: Fault | None,
    *,
    stale_raises: bool,
) -> list[Status | None]:
    tickets = [ticket for ticket, _, _ in items]
    live, packed = _live(connection, statements, tickets, _ends(items, now), now, stale_raises)
    ended = _ended(connection, statements, packed, now) if live else {}
    for _ in ended:
        operations.pass_point(fault, "after-finish")
    return [
        ended.get((ticket["id"], ticket["token"])) if position in live else None
        for position, ticket in enumerate(tickets)
    ]


def _ends(items: Sequence[tuple[Ticket, Outcome, int]], now: int) -> list[dict[str, object]]:
    return [
        {**_shown(position, ticket), "outcome": outcome, "again": now + delay_ms}
        for position, (ticket, outcome, delay_ms) in enumerate(items)
    ]


def _ended(
    connection: Connection, statements: BatchStatements, packed: str, now: int
) -> dict[tuple[str, int], Status]:
    """The new statuses, by id and token."""
    rows = execution.rows(connection, statements.finish_batch, parameters(items=packed, now=now))
    return {(job_id, token): status for job_id, token, status in rows}


def claim_up_to(
    connection: Connection,
    statements: BatchStatements,
    owner: str,
    now: int,
    limit: int,
    lease_ms: int,
) -> tuple[list[Ticket], list[SweptJob]]:
    """As `claim_batch`; one job as `claim` takes it."""
    if limit > 1:
        return claim_batch(connection, statements, owner, now, limit, lease_ms, None)
    ticket, swept = operations.claim(connection, statements, owner, now, lease_ms, None, None)
    return [] if ticket is None else [ticket], swept


def finish_all(
    connection: Connection,
    statements: BatchStatements,
    items: Sequence[tuple[Ticket, Outcome, int]],
    now: int,
) -> list[Status | None]:
    """As `finish_batch`, for jobs that nobody else can change any more, each with one ticket; one
    job as `finish` ends it."""
    if len(items) > 1:
        ended = _ended(connection, statements, json.dumps(_ends(items, now)), now)
        return [ended.get((ticket["id"], ticket["token"])) for ticket, _, _ in items]
    ((ticket, outcome, delay_ms),) = items
    return [operations.finish(connection, statements, ticket, outcome, now, delay_ms, {}, None)]


def enqueue_many(
    connection: Connection,
    statements: BatchStatements,
    events: Sequence[Event],
    now: int,
    ttl_ms: int,
    delay_ms: int,
    max_attempts: int,
    values: Sequence[Mapping[str, Any]],
) -> list[bool | Conflict]:
    first: dict[str, int] = {}
    for position, event in enumerate(events):
        first.setdefault(event["id"], position)
    stored: dict[str, int] = {}
    if any(values):
        stored = _stored(connection, statements, first)
    new = set[str]()
    # Again, since what kept a row out may be deleted before it is read.
    for _ in range(2):
        absent = [job_id for job_id in first if job_id not in stored and job_id not in new]
        for names, some in groupby(absent, lambda job_id: tuple(sorted(values[first[job_id]]))):
            rows = [
                operations.new_row(events[at], now, ttl_ms, delay_ms, max_attempts, values[at])
                for at in map(first.__getitem__, some)
            ]
            new.update(_inserted(connection, statements, names, rows))
        stored |= _stored(connection, statements, [each for each in absent if each not in new])
    stored |= {job_id: events[first[job_id]]["qty"] for job_id in new}
    lost = [job_id for job_id in first if job_id not in stored]
    if lost:
        raise operations.discarded(lost[0])
    return [
        (event["id"] in new and first[event["id"]] == position) or _duplicate(event, stored)
        for position, event in enumerate(events)
    ]


def _inserted(
    connection: Connection,
    statements: BatchStatements,
    names: tuple[str, ...],
    rows: list[dict[str, object]],
) -> Iterable[str]:
    """The ids of those rows that are new; without own columns, they differ in id and qty only."""
    if names:
        return connection.execute(statements.enqueue_rows(names), rows).scalars().all()
    job_id, qty = parameters(id=None, qty=None)
    items = [
        {"position": position, "id": row.pop(job_id), "qty": row.pop(qty)}
        for position, row in enumerate(rows)
    ]
    bound = rows[0] | parameters(items=json.dumps(items))
    return [job_id for (job_id,) in execution.rows(connection, statements.enqueue_items, bound)]


def _stored(
    connection: Connection, statements: BatchStatements, job_ids: Collection[str]
) -> dict[str, int]:
    """The quantities of those jobs that exist."""
    bound = parameters(items=json.dumps([{"id": job_id} for job_id in job_ids]))
    return dict(execution.rows(connection, statements.stored, bound)) if job_ids else {}


def _duplicate(event: Event, stored: Mapping[str, int]) -> Literal[False] | Conflict:
    job_id, qty = event["id"], event["qty"]
    return False if stored[job_id] == qty else Conflict(job_id, stored[job_id], qty)


def renew_batch(
    connection: Connection,
    statements: BatchStatements,
    tickets: Sequence[Ticket],
    now: int,
    lease_ms: int,
    fault: Fault | None,
    *,
    stale_raises: bool,
) -> list[Ticket | None]:
    shown = [_shown(position, ticket) for position, ticket in enumerate(tickets)]
    live, packed = _live(connection, statements, tickets, shown, now, stale_raises)
    bound = parameters(items=packed, now=now, until=now + lease_ms)
    rows = execution.rows(connection, statements.renew_batch, bound) if live else []
    for _ in rows:
        operations.pass_point(fault, "after-renew")
    renewed = {ticket["id"]: ticket for ticket in map(operations.ticket_in, rows)}
    answers: list[Ticket | None] = []
    current: dict[str, Ticket] = {}
    for position, ticket in enumerate(tickets):
        job_id = ticket["id"]
        if position in live and job_id in renewed:
            current[job_id] = renewed[job_id]
        # From its renewal on, a job has the new ticket, which may be the one that is shown again.
        new = current.get(job_id)
        answers.append(new.copy() if new and (position in live or ticket == new) else None)
    return answers


def _shown(position: int, ticket: Ticket) -> dict[str, object]:
    """The item of a batch that shows this ticket."""
    return {"position": position, **operations.columns_in(ticket)}


def _live(
    connection: Connection,
    statements: BatchStatements,
    tickets: Sequence[Ticket],
    items: Sequence[dict[str, object]],
    now: int,
    stale_raises: bool,
) -> tuple[set[int], str]:
    """The positions of those tickets that may act, of the same ones that of the first; and their
    items, packed."""
    first: dict[tuple[object, ...], int] = {}
    for position, ticket in enumerate(tickets):
        first.setdefault(tuple(ticket.values()), position)
    packed = json.dumps([items[position] for position in first.values()])
    bound = parameters(items=packed, now=now)
    live = {position for (position,) in execution.rows(connection, statements.live, bound)}
    if stale_raises and len(live) < len(tickets):
        stale = next(place for place in range(len(tickets)) if place not in live)
        _refuse(connection, statements, tickets[stale])
    if len(live) < len(first):
        packed = json.dumps([items[position] for position in live])
    return live, packed


def _refuse(connection: Connection, statements: Statements, ticket: Ticket) -> NoReturn:
    raise StaleTicket(ticket, operations.get(connection, statements, ticket["id"]))
