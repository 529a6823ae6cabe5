"""One function a verb that does several things in one transaction, made of `operations`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from sqlalchemy import Connection

from leasestore import operations
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
    statements: Statements,
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


def _refuse(connection: Connection, statements: Statements, ticket: Ticket) -> NoReturn:
    raise StaleTicket(ticket, operations.get(connection, statements, ticket["id"]))
