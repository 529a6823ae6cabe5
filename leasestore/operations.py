"""One function a verb: on a connection already in a transaction it executes the verb's
statements and says what came of them. Arguments were checked and the time was read before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from operator import itemgetter
from typing import Any, TypedDict, cast

from sqlalchemy import (
    Column,
    Connection,
    Row,
    RowMapping,
    Table,
    UniqueConstraint,
    Update,
    inspect,
    select,
)
from sqlalchemy.types import NullType

from leasestore.dialects import Dialect
from leasestore.errors import Conflict, LeaseStoreError, NotDead, SchemaError
from leasestore.execution import count, rows
from leasestore.models import Job
from leasestore.statements import COLUMNS, FEW_DEAD, Statements, own_parameters, parameters
from leasestore.tickets import (
    Event,
    JobState,
    Outcome,
    Recovered,
    Status,
    StuckJob,
    SweepReason,
    SweptJob,
    Ticket,
    Watched,
)
from leasestore.validation import Fault

_AT_ONCE = 500


def pass_point(fault: Fault | None, point: str) -> None:
    if fault is not None:
        fault(point)


def get(connection: Connection, statements: Statements, job_id: str) -> JobState | None:
    found = rows(connection, statements.get, parameters(id=job_id))
    return _state(found[0]) if found else None


def _state(row: Sequence[Any]) -> JobState:
    return cast("JobState", dict(zip(COLUMNS, row, strict=True)))


def own_of(
    connection: Connection, statements: Statements, job_id: str
) -> tuple[int, dict[str, Any]] | None:
    rows = connection.execute(statements.own_of, parameters(id=job_id)).mappings().all()
    if not rows:
        return None
    own = dict(rows[0])
    return own.pop("deadline"), own


def stuck(connection: Connection, statements: Statements, now: int, limit: int) -> list[JobState]:
    bound = parameters(now=now, limit=limit)
    return [_state(row) for row in rows(connection, statements.stuck, bound)]


def enqueue(
    connection: Connection,
    statements: Statements,
    event: Event,
    now: int,
    ttl_ms: int,
    delay_ms: int,
    max_attempts: int,
    values: Mapping[str, Any],
) -> bool:
    bound = new_row(event, now, ttl_ms, delay_ms, max_attempts, values)
    statement = statements.enqueue(tuple(values))
    # Again, since what kept the row out may be deleted before it is read.
    for _ in range(2):
        if count(connection, statement, bound):
            return True
        stored = get(connection, statements, event["id"])
        if stored is not None:
            if stored["qty"] != event["qty"]:
                raise Conflict(event["id"], stored["qty"], event["qty"])
            return False
    raise discarded(event["id"])


def new_row(
    event: Event,
    now: int,
    ttl_ms: int,
    delay_ms: int,
    max_attempts: int,
    values: Mapping[str, Any],
) -> dict[str, object]:
    """A new job as the INSERTs bind it."""
    return own_parameters(values) | parameters(
        id=event["id"],
        qty=event["qty"],
        max_attempts=max_attempts,
        available_at=now + delay_ms,
        deadline=now + ttl_ms,
    )


def discarded(job_id: str) -> LeaseStoreError:
    return LeaseStoreError(
        f"job {job_id!r} was neither stored nor found: a trigger or rule of the database "
        "discards it"
    )


def claim(
    connection: Connection,
    statements: Statements,
    owner: str,
    now: int,
    lease_ms: int,
    job_id: str | None,
    fault: Fault | None,
) -> tuple[Ticket | None, list[SweptJob]]:
    """The ticket, and the jobs that are dead now."""
    bound = parameters(now=now, owner=owner, until=now + lease_ms, id=job_id)
    statement = statements.claim if job_id is None else statements.claim_one
    tickets, swept = sweep_and_lease(connection, statements, statement, bound)
    if not tickets:
        return None, swept
    pass_point(fault, "after-claim")
    return tickets[0], swept


def sweep_and_lease(
    connection: Connection, statements: Statements, claim: Update, bound: Mapping[str, object]
) -> tuple[list[Ticket], list[SweptJob]]:
    """The tickets in order of seq, and the jobs that are dead now."""
    swept: list[SweptJob] = []
    while True:
        leased, dead = _told_apart(rows(connection, claim, bound))
        swept += dead
        if len(dead) < FEW_DEAD:
            return leased, swept
        swept += (_swept_job(*row) for row in rows(connection, statements.sweep, bound))
        # Where a statement may be a transaction by itself, none is leased beside so many: only the
        # last one leases, and no other can fail after it.
        if leased:
            return leased, swept


def _told_apart(changed: Sequence[Any]) -> tuple[list[Ticket], list[SweptJob]]:
    """Of the rows that a claim has changed, those that are leased now, and those that are dead."""
    leased: list[tuple[int, Ticket]] = []
    dead: list[SweptJob] = []
    for seq, reason, *shown in changed:
        ticket = ticket_in(shown)
        if reason is None:
            leased.append((seq, ticket))
        else:
            dead.append(_swept_job(ticket["id"], ticket["token"], ticket["attempt"], reason))
    return [ticket for _, ticket in sorted(leased, key=itemgetter(0))], dead


def _swept_job(job_id: str, token: int, attempts: int, reason: SweepReason) -> SweptJob:
    return {"id": job_id, "token": token, "attempts": attempts, "reason": reason}


def finish(
    connection: Connection,
    statements: Statements,
    ticket: Ticket,
    outcome: Outcome,
    now: int,
    delay_ms: int,
    values: Mapping[str, Any],
    fault: Fault | None,
) -> Status | None:
    bound = _shown(ticket) | parameters(now=now, again=now + delay_ms) | own_parameters(values)
    statement = statements.finish(outcome, tuple(values))
    ended = rows(connection, statement, bound)
    if not ended:
        return None
    pass_point(fault, "after-finish")
    ((status,),) = ended
    return cast("Status", status)


def renew(
    connection: Connection,
    statements: Statements,
    ticket: Ticket,
    now: int,
    lease_ms: int,
    fault: Fault | None,
) -> Ticket | None:
    bound = _shown(ticket) | parameters(now=now, until=now + lease_ms)
    renewed = _ticket(connection, statements.renew, bound)
    if renewed is not None:
        pass_point(fault, "after-renew")
    return renewed


def release(
    connection: Connection, statements: Statements, ticket: Ticket, fault: Fault | None
) -> bool:
    if not count(connection, statements.release, _shown(ticket)):
        return False
    pass_point(fault, "after-release")
    return True


def redrive(
    connection: Connection,
    statements: Statements,
    job_id: str,
    now: int,
    ttl_ms: int,
    note: str,
    fault: Fault | None,
) -> bool:
    bound = parameters(id=job_id, now=now, note=note, deadline=now + ttl_ms)
    if not count(connection, statements.audit, bound):
        row = get(connection, statements, job_id)
        raise NotDead(job_id, row["status"] if row else None)
    pass_point(fault, "after-audit")
    count(connection, statements.revive, bound)
    pass_point(fault, "after-redrive")
    return True


def recover(connection: Connection, statements: Statements, now: int) -> Recovered:
    bound = parameters(now=now)
    dead = _swept(connection, statements.sweep, bound)
    recovered = count(connection, statements.recover, bound)
    return {"recovered": recovered, **dead}


def watch(connection: Connection, statements: Statements, now: int, limit: int) -> Watched:
    """What `recover` does, for so many stuck jobs, with the rows as they were."""
    bound = parameters(now=now, limit=limit)
    dead = _swept(connection, statements.sweep_pending, bound)
    ended = {row.seq: row for row in connection.execute(statements.ended, bound).all()}
    if not ended:
        return {"stuck": [], **dead}
    these = bound | parameters(seqs=list(ended))
    became = connection.execute(statements.recover_ended, these).all()
    stuck = [_stuck_job(ended[row.seq], row, now) for row in became]
    return {"stuck": sorted(stuck, key=lambda job: job["lease_until"]), **dead}


def _stuck_job(was: Row[Any], became: Row[Any], now: int) -> StuckJob:
    return {
        "id": was.id,
        "qty": was.qty,
        "owner": was.owner,
        "token": was.token,
        "attempts": was.attempts,
        "lease_until": was.lease_until,
        "overdue_ms": now - was.lease_until,
        "status": became.status,
        "reason": became.reason,
    }


class _Dead(TypedDict):
    deadline: int
    exhausted: int


def _swept(connection: Connection, sweep: Update, bound: Mapping[str, object]) -> _Dead:
    """How many died, by reason."""
    reasons = Counter(reason for *_, reason in rows(connection, sweep, bound))
    return {"deadline": reasons["deadline"], "exhausted": reasons["exhausted"]}


def rows_of(
    connection: Connection, columns: Mapping[str, Column[Any]], seqs: Sequence[int]
) -> Iterator[RowMapping]:
    """The rows of these seqs, by the application's names of the columns."""
    wanted = select(*(column.label(name) for name, column in columns.items()))
    for start in range(0, len(seqs), _AT_ONCE):
        some = wanted.where(columns["seq"].in_(seqs[start : start + _AT_ONCE]))
        yield from connection.execute(some).mappings().all()


def missing(connection: Connection, tables: Iterable[Table]) -> list[str]:
    """What the database lacks: `table`, or `table.column` where only that is absent."""
    inspector = inspect(connection)
    absent: list[str] = []
    for table in tables:
        schema = connection.schema_for_object(table)
        if not inspector.has_table(table.name, schema=schema):
            absent.append(table.fullname)
            continue
        found = {column["name"] for column in inspector.get_columns(table.name, schema=schema)}
        absent += [f"{table.fullname}.{c.name}" for c in table.c if c.name not in found]
    return absent


def differences(connection: Connection, dialect: Dialect, table: Table) -> list[str]:
    """How a table that exists under this name differs from the one that is meant."""
    inspector, schema = inspect(connection), connection.schema_for_object(table)
    if not inspector.has_table(table.name, schema=schema):
        return []
    key = inspector.get_pk_constraint(table.name, schema=schema)["constrained_columns"]
    found = [
        _described(connection, {**column, "primary_key": column["name"] in key})
        for column in inspector.get_columns(table.name, schema=schema)
    ]
    expected = [_described(connection, vars(column)) for column in table.columns]
    told = [
        f"{table.name}: expected {wanted or 'no further column'}, found {has or 'no such column'}"
        for wanted, has in zip_longest(expected, found)
        if wanted != has
    ]
    uniques = dialect.uniques(connection, table)
    told += [
        f"{table.name}: expected UNIQUE ({', '.join(rule.columns.keys())}), found none"
        for rule in table.constraints
        if isinstance(rule, UniqueConstraint) and rule.columns.keys() not in uniques
    ]
    return told + dialect.differences(connection, table)


def _described(connection: Connection, column: Mapping[str, Any]) -> str:
    untyped = isinstance(column["type"], NullType)
    kind = "(untyped)" if untyped else column["type"].compile(connection.dialect)
    # A primary key is never null, whether or not the DDL says so.
    rule = " PRIMARY KEY" if column["primary_key"] else "" if column["nullable"] else " NOT NULL"
    return f"{column['name']} {kind}{rule}"


def schema_error(missing: Iterable[str]) -> SchemaError:
    names = list(missing)
    return SchemaError(f"the database lacks {', '.join(names)}", names, _remedy(names))


def schema_error_as_told(tables: Iterable[Table], told: str) -> SchemaError:
    """The same where nothing more can be asked: what the database told has to do."""
    found = f"the database lacks a table or column: {told}"
    return SchemaError(found, (), _remedy([table.fullname for table in tables]))


def _remedy(names: list[str]) -> str:
    defaults = {name.partition(".")[0] for name in names} & Job.metadata.tables.keys()
    if not defaults:
        return "make them by a migration of your own (`alembic revision --autogenerate`)"
    if any("." in name for name in names):
        return (
            "is it a table of somebody else's? declare models of your own on JobMixin and "
            "RedriveMixin, under other table names"
        )
    return "leasestore.schema.upgrade(engine), or `leasestore upgrade --db URL`, makes them"


def _shown(ticket: Ticket) -> dict[str, object]:
    """The whole ticket, as the conditional updates compare it."""
    return parameters(**columns_in(ticket))


def columns_in(ticket: Ticket) -> dict[str, object]:
    """A ticket by the names of its columns."""
    return {
        "id": ticket["id"],
        "qty": ticket["qty"],
        "owner": ticket["owner"],
        "token": ticket["token"],
        "attempts": ticket["attempt"],
        "lease_until": ticket["lease_until"],
    }


def _ticket(connection: Connection, statement: Any, bound: Mapping[str, object]) -> Ticket | None:
    """The ticket in the one row that the statement changed, if it changed one."""
    changed = rows(connection, statement, bound)
    if not changed:
        return None
    (row,) = changed
    return ticket_in(row)


def ticket_in(row: Sequence[Any]) -> Ticket:
    """Of a row with the columns of a ticket, in order."""
    job_id, qty, owner, token, attempts, lease_until = row
    return {
        "id": job_id,
        "qty": qty,
        "owner": owner,
        "token": token,
        "attempt": attempts,
        "lease_until": lease_until,
    }
