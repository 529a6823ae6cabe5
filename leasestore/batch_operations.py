"""One function a verb that does several things in one transaction, made of `operations`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from sqlalchemy import Connection

from leasestore import operations
from leasestore.batch_statements import BatchStatements
from leasestore.errors import StaleTicket
from leasestore.statements import Statements, parameters
from leasestore.tickets import Outcome, Status, Ticket
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
    claimed = operations.claim(connection, statements, owner, now, lease_ms, None, fault)
    return status, claimed


def claim_batch(
    connection: Connection,
    statements: BatchStatements,
    owner: str,
    now: int,
    limit: int,
    lease_ms: int,
    fault: Fault | None,
) -> list[Ticket]:
    bound = parameters(now=now, owner=owner, until=now + lease_ms, limit=limit)
    connection.execute(statements.sweep, bound).all()
    rows = connection.execute(statements.claim_batch, bound).all()
    tickets = [operations.ticket_in(row) for row in sorted(rows, key=lambda row: row.seq)]
    for _ in tickets:
        operations.pass_point(fault, "after-claim")
    return tickets


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
    live = _live(connection, statements, tickets, now, stale_raises)
    ends = [
        {**operations.columns_in(ticket), "outcome": outcome, "again": now + delay_ms}
        for ticket, outcome, delay_ms in map(items.__getitem__, live)
    ]
    bound = parameters(items=json.dumps(ends), now=now)
    rows = connection.execute(statements.finish_batch, bound).all() if ends else []
    for _ in rows:
        operations.pass_point(fault, "after-finish")
    ended: dict[str, Status] = {row.id: row.status for row in rows}
    return [
        ended.get(ticket["id"]) if position in live else None
        for position, ticket in enumerate(tickets)
    ]


def _live(
    connection: Connection,
    statements: BatchStatements,
    tickets: Sequence[Ticket],
    now: int,
    stale_raises: bool,
) -> set[int]:
    """The positions of those tickets that may act, of the same ones that of the first."""
    first: dict[tuple[object, ...], int] = {}
    for position, ticket in enumerate(tickets):
        first.setdefault(tuple(ticket.values()), position)
    shown = [
        {"position": position, **operations.columns_in(tickets[position])}
        for position in first.values()
    ]
    bound = parameters(items=json.dumps(shown), now=now)
    live = set(connection.execute(statements.live, bound).scalars().all())
    if stale_raises and len(live) < len(tickets):
        stale = next(place for place in range(len(tickets)) if place not in live)
        _refuse(connection, statements, tickets[stale])
    return live


def _refuse(connection: Connection, statements: Statements, ticket: Ticket) -> NoReturn:
    raise StaleTicket(ticket, operations.get(connection, statements, ticket["id"]))
