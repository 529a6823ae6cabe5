"""Whatever plan PostgreSQL makes of the statements, a claim takes one job and a sweep what must
die: the planner is forced from one bad plan to the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, product
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, event, text

from leasestore import JobRepository, Outcome, Ticket
from tests.conformance.postgresql import Plain, beside, wipe
from tests.postgresql import Server

JOINS = ("hashjoin", "mergejoin", "nestloop")
SCANS = {
    "any scan": (),
    "no seqscan": ("seqscan",),
    "no index": ("indexscan", "indexonlyscan", "bitmapscan"),
    "no bitmap": ("bitmapscan", "seqscan"),
}
HELPERS = {"as usual": (), "nothing kept": ("material", "memoize", "hashagg", "sort")}
PLANS = {
    f"{join}, {scan}, {helper}": (
        *(other for other in JOINS if other != join),
        *SCANS[scan],
        *HELPERS[helper],
    )
    for join, scan, helper in product(JOINS, SCANS, HELPERS)
}
"""What the planner is kept from, for each join that it is left with."""

NOW = 1000


@pytest.fixture(scope="module")
def url(each_postgresql: Server) -> URL:
    return each_postgresql.fresh()


@pytest.fixture(scope="module")
def plain(url: URL) -> Iterator[Plain]:
    with beside(url) as plain:
        yield plain


@pytest.fixture(params=PLANS)
def forced(request: pytest.FixtureRequest, url: URL) -> Iterator[Engine]:
    off = " ".join(f"-c enable_{name}=off" for name in PLANS[request.param])
    # Before version 18 a plan that is kept from its way looks so dear that it would be compiled.
    engine = create_engine(url, connect_args={"options": f"{off} -c jit=off"})
    yield engine
    engine.dispose()


def fill(plain: Plain) -> None:
    """Of each kind ten: ready, late, spent, expired, held, done."""
    wipe(plain)
    plain.execute("""
        INSERT INTO jobs (id, qty, status, attempts, max_attempts, token, available_at, deadline,
                          owner, lease_until)
        SELECT kind || '-' || number, 1, status, attempts, 3, attempts, 0, deadline, owner, until
        FROM generate_series(0, 9) number, (VALUES
            ('ready', 'pending', 0, 9000, NULL, NULL),
            ('late', 'pending', 0, 900, NULL, NULL),
            ('late-lost', 'leased', 1, 900, 'gone', 900),
            ('spent', 'leased', 3, 9000, 'gone', 900),
            ('lost', 'leased', 1, 9000, 'gone', 900),
            ('held', 'leased', 3, 9000, 'me', 2000),
            ('done', 'done', 1, 900, NULL, NULL)
        ) AS kinds (kind, status, attempts, deadline, owner, until)
    """)
    plain.execute("ANALYZE jobs")


def tally(plain: Plain, before: dict[str, Any]) -> dict[str, int]:
    """How many rows of each kind are not as they were."""
    changed = Counter(
        name.rpartition("-")[0] for name, row in snapshot(plain).items() if row != before[name]
    )
    return dict(changed)


def snapshot(plain: Plain) -> dict[str, Any]:
    rows = plain.execute(
        "SELECT id, status, reason, owner, token, lease_until FROM jobs ORDER BY seq"
    )
    return {row[0]: row for row in rows}


SWEPT = {"late": 10, "late-lost": 10, "spent": 10}


def test_a_claim_takes_one_job_and_sweeps_only_what_must_die(forced: Engine, plain: Plain) -> None:
    fill(plain)
    before, repository = snapshot(plain), JobRepository(forced)
    first = repository.claim("you", NOW)
    assert first is not None
    assert first["id"] == "ready-0"
    assert tally(plain, before) == {**SWEPT, "ready": 1}
    reasons = {(name.rpartition("-")[0], row[2]) for name, row in snapshot(plain).items() if row[2]}
    assert reasons == {("late", "deadline"), ("late-lost", "deadline"), ("spent", "exhausted")}
    for taken in range(2, 21):
        assert repository.claim("you", NOW) is not None
        assert sum(tally(plain, before).values()) == 30 + taken
    assert repository.claim("you", NOW) is None
    assert tally(plain, before) == {**SWEPT, "ready": 10, "lost": 10}


def test_a_claim_takes_its_job_beside_the_few_that_it_buries(forced: Engine, plain: Plain) -> None:
    fill(plain)
    plain.execute("DELETE FROM jobs WHERE id LIKE 'late-lost-%' OR id = 'spent-0'")
    before = snapshot(plain)
    ticket = JobRepository(forced).claim("you", NOW)
    assert ticket is not None
    assert ticket["id"] == "ready-0"
    assert tally(plain, before) == {"late": 10, "spent": 9, "ready": 1}


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_a_claim_asks_each_of_its_questions_once(forced: Engine, plain: Plain, mode: str) -> None:
    fill(plain)
    sent: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, values: Any, *_: Any) -> None:
        sent.append((statement, values))

    event.listen(forced, "before_cursor_execute", note)
    assert JobRepository(forced).claim("you", NOW) is not None
    event.remove(forced, "before_cursor_execute", note)
    claim, values = sent[0]
    with forced.connect() as connection:
        connection.exec_driver_sql(f"SET LOCAL plan_cache_mode = {mode}")
        plan = connection.exec_driver_sql(f"EXPLAIN {claim}", values).scalars().all()
    assert sum("LockRows" in line for line in plan) == 3, plan


def test_a_batch_takes_no_more_than_it_was_asked_for(forced: Engine, plain: Plain) -> None:
    fill(plain)
    before, repository = snapshot(plain), JobRepository(forced)
    names = [f"{kind}-{number}" for number in range(10) for kind in ("ready", "lost")]
    in_order = sorted(names, key=list(before).index)
    # Often enough to be prepared, and planned for any limit.
    limits = [1, 2, 1, 3, 1, 2, 1, 4, 3]
    taken: list[str] = []
    for limit in limits:
        tickets = repository.claim_batch("you", NOW, limit)
        assert len(tickets) == limit
        taken += [ticket["id"] for ticket in tickets]
        assert sum(tally(plain, before).values()) == 30 + len(taken)
    assert taken == in_order[: sum(limits)]
    assert [ticket["id"] for ticket in repository.claim_batch("you", NOW, 1000)] == in_order[18:]
    assert tally(plain, before) == {**SWEPT, "ready": 10, "lost": 10}


def test_a_batch_ends_the_runs_of_its_tickets_and_no_others(forced: Engine, plain: Plain) -> None:
    fill(plain)
    before, repository = snapshot(plain), JobRepository(forced)
    tickets = repository.claim_batch("you", NOW, 20)
    outcomes: list[Outcome] = ["ok", "retry", "permanent", "ok"]
    ends = {"ok": ("done", None), "retry": ("pending", "retry"), "permanent": ("dead", "permanent")}
    for start in range(0, 20, 4):
        four = list(zip(tickets[start:], outcomes, [0] * 4, strict=False))
        stale: Any = {**tickets[start], "token": 99}
        answers = repository.finish_batch([(stale, "ok", 0), *four, four[0]], NOW)
        assert answers == [False, *(ends[outcome][0] for outcome in outcomes), False]
        after = snapshot(plain)
        assert [after[ticket["id"]][1:3] for ticket, *_ in four] == [ends[o] for o in outcomes]
        assert all(after[ticket["id"]][1] == "leased" for ticket in tickets[start + 4 :])
    assert tally(plain, before) == {**SWEPT, "ready": 10, "lost": 10}


def test_a_claim_of_one_job_takes_that_one(forced: Engine, plain: Plain) -> None:
    fill(plain)
    before, repository = snapshot(plain), JobRepository(forced)
    for name in ("lost-7", "ready-3"):
        ticket = repository.claim("you", NOW, job_id=name)
        assert ticket is not None
        assert ticket["id"] == name
    for name in ("late-5", "spent-5", "held-5", "done-5"):
        assert repository.claim("you", NOW, job_id=name) is None
    assert tally(plain, before) == {"lost": 1, "ready": 1, "late": 1, "spent": 1}


def test_recover_touches_only_what_has_ended(forced: Engine, plain: Plain) -> None:
    fill(plain)
    before = snapshot(plain)
    answer = JobRepository(forced).recover(NOW)
    assert answer == {"recovered": 10, "deadline": 20, "exhausted": 10}
    assert tally(plain, before) == {**SWEPT, "lost": 10}


BACKLOGS = {
    "ready": "('pending', 0, NULL::bigint)",
    "delayed": "('pending', 5000, NULL::bigint)",
    "ended": "('leased', 0, 500)",
    "done": "('done', 0, NULL::bigint)",
}


@pytest.mark.parametrize("kind", BACKLOGS)
def test_a_claim_is_not_planned_anew_each_time_whatever_the_backlog(
    postgresql: Server, kind: str
) -> None:
    url = postgresql.fresh()
    engine = create_engine(url, connect_args={"prepare_threshold": 0})
    with beside(url) as plain, engine.connect() as connection:
        plain.execute(
            "INSERT INTO jobs (id, qty, status, attempts, max_attempts, token, available_at,"
            " deadline, lease_until) SELECT 'job-' || number, 1, status, 1, 3, 1, available_at,"
            " 9000 + number, lease_until"
            f" FROM generate_series(1, 30000) number, (VALUES {BACKLOGS[kind]})"
            " AS kinds (status, available_at, lease_until)".encode()
        )
        plain.execute("UPDATE jobs SET status = 'pending', available_at = 0 WHERE seq > 29900")
        plain.execute("ANALYZE jobs")
        for _ in range(30):
            assert JobRepository(connection).claim("me", NOW) is not None
        counts = text("SELECT generic_plans FROM pg_prepared_statements WHERE statement LIKE :like")
        (times,) = connection.execute(counts, {"like": "%THEN 'dead' ELSE 'leased'%"}).scalars()
    engine.dispose()
    # The first five are planned for what they bind, as ever.
    assert times == 25


@pytest.mark.parametrize("limit", [1, 3])
def test_of_claims_at_once_each_takes_its_own_and_none_takes_anothers(
    forced: Engine, plain: Plain, limit: int
) -> None:
    fill(plain)
    before, repository = snapshot(plain), JobRepository(forced)

    def claim(owner: str) -> list[Ticket]:
        if limit > 1:
            return repository.claim_batch(owner, NOW, limit)
        ticket = repository.claim(owner, NOW)
        return [ticket] if ticket else []

    def take(owner: str) -> list[str]:
        taken: list[str] = []
        while tickets := claim(owner):
            assert len(tickets) <= limit
            taken += [ticket["id"] for ticket in tickets]
        return taken

    with ThreadPoolExecutor(4) as threads:
        shares = list(threads.map(take, ["ann", "ben", "cat", "dan"]))
    expected = {f"{kind}-{number}" for kind in ("ready", "lost") for number in range(10)}
    taken = list(chain.from_iterable(shares))
    assert sorted(taken) == sorted(expected)
    after = snapshot(plain)
    assert all(after[name][4] == before[name][4] + 1 for name in expected)
    assert tally(plain, before) == {**SWEPT, "ready": 10, "lost": 10}


BATCHES: dict[str, Callable[[JobRepository, list[Ticket]], list[Any]]] = {
    "finish": lambda jobs, tickets: jobs.finish_batch([(each, "ok", 0) for each in tickets], NOW),
    "renew": lambda jobs, tickets: list(jobs.renew_batch(tickets, NOW, 2000)),
}


@pytest.mark.parametrize("verb", BATCHES)
def test_the_jobs_of_a_batch_are_looked_up_by_id_in_a_table_without_statistics(
    each_postgresql: Server, verb: str
) -> None:
    engine = create_engine(each_postgresql.fresh())
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE jobs SET (autovacuum_enabled = off)"))
    jobs = JobRepository(engine)
    for thousand in range(10):
        names = [f"job-{thousand}-{number}" for number in range(1000)]
        assert all(jobs.enqueue_many([{"id": name, "qty": 1} for name in names], NOW, 60_000))
    tickets = jobs.claim_batch("me", NOW, 10)
    plans: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def explain(_: Any, cursor: Any, statement: str, values: Any, *__: Any) -> None:
        lines = cursor.connection.execute(f"EXPLAIN {statement}", values).fetchall()
        plans.append("\n".join(line for (line,) in lines))

    assert all(BATCHES[verb](jobs, tickets))
    assert len(plans) == 2
    for plan in plans:
        assert "Index Scan using jobs_id_key on jobs" in plan
        assert "Seq Scan on jobs" not in plan
    engine.dispose()
