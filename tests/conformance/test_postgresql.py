"""PostgreSQL: what several sessions do to each other's rows at the same time, isolation levels,
and what becomes of a session that ends."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from psycopg.rows import dict_row
from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, text
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from leasestore import (
    Clock,
    Conflict,
    JobRepository,
    SchemaError,
    StaleTicket,
    StoreBusy,
    Ticket,
    UnsupportedEngine,
    immediate,
)
from leasestore.aio import AsyncJobRepository
from leasestore.errors import NotDead
from leasestore.statements import FEW_DEAD
from tests.conformance.postgresql import (
    ASYNCHRONOUS,
    JOINABLE,
    OLDEST,
    POSTGRESQL,
    Plain,
    PostgreSQLStore,
    beside,
    engine_in,
    insert_row,
)
from tests.conformance.scene import HELD, NOW, WRITES, Points, insert_held, stage
from tests.conformance.stores import DOORS, READY
from tests.postgresql import Server

DRIVERS = ["psycopg-engine", "psycopg2-engine", *ASYNCHRONOUS, OLDEST]
SNAPSHOTS = ["psycopg-serializable-within", "psycopg-repeatable-read-within"]
OWN = [name for name in (*POSTGRESQL, OLDEST) if name not in SNAPSHOTS]

each_driver = pytest.mark.parametrize("postgresql_store", DRIVERS, indirect=True)
# A transaction of the application's that sees one snapshot fails where another one would wait.
each_that_waits = pytest.mark.parametrize("postgresql_store", OWN, indirect=True)


@contextmanager
def in_a_thread(call: Callable[[], object]) -> Iterator[Future[object]]:
    with ThreadPoolExecutor(1) as threads:
        yield threads.submit(call)


def until_it_waits(store: PostgreSQLStore) -> None:
    """Until some session of this database waits for a lock."""
    give_up = time.monotonic() + 5
    waiting = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    while store.plain.execute(waiting).fetchone() == (0,):
        assert time.monotonic() < give_up, "nobody waits"


def lock(other: Plain, *ids: str) -> None:
    """As a transaction of somebody's does that works on these jobs."""
    other.execute("SELECT * FROM jobs WHERE id = ANY(%s) FOR UPDATE", [list(ids)])


# Chosen rows: locked ones are passed over


def test_a_claim_passes_over_a_locked_job_without_waiting(
    postgresql_store: PostgreSQLStore,
) -> None:
    store = postgresql_store
    for name in ("first", "second"):
        store.insert(id=name)
    with beside(store.url) as other, other.transaction():
        lock(other, "first")
        ticket = store.repository.claim("me", NOW)
        assert ticket is not None
        assert ticket["id"] == "second"
        assert store.repository.claim("me", NOW) is None
        assert store.repository.claim("me", NOW, job_id="first") is None
    first = store.repository.claim("me", NOW)
    assert first is not None
    assert first["id"] == "first"


def test_of_two_claims_at_once_each_gets_a_job_of_its_own(
    postgresql_store: PostgreSQLStore,
) -> None:
    store = postgresql_store
    for name in ("first", "second"):
        store.insert(id=name)
    others: list[Ticket | None] = []

    def meanwhile(point: str) -> None:
        if point == "after-claim":
            with store.somebody_else() as other:
                others.extend(other.claim("you", NOW) for _ in range(2))

    mine = store.repository.claim("me", NOW, fault=meanwhile)
    assert [ticket and ticket["id"] for ticket in (mine, *others)] == ["first", "second", None]


def test_a_claim_that_is_rolled_back_leaves_the_job_to_the_others(
    postgresql_store: PostgreSQLStore,
) -> None:
    store = postgresql_store
    store.insert(id="a")
    with pytest.raises(RuntimeError, match="made up"):
        store.repository.claim("me", NOW, fault=Points("after-claim", RuntimeError("made up")))
    with store.somebody_else() as other:
        ticket = other.claim("you", NOW)
    assert ticket is not None
    assert ticket["token"] == 1


@pytest.mark.parametrize("verb", ["claim", "recover"])
def test_a_sweep_passes_over_locked_jobs_and_none_of_them_is_taken(
    postgresql_store: PostgreSQLStore, verb: str
) -> None:
    store = postgresql_store
    sweep: dict[str, Callable[[], object]] = {
        "claim": lambda: store.repository.claim("me", NOW),
        "recover": lambda: store.repository.recover(NOW),
    }
    leased: dict[str, Any] = {"status": "leased", "owner": "gone", "lease_until": NOW - 1}
    store.insert(id="late", deadline=50)
    store.insert(id="spent", attempts=3, token=3, **leased)
    store.insert(id="lost", attempts=1, token=1, **leased)
    store.insert(id="another-late", deadline=50)
    with beside(store.url) as other, other.transaction():
        lock(other, "late", "spent", "lost")
        before = [store.row(name) for name in ("late", "spent", "lost")]
        nothing = {"claim": None, "recover": {"recovered": 0, "deadline": 1, "exhausted": 0}}
        assert sweep[verb]() == nothing[verb]
        assert [store.row(name) for name in ("late", "spent", "lost")] == before
        assert store.row("another-late")["reason"] == "deadline"
    sweep[verb]()
    assert store.row("late")["reason"] == "deadline"
    assert store.row("spent")["reason"] == "exhausted"
    assert store.row("lost")["status"] == {"claim": "leased", "recover": "pending"}[verb]


@pytest.fixture
def held_up(postgresql: Server) -> Iterator[PostgreSQLStore]:
    """Its statements wait for an advisory lock as they ask the first of their questions, when what
    they see of the table has been settled already."""
    url = postgresql.fresh()
    engine = engine_in("psycopg", url)

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def hold_up(connection: Any, cursor: Any, statement: str, values: Any, *_: Any) -> Any:
        wait = "WHERE EXISTS (SELECT FROM pg_advisory_xact_lock(1)) AND "
        head, *questions = statement.split("array(")
        return "array(".join(
            [head, *(each.replace("WHERE ", wait, 1) for each in questions)]
        ), values

    with beside(url) as plain:
        yield PostgreSQLStore(JobRepository(engine), url, plain, lambda: None)
    engine.dispose()


MEANWHILE = """
    UPDATE jobs SET deadline = 50 WHERE id IN ('now-late', 'now-late-too');
    UPDATE jobs SET attempts = max_attempts WHERE id = 'now-spent';
    UPDATE jobs SET deadline = 900 WHERE id IN ('saved', 'saved-too');
    UPDATE jobs SET lease_until = 500 WHERE id = 'renewed';
    UPDATE jobs SET token = 9, attempts = 2, deadline = 900 WHERE id = 'again';
"""


@pytest.mark.parametrize("limit", [None, 5])
def test_each_row_meets_the_fate_that_it_has_come_to_when_it_is_locked(
    held_up: PostgreSQLStore, limit: int | None
) -> None:
    store = held_up
    leased: dict[str, Any] = {"status": "leased", "attempts": 1, "token": 1, "owner": "gone"}
    for name in ("now-late", "now-spent"):
        store.insert(id=name)
    store.insert(id="saved", deadline=50)
    store.insert(id="renewed", lease_until=90, **leased)
    store.insert(id="again", lease_until=90, **leased)
    store.insert(id="late", deadline=50)
    store.insert(id="now-late-too")
    store.insert(id="saved-too", deadline=50)

    def claim() -> list[Ticket | None]:
        if limit is None:
            return [store.repository.claim("me", NOW)]
        return [*store.repository.claim_batch("me", NOW, limit)]

    with beside(store.url) as other:
        other.execute("SELECT pg_advisory_lock(1)")
        with in_a_thread(claim) as answer:
            until_it_waits(store)
            other.execute(MEANWHILE)
            expected = {row["id"]: row for row in store.rows()}
            other.execute("SELECT pg_advisory_unlock(1)")
            tickets = answer.result()
    ticket = {"id": "again", "qty": 1, "owner": "me", "token": 10, "attempt": 3, "lease_until": 900}
    assert tickets == [ticket]
    # What has come to be late or saved meanwhile is the next claim's.
    expected["late"] |= {"status": "dead", "reason": "deadline"}
    expected["again"] |= {"token": 10, "attempts": 3, "owner": "me", "lease_until": 900}
    assert {row["id"]: row for row in store.rows()} == expected


@pytest.mark.parametrize("mode", ["psycopg", "psycopg2", "psycopg-serializable"])
def test_contenders_share_the_jobs_and_none_is_done_twice(postgresql: Server, mode: str) -> None:
    url = postgresql.fresh()
    engine = engine_in(mode, url)
    repository = JobRepository(engine)
    names = [f"job-{number:03}" for number in range(100)]
    with beside(url) as plain:
        for name in names:
            insert_row(plain, {**READY, "id": name})
        # Rows that every claim tries to sweep meanwhile.
        for number in range(20):
            insert_row(plain, {**READY, "id": f"late-{number}", "deadline": 50})

        def work(owner: str) -> list[str]:
            done = []
            while ticket := repository.claim(owner, NOW):
                assert repository.finish(ticket, "ok", NOW) == "done"
                done.append(ticket["id"])
            return done

        with ThreadPoolExecutor(4) as threads:
            shares = list(threads.map(work, ["ann", "ben", "cat", "dan"]))
        with plain.cursor(row_factory=dict_row) as cursor:
            rows = cursor.execute("SELECT id, status, token FROM jobs ORDER BY seq").fetchall()
    assert sorted(chain.from_iterable(shares)) == names
    assert {row["token"] for row in rows if row["id"] in names} == {1}
    assert {row["status"] for row in rows if row["id"] not in names} == {"dead"}
    engine.dispose()


# A row known by its ticket or id: waited for, and judged by what it has become

BY_TICKET: dict[str, tuple[Callable[[JobRepository], object], object]] = {
    "finish": (lambda repository: repository.finish(HELD, "ok", NOW), False),
    "renew": (lambda repository: repository.renew(HELD, NOW), None),
    "release": (lambda repository: repository.release(HELD), False),
}


@each_that_waits
@pytest.mark.parametrize("verb", BY_TICKET)
def test_a_ticket_is_judged_by_what_the_row_has_become(
    postgresql_store: PostgreSQLStore, verb: str
) -> None:
    store, (call, stale) = postgresql_store, BY_TICKET[verb]
    insert_held(store)
    with beside(store.url) as other, other.transaction():
        other.execute("UPDATE jobs SET lease_until = 600 WHERE id = 'held'")
        with in_a_thread(lambda: call(store.repository)) as answer:
            until_it_waits(store)
            other.execute("COMMIT")
            assert answer.result() is stale
    assert (store.row("held")["status"], store.row("held")["lease_until"]) == ("leased", 600)


@each_that_waits
@pytest.mark.parametrize("verb", BY_TICKET)
def test_a_ticket_holds_where_the_other_change_came_to_nothing(
    postgresql_store: PostgreSQLStore, verb: str
) -> None:
    store, (call, stale) = postgresql_store, BY_TICKET[verb]
    insert_held(store)
    with beside(store.url) as other, other.transaction(force_rollback=True):
        other.execute("UPDATE jobs SET token = token + 1 WHERE id = 'held'")
        with in_a_thread(lambda: call(store.repository)) as answer:
            until_it_waits(store)
            other.execute("ROLLBACK")
            assert answer.result() != stale


@pytest.mark.parametrize("verb", BY_TICKET)
def test_other_rows_that_are_locked_do_not_hold_a_ticket_up(
    postgresql_store: PostgreSQLStore, verb: str
) -> None:
    store, (call, stale) = postgresql_store, BY_TICKET[verb]
    stage(store)
    with beside(store.url) as other, other.transaction():
        lock(other, "ready", "late", "lost", "dead")
        assert call(store.repository) != stale


@pytest.mark.parametrize("postgresql_store", SNAPSHOTS, indirect=True)
def test_in_a_snapshot_of_the_applications_a_changed_row_means_run_again(
    postgresql_store: PostgreSQLStore,
) -> None:
    store = postgresql_store
    insert_held(store)
    with beside(store.url) as other, other.transaction():
        other.execute("UPDATE jobs SET lease_until = 600 WHERE id = 'held'")
        with in_a_thread(lambda: store.repository.finish(HELD, "ok", NOW)) as answer:
            until_it_waits(store)
            other.execute("COMMIT")
            with pytest.raises(StoreBusy):
                answer.result()
    assert store.row("held")["lease_until"] == 600


@each_that_waits
@pytest.mark.parametrize(("qty", "committed"), [(1, True), (2, True), (1, False)])
def test_of_two_enqueues_of_one_id_the_second_waits_for_the_first(
    postgresql_store: PostgreSQLStore, qty: int, committed: bool
) -> None:
    store = postgresql_store

    def enqueue() -> object:
        try:
            return store.repository.enqueue({"id": "a", "qty": 1}, NOW, 1000)
        except Conflict:
            return "conflict"

    expected = ("conflict" if qty == 2 else False) if committed else True
    with beside(store.url) as other, other.transaction(force_rollback=True):
        insert_row(other, {**READY, "id": "a", "qty": qty})
        with in_a_thread(enqueue) as answer:
            until_it_waits(store)
            other.execute("COMMIT" if committed else "ROLLBACK")
            assert answer.result() == expected
    assert [row["qty"] for row in store.rows()] == [qty if committed else 1]


@each_that_waits
def test_of_two_redrives_one_finds_the_job_no_longer_dead(
    postgresql_store: PostgreSQLStore,
) -> None:
    store = postgresql_store
    stage(store)

    def redrive_too() -> object:
        with store.somebody_else() as other:
            return other.redrive("dead", NOW, 1000, "second")

    with ThreadPoolExecutor(1) as threads:
        second: list[Future[object]] = []

        def meanwhile(point: str) -> None:
            if point == "after-audit":
                second.append(threads.submit(redrive_too))
                until_it_waits(store)

        assert store.repository.redrive("dead", NOW, 1000, "first", meanwhile) is True
        with pytest.raises(NotDead):
            second[0].result()
    assert [row["note"] for row in store.rows("redrives")] == ["first"]


# A clock is read after the wait


AFTER_A_WAIT: dict[str, Callable[[JobRepository, Clock], object]] = {
    "finish": lambda repository, clock: repository.finish(HELD, "ok", clock),
    "renew": lambda repository, clock: repository.renew(HELD, clock) or False,
    "finish batch": lambda repository, clock: repository.finish_batch([(HELD, "ok", 0)], clock)[0],
    "renew batch": lambda repository, clock: repository.renew_batch([HELD], clock)[0] or False,
}


def told_after_a_wait(
    store: PostgreSQLStore, call: Callable[[JobRepository, Clock], object]
) -> object:
    """What a call answers whose clock reaches the end of the lease while it waits for the row."""
    now = [NOW]

    def told() -> object:
        try:
            return call(store.repository, lambda: now[0])
        except StaleTicket:
            return False

    with ThreadPoolExecutor(1) as threads, beside(store.url) as other:
        with other.transaction():
            lock(other, HELD["id"])
            answer = threads.submit(told)
            until_it_waits(store)
            now[0] = HELD["lease_until"]
        return answer.result()


@pytest.mark.parametrize("verb", AFTER_A_WAIT)
@each_that_waits
def test_a_lease_that_ends_while_somebody_has_the_row_has_ended(
    postgresql_store: PostgreSQLStore, verb: str
) -> None:
    insert_held(postgresql_store)
    before = postgresql_store.dump()
    assert told_after_a_wait(postgresql_store, AFTER_A_WAIT[verb]) is False
    assert postgresql_store.dump() == before


@pytest.mark.parametrize("postgresql_store", DRIVERS, indirect=True)
def test_a_job_that_was_not_finished_in_time_is_the_next_one_to_claim(
    postgresql_store: PostgreSQLStore,
) -> None:
    insert_held(postgresql_store)
    told = told_after_a_wait(
        postgresql_store, lambda jobs, clock: jobs.finish_and_claim(HELD, "ok", "you", clock)
    )
    assert isinstance(told, tuple)
    status, claimed = told
    assert status is False
    assert (claimed["id"], claimed["token"]) == (HELD["id"], HELD["token"] + 1)


def test_a_redriven_jobs_time_begins_after_the_wait(postgresql: Server) -> None:
    url = postgresql.fresh()
    with POSTGRESQL["psycopg-engine"](url) as store, beside(url) as other:
        assert isinstance(store, PostgreSQLStore)
        stage(store)
        now = [NOW]
        with ThreadPoolExecutor(1) as threads:
            with other.transaction():
                lock(other, "dead")
                clock = lambda: now[0]  # noqa: E731
                answer = threads.submit(store.repository.redrive, "dead", clock, 1000, "why")
                until_it_waits(store)
                now[0] = NOW + 700
            assert answer.result() is True
        (row,) = [row for row in store.rows() if row["id"] == "dead"]
        assert (row["available_at"], row["deadline"]) == (NOW + 700, NOW + 1700)


def test_recover_gives_back_nothing_that_the_sweep_could_not_have(postgresql: Server) -> None:
    url = postgresql.fresh()
    engine = create_engine(url)
    jobs = JobRepository(engine)
    for job_id, ttl_ms, attempts in (("late", 1000, 3), ("spent", 9000, 1)):
        jobs.enqueue({"id": job_id, "qty": 1}, 0, ttl_ms, attempts)
        jobs.claim("gone", 0, 1000)
    with beside(url) as other:
        other.execute("BEGIN")
        lock(other, "late", "spent")

        @event.listens_for(engine, "after_cursor_execute", once=True)
        def let_go(*_: object) -> None:
            other.execute("ROLLBACK")

        assert jobs.recover(5000) == {"recovered": 0, "deadline": 0, "exhausted": 0}
    assert jobs.recover(5000) == {"recovered": 0, "deadline": 1, "exhausted": 1}
    engine.dispose()


# Waiting that has an end


@pytest.fixture(scope="module")
def hurried_url(postgresql: Server) -> URL:
    """A database that lets nobody wait long for a row."""
    url = postgresql.fresh()
    with beside(url) as plain:
        plain.execute(f'ALTER DATABASE "{url.database}" SET lock_timeout = 1'.encode())
    return url


@pytest.fixture(params=POSTGRESQL)
def hurried(request: pytest.FixtureRequest, hurried_url: URL) -> Iterator[PostgreSQLStore]:
    with POSTGRESQL[request.param](hurried_url) as store:
        assert isinstance(store, PostgreSQLStore)
        store.wipe()
        yield store
        store.assert_clean()


def test_a_row_that_stays_locked_is_busy_and_changes_nothing(hurried: PostgreSQLStore) -> None:
    insert_held(hurried)
    with beside(hurried.url) as other, other.transaction():
        lock(other, "held")
        before = hurried.dump()
        for call, _ in BY_TICKET.values():
            with pytest.raises(StoreBusy, match=r"locked for longer|could not take"):
                call(hurried.repository)
            hurried.assert_released()
            assert hurried.dump() == before
    assert hurried.repository.finish(HELD, "ok", NOW) == "done"


# A database without the tables


@pytest.fixture(scope="module")
def empty_url(postgresql: Server) -> URL:
    return postgresql.empty()


@pytest.mark.parametrize("name", [name for name in POSTGRESQL if not name.endswith("within")])
def test_every_verb_says_which_tables_are_missing(empty_url: URL, name: str) -> None:
    with POSTGRESQL[name](empty_url) as store:
        assert isinstance(store, PostgreSQLStore)
        for call in CALLS.values():
            with pytest.raises(SchemaError, match=r"jobs, redrives.*upgrade") as caught:
                call(store.repository)
            assert caught.value.missing == ("jobs", "redrives")
            store.assert_released()


@pytest.mark.parametrize("name", [f"{mode}-within" for mode in JOINABLE])
def test_in_the_applications_transaction_it_says_what_the_database_told(
    empty_url: URL, name: str
) -> None:
    # After an error nothing more can be asked in that transaction.
    with POSTGRESQL[name](empty_url) as store:
        for call in CALLS.values():
            told = r'lacks a table or column: relation "(jobs|redrives)" does not exist; .*upgrade'
            with pytest.raises(SchemaError, match=told) as caught:
                call(store.repository)
            assert caught.value.missing == ()
            assert isinstance(caught.value.__cause__, ProgrammingError)


@pytest.mark.parametrize("driver", ASYNCHRONOUS.values())
def test_so_it_does_in_an_asynchronous_one(empty_url: URL, driver: str) -> None:
    async def main() -> None:
        engine = create_async_engine(empty_url.set(drivername=f"postgresql+{driver}"))
        jobs = AsyncJobRepository(engine)
        async with AsyncSession(engine) as session:
            with pytest.raises(SchemaError, match='relation "jobs" does not exist'):
                await jobs.within(session).claim("me", NOW)
        await engine.dispose()

    asyncio.run(main())


def test_an_absent_column_is_named(postgresql: Server) -> None:
    url = postgresql.fresh()
    with POSTGRESQL["psycopg-engine"](url) as store, beside(url) as plain:
        plain.execute("ALTER TABLE jobs RENAME COLUMN reason TO cause")
        with pytest.raises(SchemaError, match=r"jobs\.reason") as caught:
            store.repository.claim("me", NOW)
        assert caught.value.missing == ("jobs.reason",)
    with (
        POSTGRESQL["psycopg-within"](url) as store,
        pytest.raises(SchemaError, match=r"column \S*reason\b.* does not exist"),
    ):
        store.repository.claim("me", NOW)


@pytest.mark.parametrize("committed", [False, True])
def test_a_listener_that_leaves_a_transaction_open_is_named(
    postgresql: Server, committed: bool
) -> None:
    engine = create_engine(postgresql.fresh(), poolclass=NullPool)

    @event.listens_for(engine, "connect")
    def choose_schema(connection: Any, _: object) -> None:
        connection.execute("SET search_path TO public")
        if committed:
            connection.commit()

    jobs = JobRepository(engine)
    named = pytest.raises(UnsupportedEngine, match=r"transaction open: a listener.* Let it commit")
    with nullcontext() if committed else named:
        assert jobs.get("a") is None
    with nullcontext() if committed else named:
        assert jobs.claim("me", NOW) is None


@pytest.fixture(scope="module")
def broken_url(postgresql: Server) -> URL:
    """A database whose own trigger needs a table that is not there."""
    url = postgresql.fresh()
    with beside(url) as plain:
        plain.execute("""
            CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql
                AS $$ BEGIN INSERT INTO notes VALUES (NEW.id); RETURN NEW; END $$;
            CREATE TRIGGER note BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION note()
        """)
    return url


@pytest.mark.parametrize("name", POSTGRESQL)
def test_what_a_trigger_of_the_applications_lacks_is_the_applications_error(
    broken_url: URL, name: str
) -> None:
    with (
        POSTGRESQL[name](broken_url) as store,
        pytest.raises(ProgrammingError, match='"notes" does not exist'),
    ):
        store.repository.enqueue({"id": "a", "qty": 1}, NOW, 1000)


def test_in_an_asynchronous_transaction_too(broken_url: URL) -> None:
    async def main() -> None:
        engine = create_async_engine(broken_url.set(drivername="postgresql+asyncpg"))
        within = AsyncJobRepository(engine).within
        async with AsyncSession(engine) as session:
            with pytest.raises(ProgrammingError, match='"notes" does not exist'):
                await within(session).enqueue({"id": "a", "qty": 1}, NOW, 1000)
        await engine.dispose()

    asyncio.run(main())


# A session that ends


@pytest.mark.parametrize(
    "postgresql_store", [*DRIVERS, "psycopg-within", "psycopg-connection"], indirect=True
)
def test_a_session_that_the_server_ended_is_reported_and_the_next_call_works(
    postgresql_store: PostgreSQLStore,
) -> None:
    store = postgresql_store
    stage(store)
    before = store.dump()
    end = (
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        " AND datname = current_database() AND backend_type = 'client backend'"
    )

    def meanwhile(point: str) -> None:
        store.plain.execute(end)

    with pytest.raises(DBAPIError) as caught:
        store.repository.claim("me", NOW, fault=meanwhile)
    assert not isinstance(caught.value, StoreBusy)
    assert caught.value.connection_invalidated
    assert store.dump() == before
    assert store.repository.claim("me", NOW) is not None


# Isolation


def isolation(connection: Connection) -> object:
    with connection.begin():
        return connection.execute(text("SHOW transaction_isolation")).scalar()


LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
CALLS: dict[str, Callable[[JobRepository], object]] = {
    **WRITES,
    "get": lambda repository: repository.get("ready"),
    "stuck": lambda repository: repository.stuck(NOW),
}


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("asked_by", ["engine", "option of the engine", "option of the connection"])
def test_own_transactions_are_read_committed_and_the_connection_stays_what_it_was(
    empty_url: URL, driver: str, level: str, asked_by: str
) -> None:
    url = empty_url.set(drivername=f"postgresql+{driver}")
    engine = create_engine(url, **({"isolation_level": level} if asked_by == "engine" else {}))
    bind = (
        engine.execution_options(isolation_level=level)
        if asked_by == "option of the engine"
        else engine
    )
    seen: list[object] = []

    def look(connection: Connection, cursor: Any, *_: object) -> None:
        cursor.execute("SHOW transaction_isolation")
        seen.extend(cursor.fetchone())

    with bind.connect() as connection:
        if asked_by == "option of the connection":
            connection.execution_options(isolation_level=level)
        options = connection.get_execution_options()
        record: Any = connection.connection._connection_record
        undone_at_the_end = len(record.finalize_callback)
        event.listen(engine, "before_cursor_execute", look)
        for call in CALLS.values():
            with pytest.raises(SchemaError):
                call(JobRepository(connection))
        event.remove(engine, "before_cursor_execute", look)
        assert set(seen) == {"read committed"}
        assert isolation(connection) == level.lower()
        assert connection.get_execution_options() == options
        # Nothing grows with the number of calls.
        assert len(record.finalize_callback) == undone_at_the_end
    with engine.connect() as connection:
        assert isolation(connection) == (
            level.lower() if asked_by == "engine" else "read committed"
        )
    engine.dispose()


@contextmanager
def spoken(engine: Engine, tmp_path: Path) -> Iterator[list[str]]:
    """What the server says it has done on the engine's one connection, as libpq tells."""
    statements: list[str] = []
    with engine.connect() as connection:
        libpq = connection.connection.dbapi_connection.pgconn  # type: ignore[union-attr]
    with (tmp_path / "trace").open("w+") as trace:
        libpq.trace(trace.fileno())
        try:
            yield statements
        finally:
            libpq.untrace()
        trace.seek(0)
        statements += re.findall(r'\tCommandComplete\t "([A-Z]+)', trace.read())


def held(jobs: JobRepository) -> Ticket:
    jobs.enqueue({"id": "held", "qty": 1}, NOW, 1000)
    ticket = jobs.claim("me", NOW, job_id="held")
    assert ticket is not None
    return ticket


SINGLE: dict[str, Callable[[JobRepository, Ticket], object]] = {
    "enqueue": lambda jobs, _: jobs.enqueue({"id": "a", "qty": 1}, NOW, 1000),
    "claim": lambda jobs, _: jobs.claim("other", NOW),
    "claim by a clock": lambda jobs, _: jobs.claim("other", lambda: NOW),
    "claim of one job": lambda jobs, _: jobs.claim("other", NOW, job_id="held"),
    "claim of many": lambda jobs, _: jobs.claim_batch("other", NOW, 10),
    "finish": lambda jobs, ticket: jobs.finish(ticket, "ok", NOW),
    "renew": lambda jobs, ticket: jobs.renew(ticket, NOW),
    "release": lambda jobs, ticket: jobs.release(ticket),
    "get": lambda jobs, _: jobs.get("a"),
    "stuck": lambda jobs, _: jobs.stuck(NOW),
}


@pytest.mark.parametrize("verb", SINGLE)
def test_one_statement_needs_no_begin(postgresql: Server, tmp_path: Path, verb: str) -> None:
    engine = engine_in("psycopg", postgresql.fresh())
    jobs = JobRepository(engine)
    ticket = held(jobs)
    with spoken(engine, tmp_path) as statements:
        SINGLE[verb](jobs, ticket)
    assert len(statements) == 1, statements
    engine.dispose()


def listening_to(engine: Engine, name: str) -> None:
    event.listen(engine, name, lambda *_: None)


COUNTS_ON_IT: dict[str, Callable[[Engine], object]] = {
    name: partial(listening_to, name=name)
    for name in (
        "engine_connect",
        "begin",
        "before_execute",
        "before_cursor_execute",
        "after_cursor_execute",
        "after_execute",
        "commit",
    )
}


@pytest.mark.parametrize("who", COUNTS_ON_IT)
def test_who_listens_finds_a_transaction_around_it(
    postgresql: Server, tmp_path: Path, who: str
) -> None:
    engine = engine_in("psycopg", postgresql.fresh())
    jobs = JobRepository(engine)
    ticket = held(jobs)
    COUNTS_ON_IT[who](engine)
    with spoken(engine, tmp_path) as statements:
        assert jobs.finish(ticket, "ok", NOW) == "done"
    assert [statements[0], statements[-1]] == ["BEGIN", "COMMIT"]
    engine.dispose()


def test_a_borrowed_connection_may_have_listeners_of_its_own(
    postgresql: Server, tmp_path: Path
) -> None:
    engine = engine_in("psycopg", postgresql.fresh())
    ticket = held(JobRepository(engine))
    with spoken(engine, tmp_path) as statements, engine.connect() as connection:
        event.listen(connection, "commit", lambda _: None)
        assert JobRepository(connection).release(ticket)
    assert statements == ["BEGIN", "UPDATE", "COMMIT"]
    engine.dispose()


def test_what_a_listener_raises_before_the_commit_undoes_a_verb(postgresql: Server) -> None:
    engine = engine_in("psycopg", postgresql.fresh())
    jobs = JobRepository(engine)
    ticket = held(jobs)

    def refuse(_: Connection) -> None:
        raise RuntimeError("made up")

    event.listen(engine, "commit", refuse)
    with pytest.raises(RuntimeError, match="made up"):
        jobs.finish(ticket, "ok", NOW)
    event.remove(engine, "commit", refuse)
    assert jobs.finish(ticket, "ok", NOW) == "done"
    engine.dispose()


MORE_THAN_ONE: dict[str, Callable[[JobRepository, Ticket], object]] = {
    "a fault point": lambda jobs, ticket: jobs.finish(ticket, "ok", NOW, fault=lambda _: None),
    "a clock that is read after the wait for the row": lambda jobs, ticket: jobs.renew(
        ticket, lambda: NOW
    ),
    "two verbs in one": lambda jobs, ticket: jobs.finish_and_claim(ticket, "ok", "me", NOW),
    "a bound to the wait": lambda jobs, ticket: jobs._patient(50).release(ticket),
    "a notice": lambda jobs, ticket: JobRepository(jobs._bind, notify=True).release(ticket),
}


@pytest.mark.parametrize("what", MORE_THAN_ONE)
def test_what_takes_more_than_one_statement_is_one_transaction(
    postgresql: Server, tmp_path: Path, what: str
) -> None:
    engine = engine_in("psycopg", postgresql.fresh())
    jobs = JobRepository(engine)
    ticket = held(jobs)
    with spoken(engine, tmp_path) as statements:
        assert MORE_THAN_ONE[what](jobs, ticket)
    assert [statements[0], statements[-1]] == ["BEGIN", "COMMIT"]
    assert statements.count("COMMIT") == 1
    engine.dispose()


# A claim that finds very many to bury: of its statements only the last one takes a job

CLAIMS: dict[str, Callable[[JobRepository], list[Ticket]]] = {
    "claim": lambda jobs: [ticket for ticket in [jobs.claim("me", NOW)] if ticket],
    "claim of many": lambda jobs: jobs.claim_batch("me", NOW, 2),
    "a worker's": lambda jobs: jobs._claim_and_sweep("me", NOW, 2, 1000)[0],
}
FAILS_AT = {
    "the sweep": "OLD.id = 'last'",
    "the second claim": "NEW.status = 'leased'",
}


def bury(plain: Plain, count: int, kinds: tuple[str, ...] = ("late", "spent")) -> None:
    """So many that must die, of each of these kinds, with nothing to take among them."""
    for number in range(count):
        if "late" in kinds:
            insert_row(plain, {**READY, "id": f"late-{number}", "deadline": 10})
        if "spent" in kinds:
            spent = {"status": "leased", "attempts": 3, "token": 3, "owner": "x", "lease_until": 10}
            insert_row(plain, {**READY, "id": f"spent-{number}", **spent})


def statuses(plain: Plain) -> dict[str, int]:
    return dict(plain.execute("SELECT status, count(*) FROM jobs GROUP BY status").fetchall())


@pytest.mark.parametrize("count", [19, 20, 21, 45])
@pytest.mark.parametrize("kind", ["late", "spent"])
@pytest.mark.parametrize("claim", CLAIMS)
def test_beside_very_many_deaths_a_claim_takes_its_job_after_the_sweep(
    postgresql: Server, tmp_path: Path, claim: str, kind: str, count: int
) -> None:
    url = postgresql.fresh()
    engine = engine_in("psycopg", url)
    with beside(url) as plain, spoken(engine, tmp_path) as statements:
        bury(plain, count, (kind,))
        insert_row(plain, {**READY, "id": "ready"})
        assert [ticket["id"] for ticket in CLAIMS[claim](JobRepository(engine))] == ["ready"]
        assert statuses(plain) == {"dead": count, "leased": 1}
    assert statements == ["UPDATE"] * (1 if count < FEW_DEAD else 3)
    engine.dispose()


@pytest.mark.parametrize("fails_at", FAILS_AT)
@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("door", DOORS)
def test_a_claim_that_fails_beside_very_many_deaths_takes_no_job(
    postgresql: Server, door: str, claim: str, fails_at: str
) -> None:
    url = postgresql.fresh()
    engine = engine_in("psycopg", url)
    with beside(url) as plain, engine.connect() as connection:
        jobs = JobRepository(engine if door == "engine" else connection)
        bury(plain, FEW_DEAD)
        insert_row(plain, {**READY, "id": "last", "deadline": NOW})
        insert_row(plain, {**READY, "id": "ready"})
        plain.execute(
            f"""
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql
                AS $$ BEGIN RAISE 'made up'; END $$;
            CREATE TRIGGER refuse BEFORE UPDATE ON jobs FOR EACH ROW
                WHEN ({FAILS_AT[fails_at]}) EXECUTE FUNCTION refuse()
        """.encode()
        )
        with pytest.raises(DBAPIError, match="made up"):
            CLAIMS[claim](jobs)
        # What was buried is what must die anyhow; on a borrowed connection it is one transaction.
        dead = {"the sweep": 2 * FEW_DEAD, "the second claim": 2 * FEW_DEAD + 1}[fails_at]
        left = 2 * FEW_DEAD + 2 - dead
        assert statuses(plain) == (
            {"dead": dead, "pending": left}
            if door == "engine"
            else {"pending": FEW_DEAD + 2, "leased": FEW_DEAD}
        )
        plain.execute("DROP TRIGGER refuse ON jobs")
        (ticket,) = CLAIMS[claim](jobs)
        assert (ticket["id"], ticket["token"]) == ("ready", 1)
        assert statuses(plain) == {"dead": 2 * FEW_DEAD + 1, "leased": 1}
    engine.dispose()


def test_one_that_is_late_by_then_is_buried_with_the_others(postgresql: Server) -> None:
    """As rows that somebody else had locked during the sweep: there are very many again."""
    url = postgresql.fresh()
    engine = engine_in("psycopg", url)
    with beside(url) as plain:
        bury(plain, FEW_DEAD, ("late",))
        insert_row(plain, {**READY, "id": "ready"})
        plain.execute("""
            CREATE FUNCTION more() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                INSERT INTO jobs (id, qty, status, attempts, max_attempts, token, available_at,
                                  deadline)
                SELECT 'more-' || number, 1, 'pending', 0, 3, 0, 0, 50
                FROM generate_series(1, 25) number;
                RETURN NEW;
            END $$;
            CREATE TRIGGER more BEFORE UPDATE ON jobs FOR EACH ROW
                WHEN (OLD.id = 'late-0') EXECUTE FUNCTION more()
        """)
        tickets, swept = JobRepository(engine)._claim_and_sweep("me", NOW, 1, 1000)
        assert [ticket["id"] for ticket in tickets] == ["ready"]
        assert len(swept) == len({job["id"] for job in swept}) == FEW_DEAD + 25
        assert statuses(plain) == {"dead": FEW_DEAD + 25, "leased": 1}
    engine.dispose()


@pytest.mark.parametrize("limit", [1, 3])
def test_of_claims_at_once_beside_very_many_deaths_one_alone_tells_of_each(
    postgresql: Server, limit: int
) -> None:
    url = postgresql.fresh()
    engine = engine_in("psycopg", url)
    jobs = JobRepository(engine)
    names = [f"ready-{number}" for number in range(12)]
    start = threading.Barrier(4)
    with beside(url) as plain:
        bury(plain, 300)
        for name in names:
            insert_row(plain, {**READY, "id": name})

        def claim(owner: str) -> tuple[list[str], list[str]]:
            told: list[str] = []
            taken: list[str] = []
            start.wait()
            while True:
                tickets, swept = jobs._claim_and_sweep(owner, NOW, limit, 1000)
                told += [job["id"] for job in swept]
                taken += [ticket["id"] for ticket in tickets]
                if not (tickets or swept):
                    return told, taken

        with ThreadPoolExecutor(4) as threads:
            told, taken = zip(*threads.map(claim, ["ann", "ben", "cat", "dan"]), strict=True)
        dead = plain.execute("SELECT id FROM jobs WHERE status = 'dead'").fetchall()
    assert sorted(chain.from_iterable(taken)) == sorted(names)
    assert len(dead) == 600
    assert sorted(chain.from_iterable(told)) == sorted(name for (name,) in dead)
    engine.dispose()


def test_who_may_only_read_may_not_write_by_one_statement_either(postgresql: Server) -> None:
    engine = engine_in("psycopg", postgresql.fresh())
    reader = JobRepository(engine.execution_options(postgresql_readonly=True))
    with pytest.raises(DBAPIError, match="read-only transaction"):
        reader.enqueue({"id": "a", "qty": 1}, NOW, 1000)
    assert reader.get("a") is None
    engine.dispose()


def test_so_is_one_where_the_server_has_another_level(postgresql: Server, tmp_path: Path) -> None:
    url = postgresql.fresh().update_query_dict(
        {"options": "-c default_transaction_isolation=serializable"}
    )
    engine = engine_in("psycopg", url)
    jobs = JobRepository(engine)
    ticket = held(jobs)
    with spoken(engine, tmp_path) as statements:
        assert jobs.release(ticket)
    assert statements == ["BEGIN", "UPDATE", "COMMIT"]
    engine.dispose()


@pytest.mark.parametrize("door", DOORS)
def test_an_autocommit_engine_has_no_transaction_to_join(postgresql: Server, door: str) -> None:
    url = postgresql.fresh()
    engine = engine_in("psycopg-autocommit", url)
    with engine.connect() as connection, connection.begin():
        jobs = JobRepository(engine if door == "engine" else connection).within(connection)
        with pytest.raises(UnsupportedEngine, match="autocommit"):
            jobs.enqueue({"id": "a", "qty": 1}, NOW, 1000)
        assert jobs.get("a") is None
    with (
        engine.connect() as connection,
        pytest.raises(UnsupportedEngine, match="autocommit"),
        immediate(connection),
    ):
        raise AssertionError("the block ran")
    engine.dispose()


def test_an_isolation_level_that_cannot_be_restored_costs_the_connection_only(
    postgresql: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_in("psycopg-serializable", postgresql.fresh())
    repository = JobRepository(engine)
    assert repository.enqueue({"id": "a", "qty": 1}, NOW, 1000)
    with monkeypatch.context() as broken:
        broken.setattr(engine.dialect, "reset_isolation_level", broken_reset)
        assert repository.claim("me", NOW) is not None
    with engine.connect() as connection:
        assert isolation(connection) == "serializable"
    engine.dispose()


def broken_reset(driver: object) -> None:
    raise RuntimeError("made up")
