"""The SQL itself: what each verb sends, and that every later write shows the whole ticket."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import ClauseElement

from leasestore import JobRepository, Ticket, dialects
from leasestore.batch_statements import BatchStatements
from leasestore.models import Job
from tests.support import insert_row, make_file

DIALECTS: dict[str, tuple[Any, Any]] = {
    "sqlite": (sqlite.dialect(), dialects.named("sqlite")),
    "postgresql": (postgresql.dialect(), dialects.named("postgresql")),  # type: ignore[no-untyped-call]
}
TICKET = {"id", "qty", "owner", "token", "attempts", "lease_until"}


@pytest.fixture(params=DIALECTS)
def compiled(request: pytest.FixtureRequest) -> Callable[[Callable[[BatchStatements], Any]], str]:
    dialect, ours = DIALECTS[request.param]
    tables = Job.metadata.tables
    statements = BatchStatements(
        *(tables["jobs"], tables["redrives"], {}), ours.insert, ours.choose, ours.unpacked
    )

    def text(pick: Callable[[BatchStatements], ClauseElement]) -> str:
        return re.sub(r"\s+", " ", str(pick(statements).compile(dialect=dialect)))

    return text


BY_TICKET: dict[str, Callable[[BatchStatements], Any]] = {
    "finish ok": lambda s: s.finish("ok"),
    "finish retry": lambda s: s.finish("retry"),
    "finish permanent": lambda s: s.finish("permanent"),
    "renew": lambda s: s.renew,
    "release": lambda s: s.release,
    "finish batch": lambda s: s.finish_batch,
    "renew batch": lambda s: s.renew_batch,
}
UPDATES: dict[str, Callable[[BatchStatements], Any]] = {
    **BY_TICKET,
    "claim": lambda s: s.claim,
    "claim one": lambda s: s.claim_one,
    "claim batch": lambda s: s.claim_batch,
    "sweep": lambda s: s.sweep,
    "sweep pending": lambda s: s.sweep_pending,
    "recover": lambda s: s.recover,
    "recover ended": lambda s: s.recover_ended,
    "revive": lambda s: s.revive,
}


@pytest.mark.parametrize("verb", BY_TICKET)
def test_a_write_by_ticket_is_one_update_that_shows_all_of_it(verb: str, compiled: Any) -> None:
    sql = compiled(BY_TICKET[verb])
    assert sql.startswith("UPDATE jobs SET ")
    assert ";" not in sql
    condition = sql.partition(" WHERE ")[2]
    assert set(re.findall(r"jobs\.(\w+) (?:=|IS|IS NOT DISTINCT FROM) [^']", condition)) == TICKET
    assert re.search(r"jobs\.status( \|\| '')?\)? = 'leased'", condition)


@pytest.mark.parametrize(
    "verb",
    ["finish ok", "finish retry", "finish permanent", "renew", "finish batch", "renew batch"],
)
def test_what_needs_a_live_lease_asks_for_the_time(verb: str, compiled: Any) -> None:
    condition = compiled(BY_TICKET[verb]).partition(" WHERE ")[2]
    # That of a batch's item is the row's, or the item is stale.
    assert re.search(r"(jobs|_ls_items)\.lease_until > ", condition)
    assert re.search(r"jobs\.deadline (> |- \S+ > 0)", condition)


@pytest.mark.parametrize("pick", ["live", "finish_batch", "renew_batch"])
def test_no_item_of_a_batch_is_looked_up_by_a_time_that_many_have(pick: str, compiled: Any) -> None:
    condition = compiled(lambda s: getattr(s, pick)).partition(" WHERE ")[2]
    assert "jobs.id = _ls_items.id" in condition
    assert not re.search(r"jobs\.(lease_until|deadline|status) [<=>]", condition)


@pytest.mark.parametrize("verb", UPDATES)
def test_statuses_are_written_out_so_that_a_partial_index_can_serve(
    verb: str, compiled: Any
) -> None:
    sql = compiled(UPDATES[verb])
    assert " WHERE " in sql
    assert not re.search(r"jobs\.status (= [?%:]|IN \((?!'pending', 'leased'\)))", sql)


def test_an_enqueue_yields_and_burns_no_seq_for_the_common_duplicate(compiled: Any) -> None:
    sql = compiled(lambda s: s.enqueue())
    assert sql.startswith("INSERT INTO jobs (id, qty, status, ")
    assert "WHERE NOT (EXISTS (SELECT" in sql
    assert sql.rstrip().endswith("ON CONFLICT (id) DO NOTHING")


def test_a_watcher_locks_what_it_tells_where_rows_have_locks(compiled: Any) -> None:
    sql = compiled(lambda s: s.ended)
    assert sql.removesuffix(" FOR NO KEY UPDATE SKIP LOCKED") == compiled(lambda s: s.stuck)


def test_an_audit_row_is_written_only_for_a_dead_job(compiled: Any) -> None:
    sql = compiled(lambda s: s.audit)
    assert sql.startswith(
        "INSERT INTO redrives (id, token, at_ms, note) SELECT jobs.id, jobs.token"
    )
    # Where there are row locks, the row is locked until it is pending again.
    assert sql.removesuffix(" FOR NO KEY UPDATE").endswith("AND jobs.status = 'dead'")


# How many statements a verb sends, beside BEGIN and COMMIT.


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return make_file(tmp_path / "queue.db")


@pytest.fixture
def engine(file: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{file}")
    yield engine
    engine.dispose()


HELD: Ticket = {
    "id": "held", "qty": 1, "owner": "me", "token": 1, "attempt": 1, "lease_until": 900,
}  # fmt: skip

SENT: dict[str, tuple[Callable[[JobRepository], object], list[str]]] = {
    "enqueue": (lambda r: r.enqueue({"id": "new", "qty": 1}, 0, 1000), ["INSERT"]),
    "duplicate": (lambda r: r.enqueue({"id": "ready", "qty": 1}, 0, 9), ["INSERT", "SELECT"]),
    "claim": (lambda r: r.claim("me", 5), ["WITH"]),
    "claim one": (lambda r: r.claim("me", 5, job_id="ready"), ["UPDATE"]),
    "finish": (lambda r: r.finish(HELD, "ok", 5), ["UPDATE"]),
    "retry": (lambda r: r.finish(HELD, "retry", 5), ["UPDATE"]),
    "renew": (lambda r: r.renew(HELD, 5), ["UPDATE"]),
    "release": (lambda r: r.release(HELD), ["UPDATE"]),
    "redrive": (lambda r: r.redrive("dead", 5, 1000, "why"), ["INSERT", "UPDATE"]),
    "get": (lambda r: r.get("ready"), ["SELECT"]),
    "stuck": (lambda r: r.stuck(5), ["SELECT"]),
    "recover": (lambda r: r.recover(5), ["UPDATE", "UPDATE"]),
    "watch": (lambda r: r._watch(5, 9), ["UPDATE", "SELECT"]),
    "watch, stuck": (lambda r: r._watch(900, 9), ["UPDATE", "SELECT", "UPDATE"]),
    "finish and claim": (
        lambda r: r.finish_and_claim(HELD, "ok", "me", 5),
        ["UPDATE", "WITH"],
    ),
    "claim batch": (lambda r: r.claim_batch("me", 5, 1000), ["WITH"]),
    "finish batch": (
        lambda r: r.finish_batch([(HELD, "ok", 0), ({**HELD, "token": 2}, "retry", 0)], 5),
        ["SELECT", "UPDATE"],
    ),
    "finish batch of stale ones": (
        lambda r: r.finish_batch([({**HELD, "token": 2}, "ok", 0)] * 1000, 5),
        ["SELECT"],
    ),
    "finish batch of none": (lambda r: r.finish_batch([], 5), []),
    "enqueue many": (
        lambda r: r.enqueue_many([{"id": f"new-{n}", "qty": 1} for n in range(1000)], 0, 1000),
        ["INSERT"],
    ),
    "duplicates": (
        lambda r: r.enqueue_many([{"id": "ready", "qty": 1}, {"id": "held", "qty": 9}], 0, 1000),
        ["INSERT", "SELECT"],
    ),
    "enqueue none": (lambda r: r.enqueue_many([], 0, 1000), []),
    "renew batch": (lambda r: r.renew_batch([HELD], 5), ["SELECT", "UPDATE"]),
    "renew batch of stale ones": (lambda r: r.renew_batch([{**HELD, "token": 2}], 5), ["SELECT"]),
    "renew none": (lambda r: r.renew_batch([], 5), []),
}


@pytest.mark.parametrize(("late", "expected"), [(19, ["WITH"]), (20, ["WITH", "UPDATE", "WITH"])])
def test_a_claim_leaves_many_deaths_to_a_sweep(
    engine: Engine, file: Path, late: int, expected: list[str]
) -> None:
    for number in range(late):
        insert_row(file, id=f"late-{number}", deadline=5)
    sent: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement.partition(" ")[0])

    assert JobRepository(engine).claim("me", 5) is None
    assert sent == expected


def stage(file: Path) -> None:
    insert_row(file, id="ready")
    insert_row(file, id="held", status="leased", attempts=1, token=1, owner="me", lease_until=900)
    insert_row(file, id="dead", status="dead", attempts=3, token=3, reason="permanent")


@pytest.mark.parametrize("verb", SENT)
def test_no_verb_sends_more_than_it_needs(verb: str, engine: Engine, file: Path) -> None:
    stage(file)
    call, expected = SENT[verb]
    jobs = JobRepository(engine)
    sent: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement.partition(" ")[0])

    assert call(jobs) is not None
    assert sent == expected


@pytest.mark.parametrize("verb", SENT)
def test_no_statement_is_compiled_twice(verb: str, engine: Engine, file: Path) -> None:
    compiled: dict[Any, Any] = {}
    jobs = JobRepository(engine.execution_options(compiled_cache=compiled))
    sent: set[str] = set()

    @event.listens_for(engine, "before_cursor_execute")
    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        sent.add(statement)

    for _ in range(2):
        file.unlink(missing_ok=True)
        stage(make_file(file))
        SENT[verb][0](jobs)
        engine.dispose()
    assert len(compiled) == len(sent)


def test_the_applications_tracing_sees_every_statement(engine: Engine, file: Path) -> None:
    seen: list[str] = []
    event.listen(engine, "begin", lambda _: seen.append("BEGIN"))
    event.listen(engine, "commit", lambda _: seen.append("COMMIT"))
    event.listen(
        engine, "before_cursor_execute", lambda *args: seen.append(args[2].partition(" ")[0])
    )
    JobRepository(engine).enqueue({"id": "new", "qty": 1}, 0, 1000)
    assert seen == ["BEGIN", "INSERT", "COMMIT"]
