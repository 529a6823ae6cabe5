"""Many processes on one PostgreSQL server: killed, disconnected, restarted, in each other's way,
and behind a transaction pooler."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    NullPool,
    create_engine,
    event,
    insert,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from leasestore import Event, Job, JobRepository, NotDead, Redrive, StaleTicket, StoreBusy, Ticket
from tests.crash import postgresql_workers as workers
from tests.crash.children import LONGEST_WAIT_S, Child, first_to_speak
from tests.crash.postgresql_server import (
    OwnServer,
    own_server,
    pooler_version,
    transaction_pooler,
)
from tests.crash.test_killed_at_a_point import CASES

pytestmark = pytest.mark.crash

JOBS = 20_000
KILLS, TERMINATIONS, LEAPS = 4, 30, 6
LONG_MS = 10**12
# Of a database session that must not wait for anybody.
IMPATIENT = {"connect_args": {"options": "-c lock_timeout=1 -c statement_timeout=10000"}}


class Crew:
    """Processes ready for work, kept from test to test."""

    def __init__(self) -> None:
        self._free: list[Child] = []

    @contextmanager
    def hired(self, how_many: int) -> Iterator[list[Child]]:
        """So many of them. Those still in the list when the block ends well are free again."""
        while len(self._free) < how_many:
            self._free.append(Child(workers.serve))
        at_work, self._free = self._free[:how_many], self._free[how_many:]
        everybody = list(at_work)
        try:
            yield at_work
            self._free += at_work
        finally:
            for child in everybody:
                if child not in self._free:
                    child.discard()

    def discard(self) -> None:
        for child in self._free:
            child.discard()


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.discard()


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    with own_server() as server:
        yield server


@pytest.fixture
def database(server: OwnServer) -> str:
    """The address of a database with empty tables."""
    return address(server.fresh())


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    """For a look from outside."""
    engine = create_engine(database, poolclass=NullPool)
    yield engine
    engine.dispose()


@pytest.fixture
def jobs(engine: Engine) -> JobRepository:
    return JobRepository(engine)


@pytest.fixture
def impatient(database: str) -> Iterator[JobRepository]:
    """A repository that fails where it has to wait."""
    engine = create_engine(database, **IMPATIENT)
    yield JobRepository(engine)
    engine.dispose()


def address(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def insert_row(engine: Engine, **columns: Any) -> None:
    row = {
        "id": "job-1",
        "qty": 1,
        "status": "pending",
        "attempts": 0,
        "max_attempts": 3,
        "token": 0,
        "available_at": 0,
        "deadline": 1000,
        **columns,
    }
    with engine.begin() as connection:
        connection.execute(insert(Job).values(row))


def insert_pending(engine: Engine, how_many: int) -> None:
    rows = (
        "INSERT INTO jobs (id, qty, status, attempts, max_attempts, token, available_at, deadline)"
        " SELECT 'job-' || n, 1, 'pending', 0, 16, 0, 0, :deadline"
        " FROM generate_series(1, :how_many) n"
    )
    with engine.begin() as connection:
        connection.execute(text(rows), {"deadline": LONG_MS, "how_many": how_many})
        connection.execute(text("ANALYZE jobs"))


def tables(engine: Engine) -> tuple[list[dict[str, Any]], ...]:
    """All rows of both tables, in order."""
    with engine.connect() as connection:
        return tuple(
            [dict(row) for row in connection.execute(query).mappings()]
            for query in (
                select(Job.__table__).order_by(Job.seq),
                select(Redrive.__table__).order_by(Redrive.seq),
            )
        )


def rows(engine: Engine) -> list[dict[str, Any]]:
    return tables(engine)[0]


def backends(engine: Engine, condition: str = "true") -> int:
    """How many sessions of others are on this database."""
    count = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        f" AND pid <> pg_backend_pid() AND {condition}"
    )
    with engine.connect() as connection:
        return int(connection.execute(text(count)).scalar_one())


def until(holds: Callable[[], bool]) -> None:
    """Ask the server again and again: it does not say by itself what its other sessions do."""
    end = time.monotonic() + LONGEST_WAIT_S
    while not holds():
        assert time.monotonic() < end, "waited in vain for the server"


def somebody_waits(engine: Engine) -> bool:
    return backends(engine, "wait_event_type = 'Lock'") > 0


def set_to_work(child: Child, work: str, database: str, **settings: Any) -> Child:
    child.tell((work, (database, settings)))
    child.hear("open")
    return child


def order(child: Child, verb: str, *, at: str | None = None, **arguments: Any) -> None:
    child.tell((verb, arguments, at))


def call(child: Child, verb: str, **arguments: Any) -> Any:
    order(child, verb, **arguments)
    return child.hear("answer")


def end_work(*children: Child) -> None:
    for child in children:
        child.tell(None)


# Labour: many workers do many jobs, whatever happens to them


class Ledger:
    """What the labourers wrote down."""

    def __init__(self, record: Path) -> None:
        self.claims: Counter[tuple[str, int]] = Counter()
        self.done: Counter[str] = Counter()
        self.stale = 0
        self.failures: list[str] = []
        for line in record.read_text().splitlines():
            _, what, *rest = line.split(" ", 2)
            if what == "failed":
                self.failures += rest
                continue
            job_id, token, *answer = rest[0].split()
            if what == "claimed":
                self.claims[job_id, int(token)] += 1
            elif answer == ["done"]:
                self.done[job_id] += 1
            else:
                assert answer == ["False"], line
                self.stale += 1

    def is_right_about(self, engine: Engine, how_many: int) -> None:
        """Nothing lost, nothing handed out twice, nothing finished twice."""
        found = rows(engine)
        assert len(found) == how_many
        assert Counter(row["status"] for row in found) == {"done": how_many}
        assert set(self.claims.values()) == {1}
        assert set(self.done.values()) == {1}
        last: Counter[str] = Counter()
        for job_id, token in self.claims:
            last[job_id] = max(last[job_id], token)
        for row in found:
            # A claim that its worker did not live to write down counts, too.
            assert last[row["id"]] <= row["token"] == row["attempts"], row


class Shift:
    """Labourers at work on one database until all its jobs are done."""

    def __init__(self, crew: list[Child], engine: Engine, folder: Path, **settings: Any) -> None:
        self.at_work: list[Child] = []
        self._crew, self._engine, self._settings = crew, engine, settings
        self._clock, self._record = folder / "clock", folder / "record"
        self._record.touch()
        self._now_ms = -workers.LEASE_MS
        self.leap()

    def leap(self) -> None:
        """Let all leases end."""
        self._now_ms += workers.LEASE_MS
        workers.set_clock(str(self._clock), self._now_ms)

    def start(self, child: Child) -> None:
        where = address(self._engine.url), self._settings
        which = f"owner-{self._crew.index(child)}", str(self._clock), str(self._record)
        child.tell(("labour", (*where, *which)))
        self.at_work.append(child)

    def kill(self, child: Child) -> None:
        child.kill()
        self.at_work.remove(child)
        self._crew.remove(child)

    def run(self, disturb: Callable[[int], None] = lambda progress: None) -> Ledger:
        """`disturb` is called at each sign of progress, with their number."""
        progress = 0
        idle: list[Child] = []
        while self.at_work:
            child = first_to_speak([child for child in self.at_work if child not in idle])
            if child.listen()[0] == "progress":
                progress += 1
                disturb(progress)
            else:
                idle.append(child)
            if len(idle) == len(self.at_work):
                # What is open now was held by the dead.
                self.leap()
                more = any(row["status"] in {"pending", "leased"} for row in rows(self._engine))
                for child in idle:
                    child.tell(more)
                self.at_work = idle if more else []
                idle = []
        return Ledger(self._record)


def labour(
    crew: Crew, engine: Engine, folder: Path, how_many: int, jobs: int, **settings: Any
) -> Ledger:
    insert_pending(engine, jobs)
    with crew.hired(how_many) as labourers:
        shift = Shift(labourers, engine, folder, **settings)
        for child in labourers:
            shift.start(child)
        return shift.run()


@pytest.mark.timeout(400)
def test_nothing_is_lost_or_claimed_twice_by_eight_of_whom_some_are_killed_or_cut_off(
    crew: Crew, engine: Engine, tmp_path: Path
) -> None:
    chance = random.Random(20)
    insert_pending(engine, JOBS)
    with crew.hired(8 + KILLS) as labourers:
        spare = labourers[8:]
        shift = Shift(labourers, engine, tmp_path)

        def kill() -> None:
            shift.kill(chance.choice(shift.at_work))
            shift.start(spare.pop())

        def cut_off() -> None:
            terminate = (
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " ORDER BY random() LIMIT 1"
            )
            with engine.connect() as connection:
                assert connection.execute(text(terminate)).scalar_one()

        events = [kill] * KILLS + [cut_off] * TERMINATIONS + [shift.leap] * LEAPS
        chance.shuffle(events)
        steps = range(1, JOBS // workers.PAUSE_EVERY * 3 // 4)
        plan = dict(zip(sorted(chance.sample(steps, len(events))), events, strict=True))

        for child in labourers[:8]:
            shift.start(child)
        ledger = shift.run(lambda progress: plan.pop(progress, lambda: None)())

    assert not plan, "all of that has happened"
    ledger.is_right_about(engine, JOBS)
    assert ledger.failures, "some noticed that they were cut off"
    assert all(re.search("AdminShutdown|terminat|closed", said) for said in ledger.failures)
    assert len(ledger.done) >= JOBS - KILLS - TERMINATIONS


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_the_same_processes_carry_on_after_a_restart_of_the_server(
    crew: Crew, server: OwnServer, engine: Engine, tmp_path: Path, mode: str
) -> None:
    how_many = 1000
    insert_pending(engine, how_many)
    with crew.hired(8) as labourers:
        shift = Shift(labourers, engine, tmp_path)
        for child in labourers:
            shift.start(child)
        ledger = shift.run(lambda progress: server.restart(mode) if progress in {5, 25} else None)

    assert len(ledger.failures) >= 8
    ledger.is_right_about(engine, how_many)
    assert len(ledger.done) >= how_many - 2 * 8


@pytest.mark.parametrize(
    "settings",
    [
        {"isolation_level": "SERIALIZABLE"},
        {"isolation_level": "REPEATABLE READ"},
        {"isolation_level": "AUTOCOMMIT"},
        {"connect_args": {"options": "-c default_transaction_isolation=serializable"}},
    ],
    ids=["serializable", "repeatable read", "autocommit", "the session's default"],
)
def test_own_transactions_do_not_depend_on_the_isolation_of_the_engine(
    crew: Crew, engine: Engine, tmp_path: Path, settings: dict[str, Any]
) -> None:
    ledger = labour(crew, engine, tmp_path, 4, 300, **settings)

    ledger.is_right_about(engine, 300)
    assert ledger.failures == []


def test_workers_do_not_wait_for_each_others_rows(
    crew: Crew, server: OwnServer, engine: Engine, tmp_path: Path
) -> None:
    said_before = len(server.log())
    watched = {"options": "-c lock_timeout=1000 -c deadlock_timeout=1ms -c log_lock_waits=on"}
    ledger = labour(crew, engine, tmp_path, 8, 1500, connect_args=watched)

    ledger.is_right_about(engine, 1500)
    assert ledger.failures == []
    # A claim never waits. A finish may, when it locks its row before it reads its clock, for the
    # COMMIT of a claim that came to lock it: that one saw it pending, and found it leased.
    # (To make a file longer has a lock as well, which has nothing to do with rows.)
    waiting = re.findall(
        r"still waiting for .* on (?:transaction|tuple) .*(?:\n.*)*?STATEMENT:  (.*)",
        server.log()[said_before:],
    )
    assert all(statement.startswith("SELECT jobs.seq") for statement in waiting), waiting


# Locks of others


RAW_LOCKS = {
    "changed": "UPDATE jobs SET qty = qty WHERE id = 'job-1'",
    "locked for update": "SELECT * FROM jobs WHERE id = 'job-1' FOR UPDATE",
    "locked for share": "SELECT * FROM jobs WHERE id = 'job-1' FOR SHARE",
    "deleted": "DELETE FROM jobs WHERE id = 'job-1'",
}


@pytest.mark.parametrize("lock", RAW_LOCKS)
def test_a_job_that_a_long_transaction_holds_is_passed_over_at_once(
    engine: Engine, jobs: JobRepository, impatient: JobRepository, lock: str
) -> None:
    for number in (1, 2):
        insert_row(
            engine, id=f"job-{number}", status="leased", owner="gone", lease_until=5, token=1
        )
    insert_row(engine, id="spent", attempts=3)
    with engine.connect() as other:
        other.execute(text(RAW_LOCKS[lock]))

        assert impatient.claim("owner", 10, job_id="job-1") is None
        ticket = impatient.claim("owner", 10)
        assert ticket is not None
        assert ticket["id"] == "job-2"
        assert impatient.claim("owner", 10) is None
        assert impatient.recover(2000) == {"recovered": 0, "deadline": 1, "exhausted": 0}
        assert [row["id"] for row in impatient.stuck(2000)] == ["job-1"]
        assert [row["status"] for row in rows(engine)] == ["leased", "dead", "dead"]
        other.rollback()

    ticket = impatient.claim("owner", 10)
    assert ticket is not None
    assert (ticket["id"], ticket["token"]) == ("job-1", 2)


def test_a_job_that_another_row_refers_to_is_not_passed_over(
    engine: Engine, impatient: JobRepository
) -> None:
    insert_row(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE notes (job_id TEXT REFERENCES jobs (id))"))
    with engine.connect() as other:
        other.execute(text("INSERT INTO notes VALUES ('job-1')"))

        ticket = impatient.claim("owner", 0)
        assert ticket is not None
        assert impatient.finish(ticket, "permanent", 1) == "dead"
        assert impatient.redrive("job-1", 2, 1000, "again")
        other.commit()


@pytest.mark.parametrize("verb", ["finish", "renew", "release", "redrive"])
def test_a_lock_of_somebody_else_is_no_answer(
    engine: Engine, impatient: JobRepository, verb: str
) -> None:
    row, arguments, _ = CASES[verb]
    insert_row(engine, **row)
    before = tables(engine)
    with engine.connect() as other:
        other.execute(text(RAW_LOCKS["changed"]))
        with pytest.raises(StoreBusy, match="nothing was changed"):
            getattr(impatient, verb)(**arguments)
        other.rollback()

    assert tables(engine) == before
    assert getattr(impatient, verb)(**arguments)


def test_an_old_snapshot_elsewhere_stops_nobody(engine: Engine, impatient: JobRepository) -> None:
    insert_pending(engine, 20)
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as reader:
        pending = select(Job.id).where(Job.status == "pending")
        assert len(reader.execute(pending).all()) == 20

        for _ in range(20):
            ticket = impatient.claim("owner", 0)
            assert ticket is not None
            assert impatient.finish(ticket, "ok", 1) == "done"
        assert impatient.claim("owner", 0) is None

        assert len(reader.execute(pending).all()) == 20


@pytest.mark.parametrize("point", ["after-claim", "after-finish"])
def test_workers_pass_one_that_stands_still_inside_its_transaction(
    crew: Crew, engine: Engine, database: str, impatient: JobRepository, point: str
) -> None:
    insert_pending(engine, 20)
    with crew.hired(1) as (slow,):
        set_to_work(slow, "obey", database)
        if point == "after-claim":
            order(slow, "claim", at=point, owner="slow", now_ms=0)
        else:
            ticket = call(slow, "claim", owner="slow", now_ms=0)
            order(slow, "finish", at=point, ticket=ticket, outcome="ok", now_ms=1)
        slow.hear(point)

        done = []
        # By now the lease of the slow one has ended, too.
        while ticket := impatient.claim("owner", 2000):
            assert impatient.finish(ticket, "ok", 2001) == "done"
            done.append(ticket["id"])
        assert done == [f"job-{number}" for number in range(2, 21)]

        slow.tell("go on")
        assert slow.hear("answer")
        end_work(slow)


# Deadlocks and serialization failures


def leased(engine: Engine, job_id: str) -> Ticket:
    insert_row(engine, id=job_id, deadline=60_000)
    ticket = JobRepository(engine).claim("owner", 0, job_id=job_id)
    assert ticket is not None
    return ticket


@pytest.mark.parametrize("verb", ["enqueue", "finish", "renew", "release"])
def test_a_deadlock_of_two_units_of_work_is_busy_for_one_of_them(
    crew: Crew, engine: Engine, database: str, verb: str
) -> None:
    if verb == "enqueue":
        content: list[Mapping[str, Any]] = [
            {"event": {"id": f"job-{number}", "qty": 1}, "now_ms": 1, "ttl_ms": 1000}
            for number in (1, 2)
        ]
    else:
        rest: dict[str, dict[str, Any]] = {
            "finish": {"outcome": "ok", "now_ms": 1},
            "renew": {"now_ms": 1},
            "release": {},
        }
        content = [{"ticket": leased(engine, f"job-{number}"), **rest[verb]} for number in (1, 2)]
    with crew.hired(2) as two:
        for child, first in zip(two, content, strict=True):
            call(set_to_work(child, "enlist", database), verb, **first)
        for child, second in zip(two, reversed(content), strict=True):
            order(child, verb, **second)

        told = [child.listen() for child in two]
        (loser,) = [child for child, (said, _) in zip(two, told, strict=True) if said == "error"]
        winner = two[1 - two.index(loser)]
        assert told[two.index(winner)][1]
        name, message = told[two.index(loser)][1]
        assert (name, "run the unit of work again" in message) == ("StoreBusy", True)
        call(loser, "rollback")
        call(winner, "commit")

        changed = rows(engine)
        assert len(changed) == 2
        assert {row["status"] for row in changed} == {
            {"enqueue": "pending", "finish": "done", "renew": "leased", "release": "pending"}[verb]
        }
        if verb == "enqueue":
            for again in reversed(content):
                assert call(loser, verb, **again) is False
            call(loser, "commit")
        end_work(*two)


def read(connection: Connection) -> None:
    """Take the snapshot that the transaction keeps."""
    connection.execute(select(Job.id)).all()


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize(
    "verb",
    ["claim", "claim one", "enqueue", "finish", "renew", "release", "redrive", "recover"],
)
def test_what_changed_behind_a_snapshot_is_busy_and_not_an_answer(
    engine: Engine, jobs: JobRepository, isolation: str, verb: str
) -> None:
    status = "dead" if verb == "redrive" else "pending"
    insert_row(engine, deadline=60_000, status=status)
    held: Any = None if verb in {"claim", "claim one", "redrive"} else jobs.claim("owner", 0)
    calls: dict[str, tuple[Callable[[], object], Callable[[Any], object]]] = {
        "claim": (lambda: jobs.claim("other", 0), lambda its: its.claim("owner", 0)),
        "claim one": (
            lambda: jobs.claim("other", 0),
            lambda its: its.claim("owner", 0, job_id="job-1"),
        ),
        "enqueue": (
            lambda: jobs.enqueue({"id": "job-2", "qty": 1}, 0, 1000),
            lambda its: its.enqueue({"id": "job-2", "qty": 1}, 0, 1000),
        ),
        "finish": (lambda: jobs.release(held), lambda its: its.finish(held, "ok", 1)),
        "renew": (lambda: jobs.release(held), lambda its: its.renew(held, 1)),
        "release": (lambda: jobs.finish(held, "ok", 1), lambda its: its.release(held)),
        "redrive": (
            lambda: jobs.redrive("job-1", 0, 1000, "first"),
            lambda its: its.redrive("job-1", 0, 1000, "second"),
        ),
        "recover": (lambda: jobs.claim("other", 1000), lambda its: its.recover(1000)),
    }
    meanwhile, verb_of = calls[verb]
    strict = engine.execution_options(isolation_level=isolation)
    with strict.connect() as connection:
        with connection.begin():
            read(connection)
            assert meanwhile()
            before = tables(engine)
            with pytest.raises(StoreBusy, match="run the unit of work again"):
                verb_of(jobs.within(connection))
            connection.rollback()
        assert tables(engine) == before

        # The unit of work run again sees what is so now.
        with connection.begin():
            its = jobs.within(connection)
            if verb in {"finish", "renew", "release"}:
                with pytest.raises(StaleTicket):
                    verb_of(its)
            elif verb == "redrive":
                with pytest.raises(NotDead):
                    verb_of(its)
            else:
                assert verb_of(its) in (
                    None,
                    False,
                    {"recovered": 0, "deadline": 0, "exhausted": 0},
                )


def test_a_serialization_failure_of_the_applications_own_statement_stays_its_own(
    engine: Engine, jobs: JobRepository
) -> None:
    insert_row(engine, deadline=60_000)
    strict = engine.execution_options(isolation_level="SERIALIZABLE")
    with strict.connect() as one, strict.connect() as two:
        for connection, number in ((one, 2), (two, 3)):
            read(connection)
            assert jobs.within(connection).enqueue({"id": f"job-{number}", "qty": 1}, 0, 1000)
        one.commit()
        with pytest.raises(DBAPIError, match="could not serialize"):
            two.commit()
    assert [row["id"] for row in rows(engine)] == ["job-1", "job-2"]


# The same at the same moment


def test_of_a_job_enqueued_by_eight_at_once_there_is_one_and_nothing_fails(
    crew: Crew, server: OwnServer, engine: Engine, database: str
) -> None:
    said_before = len(server.log())
    rounds = 30
    with crew.hired(8) as eight:
        alone, enlisted = eight[:4], eight[4:]
        for child in alone:
            set_to_work(child, "obey", database)
        for child in enlisted:
            set_to_work(child, "enlist", database)
        for number in range(rounds):
            content: dict[str, Any] = {
                "event": {"id": f"job-{number}", "qty": 1},
                "now_ms": number,
                "ttl_ms": 1000,
            }
            for one, other in zip(alone, enlisted, strict=True):
                order(other, "enqueue", **content)
                order(other, "commit")
                order(one, "enqueue", **content)
            answers = Counter(child.hear("answer") for child in eight)
            assert answers == {True: 1, False: 7}
            assert [child.hear("answer") for child in enlisted] == ["commit"] * 4
        end_work(*eight)

    assert [row["id"] for row in rows(engine)] == [f"job-{number}" for number in range(rounds)]
    assert "ERROR" not in server.log()[said_before:]


def test_repeated_enqueues_burn_no_number_and_are_no_errors(
    server: OwnServer, engine: Engine, database: str
) -> None:
    said_before = len(server.log())
    pooled = create_engine(database)
    jobs = JobRepository(pooled)
    first: Event = {"id": "job-1", "qty": 1}
    second: Event = {"id": "job-2", "qty": 1}
    assert jobs.enqueue(first, 0, 1000)
    for _ in range(500):
        assert jobs.enqueue(first, 0, 1000) is False
    assert jobs.enqueue_many([first] * 500, 0, 1000) == [False] * 500
    with pooled.begin() as connection:
        for _ in range(500):
            assert jobs.within(connection).enqueue(first, 0, 1000) is False
        assert jobs.within(connection).enqueue_many([first] * 500, 0, 1000) == [False] * 500
    assert jobs.enqueue(second, 0, 1000)
    pooled.dispose()

    one, two = rows(engine)
    assert two["seq"] == one["seq"] + 1
    assert "ERROR" not in server.log()[said_before:]


def test_of_two_redrives_at_once_one_wins(crew: Crew, engine: Engine, database: str) -> None:
    dead, arguments, _ = CASES["redrive"]
    with crew.hired(2) as two:
        for child in two:
            set_to_work(child, "obey", database)
        for number in range(20):
            insert_row(engine, id=f"job-{number}", **dead)
            for child in two:
                order(child, "redrive", **{**arguments, "job_id": f"job-{number}"})
            answers = [child.listen() for child in two]
            assert ("answer", True) in answers
            ((_, (error, _)),) = [told for told in answers if told != ("answer", True)]
            assert error == "NotDead"
        end_work(*two)

    audit = tables(engine)[1]
    assert [row["id"] for row in audit] == [f"job-{number}" for number in range(20)]


@pytest.mark.parametrize("first_does", ["commit", "die"])
def test_a_redrive_waits_for_the_one_before_it(
    crew: Crew, engine: Engine, database: str, first_does: str
) -> None:
    dead, arguments, _ = CASES["redrive"]
    insert_row(engine, **dead)
    with crew.hired(2) as two:
        first, second = list(two)
        set_to_work(first, "obey", database)
        set_to_work(second, "obey", database)
        order(first, "redrive", at="after-redrive", **arguments)
        first.hear("after-redrive")
        order(second, "redrive", **arguments)
        until(lambda: somebody_waits(engine))

        if first_does == "commit":
            first.tell("go on")
            assert first.hear("answer") is True
            assert second.hear("error")[0] == "NotDead"
            end_work(first)
        else:
            first.kill()
            two.remove(first)
            assert second.hear("answer") is True
        end_work(second)

    assert [row["note"] for row in tables(engine)[1]] == [arguments["note"]]


def insert_ended(engine: Engine, how_many: int) -> None:
    """So many whose lease has ended, so many without time, so many without attempts."""
    ended = (
        "INSERT INTO jobs (id, qty, status, attempts, max_attempts, token, available_at, deadline,"
        " owner, lease_until)"
        " SELECT kind || '-' || n, 1, 'leased', attempts, 3, 1, 0, deadline, 'gone', 500"
        " FROM generate_series(1, :how_many) n,"
        " (VALUES ('ended', 1, 9000), ('late', 1, 600), ('spent', 3, 9000))"
        " kinds (kind, attempts, deadline)"
    )
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM jobs"))
        connection.execute(text(ended), {"how_many": how_many})


def test_two_recovers_at_once_count_each_job_once(
    crew: Crew, engine: Engine, database: str
) -> None:
    with crew.hired(2) as two:
        for child in two:
            set_to_work(child, "obey", database)
        for _ in range(10):
            insert_ended(engine, 200)
            for child in two:
                order(child, "recover", now_ms=1000)
            total: Counter[str] = Counter()
            for child in two:
                total.update(child.hear("answer"))
            assert total == {"recovered": 200, "deadline": 200, "exhausted": 200}
        end_work(*two)


def test_a_recover_leaves_to_another_what_that_one_has_in_hand(
    engine: Engine, impatient: JobRepository
) -> None:
    insert_ended(engine, 100)
    everything = {"recovered": 100, "deadline": 100, "exhausted": 100}
    nothing = dict.fromkeys(everything, 0)
    with engine.connect() as connection, connection.begin() as transaction:
        assert impatient.within(connection).recover(1000) == everything
        assert impatient.recover(1000) == nothing
        assert impatient.claim("owner", 1000) is None
        transaction.rollback()
    assert impatient.recover(1000) == everything
    assert impatient.recover(1000) == nothing


def test_a_recover_that_is_killed_keeps_nobody_out(
    crew: Crew, engine: Engine, database: str, jobs: JobRepository
) -> None:
    everything = {"recovered": 100, "deadline": 100, "exhausted": 100}
    insert_ended(engine, 100)
    before = tables(engine)
    for _ in range(3):
        with crew.hired(1) as hired:
            (victim,) = hired
            set_to_work(victim, "enlist", database)
            assert call(victim, "recover", now_ms=1000) == everything
            victim.kill()
            hired.remove(victim)
        until(lambda: backends(engine) == 0)
        assert tables(engine) == before
    assert jobs.recover(1000) == everything


# Killed at a point


def after(server: OwnServer, verb: str) -> tuple[list[dict[str, Any]], ...]:
    """What the verb makes of its row where nobody is killed."""
    row, arguments, _ = CASES[verb]
    twin = create_engine(server.fresh(), poolclass=NullPool)
    insert_row(twin, **row)
    assert getattr(JobRepository(twin), verb)(**arguments)
    return tables(twin)


@contextmanager
def killed_at(crew: Crew, engine: Engine, verb: str, point: str) -> Iterator[None]:
    """A process calls the verb and is killed at the point. The block runs before the kill."""
    with crew.hired(1) as hired:
        (victim,) = hired
        set_to_work(victim, "obey", address(engine.url))
        order(victim, verb, at=point, **CASES[verb][1])
        victim.hear(point)
        yield
        victim.kill()
        hired.remove(victim)
    # The server notices when it next looks at the socket.
    until(lambda: backends(engine) == 0)


@pytest.mark.parametrize(
    ("verb", "point"), [(verb, point) for verb, (_, _, points) in CASES.items() for point in points]
)
def test_killed_before_commit_nothing_has_happened(
    crew: Crew, server: OwnServer, engine: Engine, jobs: JobRepository, verb: str, point: str
) -> None:
    row, arguments, _ = CASES[verb]
    insert_row(engine, **row)
    before, expected = tables(engine), after(server, verb)

    with killed_at(crew, engine, verb, point):
        assert backends(engine, "state = 'idle in transaction'") == 1
        assert tables(engine) == before

    assert tables(engine) == before
    assert getattr(jobs, verb)(**arguments)
    done = tables(engine)
    # The number of an audit row that was rolled back is not given again.
    assert [[{**row, "seq": 0} for row in table] for table in done] == [
        [{**row, "seq": 0} for row in table] for table in expected
    ]


@pytest.mark.parametrize("verb", CASES)
def test_killed_after_commit_all_has_happened(
    crew: Crew, server: OwnServer, engine: Engine, jobs: JobRepository, verb: str
) -> None:
    row, _, _ = CASES[verb]
    insert_row(engine, **row)
    expected = after(server, verb)

    with killed_at(crew, engine, verb, "after-commit"):
        assert backends(engine, "state = 'idle in transaction'") == 0

    assert tables(engine) == expected
    jobs.enqueue({"id": "job-2", "qty": 1}, 0, 1000)
    ticket = jobs.claim("owner", 0, job_id="job-2")
    assert ticket is not None
    assert jobs.finish(ticket, "ok", 0) == "done"


# Behind a transaction pooler


def every_verb(jobs: JobRepository, engine: Engine, job_id: str) -> None:
    """The life of a job through all verbs, in own transactions and enlisted."""
    content: Event = {"id": job_id, "qty": 1}
    assert jobs.enqueue(content, 0, 60_000)
    assert jobs.enqueue(content, 0, 60_000) is False
    ticket = jobs.claim("owner", 0)
    assert ticket is not None
    renewed = jobs.renew(ticket, 1)
    assert renewed is not None
    assert jobs.finish(ticket, "ok", 2) is False
    assert jobs.release(renewed)
    assert jobs.claim("owner", 0, job_id=job_id) is not None
    assert [row["id"] for row in jobs.stuck(1000)] == [job_id]
    assert jobs.recover(1000) == {"recovered": 1, "deadline": 0, "exhausted": 0}
    ticket = jobs.claim("owner", 1000)
    assert ticket is not None
    assert jobs.finish(ticket, "permanent", 1001) == "dead"
    assert jobs.redrive(job_id, 2000, 60_000, "again")
    with engine.begin() as connection:
        assert jobs.within(connection).enqueue({"id": f"{job_id}-b", "qty": 1}, 0, 60_000)
        ticket = jobs.within(connection).claim("owner", 2000, job_id=job_id)
    assert ticket is not None
    assert ticket["token"] == 4
    with engine.begin() as connection:
        assert jobs.within(connection).finish(ticket, "ok", 2001) == "done"
        other = jobs.within(connection).claim("owner", 2001)
        assert other is not None
        assert jobs.within(connection).finish(other, "ok", 2002) == "done"
    found = jobs.get(job_id)
    assert found is not None
    assert found["status"] == "done"


# More often than psycopg waits before it prepares a statement.
LIVES = 8
PREPARING = {
    "as usual": {},
    "at once": {"prepare_threshold": 0},
    "never": {"prepare_threshold": None},
}


@pytest.mark.parametrize(
    ("sessions", "prepares"),
    [
        *(("a new one each time", prepares) for prepares in PREPARING),
        ("one of three in turn", "never"),
    ],
)
def test_no_verb_needs_the_session_that_the_last_one_had(
    database: str, sessions: str, prepares: str
) -> None:
    backends: list[int] = []
    pool: dict[str, Any] = (
        {"poolclass": NullPool}
        if sessions == "a new one each time"
        else {"poolclass": QueuePool, "pool_size": 3}
    )
    engine = create_engine(database, connect_args=PREPARING[prepares], **pool)

    @event.listens_for(engine, "checkout")
    def note_backend(connection: Any, *_: object) -> None:
        backends.append(connection.info.backend_pid)

    @event.listens_for(engine, "checkin")
    def forget(connection: Any, *_: object) -> None:
        # Behind the driver's back, as a pooler does it.
        if connection is not None:
            assert connection.pgconn.exec_(b"DISCARD ALL").command_status == b"DISCARD ALL"

    with ExitStack() as all_open:
        for _ in range(3):
            all_open.enter_context(engine.connect())
    backends.clear()
    jobs = JobRepository(engine)
    for number in range(LIVES):
        every_verb(jobs, engine, f"job-{number}")
    engine.dispose()

    assert len(backends) > LIVES
    assert all(one != another for one, another in pairwise(backends))


def test_every_verb_works_behind_pgbouncer(server: OwnServer, database: str) -> None:
    version = pooler_version()
    if version is None:
        return  # the test above is the same without the program
    with transaction_pooler(server, make_url(database)) as through:
        # Before 1.21 it does not know prepared statements, and psycopg has to be told.
        for name in PREPARING if version >= (1, 21) else ["never"]:
            engine = create_engine(through, connect_args=PREPARING[name])
            jobs = JobRepository(engine)
            for number in range(LIVES):
                every_verb(jobs, engine, f"job-{name.replace(' ', '-')}-{number}")
            engine.dispose()
