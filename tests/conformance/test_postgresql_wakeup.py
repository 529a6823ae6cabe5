"""PostgreSQL: which transactions say that there may be work, and who hears it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Self

import pytest
from sqlalchemy import URL, Connection, Engine, MetaData, Table, create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Session

from leasestore import (
    Event,
    Job,
    JobMixin,
    JobRepository,
    Redrive,
    RedriveMixin,
    StaleTicket,
    Ticket,
    Wakeup,
    immediate,
    schema,
)
from leasestore.aio import AsyncJobRepository
from leasestore.dialects import postgresql as dialect
from leasestore.models import table_of
from tests.conformance.postgresql import Plain, beside, engine_in, wipe
from tests.postgresql import Server
from tests.support import make_file

DRIVERS = ["psycopg", "psycopg2"]
MODES = [*DRIVERS, "psycopg-autocommit", "psycopg-serializable"]
LONG_MS = 60_000
LONGEST_WAIT_S = 30
NOW = 100
EVENT: Event = {"id": "job-1", "qty": 1}
LISTENING = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'"
)


@pytest.fixture(scope="module")
def url(postgresql: Server) -> URL:
    return postgresql.fresh()


@pytest.fixture(scope="module")
def outside(url: URL) -> Iterator[Plain]:
    with beside(url) as plain:
        yield plain


@pytest.fixture
def plain(outside: Plain) -> Plain:
    wipe(outside)
    return outside


@contextmanager
def connected(mode: str, url: URL) -> Iterator[Engine]:
    engine = engine_in(mode, url)
    yield engine
    engine.dispose()


@pytest.fixture(params=MODES)
def engine(request: pytest.FixtureRequest, url: URL, plain: Plain) -> Iterator[Engine]:
    with connected(request.param, url) as engine:
        yield engine


@pytest.fixture
def one_engine(url: URL, plain: Plain) -> Iterator[Engine]:
    """Of one driver only, for what no driver has a part in."""
    with connected("psycopg", url) as engine:
        yield engine


class Said:
    """What is said on the channel of a table, heard by a connection of the test's own."""

    def __init__(self, url: URL, model: type[JobMixin]) -> None:
        engine = create_engine(url)
        self._channel, self._url = dialect._channel(engine, table_of(model, JobMixin)), url

    def __enter__(self) -> Self:
        self._beside = beside(self._url)
        self._plain = self._beside.__enter__()
        self._plain.execute(f"LISTEN {self._channel}".encode())
        return self

    def __exit__(self, *error: object) -> None:
        self._beside.__exit__(None, None, None)

    def count(self) -> int:
        """How many notices were committed since the last time: those before one of our own."""
        with beside(self._url) as other:
            other.execute("SELECT pg_notify(%s, 'the last')", [self._channel])
        said: list[str] = []
        while "the last" not in said:
            heard = [notice.payload for notice in self._plain.notifies(timeout=5, stop_after=1)]
            assert heard, f"the last notice did not arrive, only {said}"
            said += heard
        assert set(said) <= {"", "the last"}
        return len(said) - 1


@pytest.fixture
def said(url: URL) -> Iterator[Said]:
    with Said(url, Job) as said:
        yield said


# Who says something


def claimed(jobs: Any, name: str = "job-1") -> Ticket:
    ticket: Ticket | None = jobs.claim("me", NOW, 60, job_id=name)
    assert ticket is not None
    return ticket


def enqueue(jobs: JobRepository) -> Callable[[Any], object]:
    return lambda verbs: verbs.enqueue(EVENT, NOW, 1000)


def enqueue_later(jobs: JobRepository) -> Callable[[Any], object]:
    return lambda verbs: verbs.enqueue(EVENT, NOW, 1000, delay_ms=1)


def enqueue_again(jobs: JobRepository) -> Callable[[Any], object]:
    jobs.enqueue(EVENT, NOW, 1000)
    return lambda verbs: verbs.enqueue(EVENT, NOW, 1000)


def enqueue_many(delay_ms: int, *events: Event) -> Callable[[Any], Callable[[Any], object]]:
    def prepared(jobs: JobRepository) -> Callable[[Any], object]:
        enqueue(jobs)(jobs)
        return lambda verbs: verbs.enqueue_many(events, NOW, 1000, delay_ms=delay_ms)

    return prepared


def renew_batch(jobs: JobRepository) -> Callable[[Any], object]:
    jobs.enqueue(EVENT, NOW, 1000)
    ticket = claimed(jobs)
    return lambda verbs: verbs.renew_batch([ticket], NOW, 500)


def claim(jobs: JobRepository) -> Callable[[Any], object]:
    jobs.enqueue(EVENT, NOW, 1000)
    return claimed


def claim_batch(jobs: JobRepository) -> Callable[[Any], object]:
    jobs.enqueue(EVENT, NOW, 1000)
    return lambda verbs: verbs.claim_batch("me", NOW, 10)


def claim_nothing(jobs: JobRepository) -> Callable[[Any], object]:
    return lambda verbs: verbs.claim("me", NOW)


def renew(jobs: JobRepository) -> Callable[[Any], object]:
    jobs.enqueue(EVENT, NOW, 1000)
    ticket = claimed(jobs)
    return lambda verbs: verbs.renew(ticket, NOW, 70)


def release(jobs: JobRepository) -> Callable[[Any], object]:
    jobs.enqueue(EVENT, NOW, 1000)
    ticket = claimed(jobs)
    return lambda verbs: verbs.release(ticket)


def finish(outcome: str, delay_ms: int = 0) -> Callable[[JobRepository], Callable[[Any], object]]:
    def prepared(jobs: JobRepository) -> Callable[[Any], object]:
        jobs.enqueue(EVENT, NOW, 1000)
        ticket = claimed(jobs)
        return lambda verbs: verbs.finish(ticket, outcome, NOW, delay_ms)

    return prepared


def finish_and_claim(outcome: str, delay_ms: int = 0) -> Callable[[Any], Callable[[Any], object]]:
    def prepared(jobs: JobRepository) -> Callable[[Any], object]:
        jobs.enqueue(EVENT, NOW, 1000)
        ticket = claimed(jobs)
        return lambda verbs: verbs.finish_and_claim(ticket, outcome, "me", NOW, 1000, delay_ms)

    return prepared


def finish_batch(*ends: tuple[str, int]) -> Callable[[Any], Callable[[Any], object]]:
    def prepared(jobs: JobRepository) -> Callable[[Any], object]:
        for number in range(len(ends)):
            jobs.enqueue({"id": f"job-{number}", "qty": 1}, NOW, 1000)
        tickets = jobs.claim_batch("me", NOW, len(ends))
        items = [(ticket, *end) for ticket, end in zip(tickets, ends, strict=True)]
        return lambda verbs: verbs.finish_batch(items, NOW)

    return prepared


def spent(jobs: JobRepository) -> Callable[[Any], object]:
    jobs.enqueue(EVENT, NOW, 1000, max_attempts=1)
    ticket = claimed(jobs)
    return lambda verbs: verbs.finish(ticket, "retry", NOW)


def redrive(jobs: JobRepository) -> Callable[[Any], object]:
    finish("permanent")(jobs)(jobs)
    return lambda verbs: verbs.redrive("job-1", NOW, 1000, "by-hand")


def recover(jobs: JobRepository) -> Callable[[Any], object]:
    for number in range(3):
        jobs.enqueue({"id": f"job-{number}", "qty": 1}, NOW, 1000)
        claimed(jobs, f"job-{number}")
    return lambda verbs: verbs.recover(NOW + 60)


def recover_nothing(jobs: JobRepository) -> Callable[[Any], object]:
    jobs.enqueue(EVENT, NOW, 10)
    jobs.enqueue({"id": "job-2", "qty": 1}, NOW, 1000)
    claimed(jobs, "job-2")
    return lambda verbs: verbs.recover(NOW + 20)


SPEAKING = {
    "enqueue": enqueue,
    "redrive": redrive,
    "release": release,
    "recover": recover,
    "retry": finish("retry"),
    "retry and claim": finish_and_claim("retry"),
    "enqueue of several": enqueue_many(0, EVENT, {"id": "job-2", "qty": 1}),
    "a batch with one retry": finish_batch(("ok", 0), ("retry", 0), ("retry", 1)),
}
SILENT = {
    "enqueue for later": enqueue_later,
    "enqueue again": enqueue_again,
    "claim": claim,
    "claim of nothing": claim_nothing,
    "claim batch": claim_batch,
    "renew": renew,
    "done": finish("ok"),
    "permanent": finish("permanent"),
    "retry later": finish("retry", 1),
    "done and claim": finish_and_claim("ok"),
    "retry later and claim": finish_and_claim("retry", 1),
    "enqueue of several for later": enqueue_many(1, {"id": "job-2", "qty": 1}),
    "enqueue of several again": enqueue_many(0, EVENT, {**EVENT, "qty": 9}),
    "renew batch": renew_batch,
    "a batch with nothing for now": finish_batch(("ok", 0), ("permanent", 0), ("retry", 1)),
    "retry with no attempt left": spent,
    "recover of nothing": recover_nothing,
}
CALLS = SPEAKING | SILENT


@pytest.mark.parametrize("call", CALLS)
def test_a_verb_speaks_when_there_is_a_job_to_claim_now(
    one_engine: Engine, said: Said, call: str
) -> None:
    do = CALLS[call](JobRepository(one_engine))
    do(JobRepository(one_engine, notify=True))
    assert said.count() == (call in SPEAKING)


@pytest.mark.parametrize("call", CALLS)
def test_so_it_does_in_the_applications_transaction_once_that_is_committed(
    one_engine: Engine, said: Said, call: str
) -> None:
    do = CALLS[call](JobRepository(one_engine))
    with Session(one_engine) as session, immediate(session):
        do(JobRepository(one_engine, notify=True).within(session))
        assert said.count() == 0
    assert said.count() == (call in SPEAKING)


@pytest.mark.parametrize("call", SPEAKING)
def test_what_is_rolled_back_is_never_said(one_engine: Engine, said: Said, call: str) -> None:
    jobs = JobRepository(one_engine, notify=True)
    do = CALLS[call](JobRepository(one_engine))
    with Session(one_engine) as session:
        do(jobs.within(session))
        session.rollback()
    with Session(one_engine) as session:
        session.begin()
        with session.begin_nested() as savepoint:
            do(jobs.within(session))
            savepoint.rollback()
        session.commit()
    assert said.count() == 0


def test_what_a_fault_point_undoes_is_not_said_and_what_comes_after_the_commit_is(
    one_engine: Engine, said: Said
) -> None:
    jobs = JobRepository(one_engine, notify=True)
    jobs.enqueue(EVENT, NOW, 1000)
    ticket = claimed(jobs)
    assert said.count() == 1
    for at, expected in (("after-release", 0), ("after-commit", 1)):

        def fail(point: str, at: str = at) -> None:
            if point == at:
                raise LookupError

        with pytest.raises(LookupError):
            jobs.release(ticket, fail)
        assert said.count() == expected


def test_a_stale_ticket_says_nothing(one_engine: Engine, said: Said) -> None:
    jobs = JobRepository(one_engine, notify=True)
    jobs.enqueue(EVENT, NOW, 1000)
    ticket = claimed(jobs)
    stale: Ticket = {**ticket, "token": 9}
    assert said.count() == 1
    assert jobs.release(stale) is False
    assert jobs.finish(stale, "retry", NOW) is False
    with one_engine.begin() as connection, pytest.raises(StaleTicket):
        jobs.within(connection).release(stale)
    assert said.count() == 0


def test_many_in_one_transaction_are_one_notice(one_engine: Engine, said: Said) -> None:
    jobs = JobRepository(one_engine, notify=True)
    with one_engine.begin() as connection:
        for number in range(20):
            jobs.within(connection).enqueue({"id": f"job-{number}", "qty": 1}, NOW, 1000)
    assert said.count() == 1


@contextmanager
def statements(engine: Engine) -> Iterator[list[str]]:
    sent: list[str] = []

    def note(_: Connection, __: object, statement: str, *___: object) -> None:
        sent.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    yield sent
    event.remove(engine, "before_cursor_execute", note)


@pytest.mark.parametrize("call", CALLS)
def test_unless_it_is_asked_for_nothing_is_said_and_no_statement_is_added(
    one_engine: Engine, plain: Plain, said: Said, call: str
) -> None:
    seen = []
    asked_for = JobRepository(one_engine, notify=True)
    for jobs in (JobRepository(one_engine), JobRepository(one_engine, notify=False), asked_for):
        wipe(plain)
        do = CALLS[call](JobRepository(one_engine))
        with statements(one_engine) as sent:
            do(jobs)
        seen.append(sent)
        assert said.count() == (jobs is asked_for and call in SPEAKING)
    default, without, with_notices = seen
    assert default == without
    assert not any("pg_notify" in statement for statement in default)
    added = [statement for statement in with_notices if "pg_notify" in statement]
    assert with_notices == default + added
    assert len(added) == (call in SPEAKING)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_the_asynchronous_face_says_the_same(
    url: URL, plain: Plain, said: Said, driver: str
) -> None:
    async def run() -> None:
        engine = create_async_engine(url.set(drivername=f"postgresql+{driver}"))
        jobs = AsyncJobRepository(engine, notify=True)
        await jobs.enqueue(EVENT, NOW, 1000)
        async with engine.begin() as connection:
            await jobs.within(connection).enqueue({"id": "job-2", "qty": 1}, NOW, 1000)
        ticket = await jobs.claim("me", NOW)
        assert ticket is not None
        await jobs.release(ticket)
        await engine.dispose()

    asyncio.run(run())
    assert said.count() == 3


def test_a_url_of_the_other_database_changes_nothing_else(tmp_path: Any) -> None:
    engine = create_engine(f"sqlite:///{make_file(tmp_path / 'queue.db')}")
    seen = []
    for notify in (False, True):
        jobs = JobRepository(engine, notify=notify)
        with statements(engine) as sent, Wakeup(jobs, listen=True) as wakeup:
            for name, call in CALLS.items():
                with engine.begin() as connection:
                    connection.exec_driver_sql("DELETE FROM jobs")
                call(jobs)(jobs)
                assert wakeup.wait(0) is False, name
        seen.append(sent)
    assert seen[0] == seen[1]
    engine.dispose()


# Who hears it


@pytest.fixture(params=DRIVERS)
def hearing(request: pytest.FixtureRequest, url: URL, plain: Plain) -> Iterator[JobRepository]:
    """A repository on a driver that can listen."""
    with connected(request.param, url) as engine:
        yield JobRepository(engine)


@contextmanager
def listening(jobs: JobRepository) -> Iterator[Wakeup]:
    """After the first wait, which has made the connection."""
    with Wakeup(jobs, listen=True) as wakeup:
        assert wakeup.wait(LONG_MS) is True
        assert wakeup.wait(0) is False
        yield wakeup


def until_it_listens(plain: Plain) -> int:
    give_up = time.monotonic() + LONGEST_WAIT_S
    while not (found := plain.execute(LISTENING).fetchall()):
        assert time.monotonic() < give_up, "nobody listens"
    ((pid,),) = found
    return int(pid)


@pytest.mark.parametrize("call", SPEAKING)
def test_a_wait_hears_what_another_connection_commits(
    hearing: JobRepository, one_engine: Engine, call: str
) -> None:
    do = CALLS[call](JobRepository(one_engine))
    with listening(hearing) as wakeup:
        do(JobRepository(one_engine, notify=True))
        assert wakeup.wait(LONG_MS) is True
        assert wakeup.wait(0) is False


def test_a_wait_that_has_begun_hears_it_too(
    hearing: JobRepository, one_engine: Engine, plain: Plain
) -> None:
    with listening(hearing) as wakeup, ThreadPoolExecutor(1) as threads:
        answer = threads.submit(wakeup.wait, LONG_MS)
        JobRepository(one_engine, notify=True).enqueue(EVENT, NOW, 1000)
        assert answer.result(LONGEST_WAIT_S) is True


def test_it_hears_through_any_engine_setting(engine: Engine, one_engine: Engine) -> None:
    with listening(JobRepository(engine)) as wakeup:
        JobRepository(engine, notify=True).enqueue(EVENT, NOW, 1000)
        assert wakeup.wait(LONG_MS) is True


def test_a_repository_on_a_borrowed_connection_can_be_waited_for(
    one_engine: Engine, plain: Plain
) -> None:
    with one_engine.connect() as connection, listening(JobRepository(connection)) as wakeup:
        assert not connection.in_transaction()
        JobRepository(connection, notify=True).enqueue(EVENT, NOW, 1000)
        assert wakeup.wait(LONG_MS) is True


def test_thousands_of_notices_are_one_hint(hearing: JobRepository, plain: Plain) -> None:
    channel = dialect._channel(hearing._bind, hearing._queue.tables[0])
    with listening(hearing) as wakeup:
        for number in range(3000):
            plain.execute("SELECT pg_notify(%s, %s)", [channel, str(number)])
        assert wakeup.wait(LONG_MS) is True


def test_listening_takes_nothing_from_the_pool_and_waits_for_nothing_of_it(
    url: URL, plain: Plain
) -> None:
    engine = create_engine(url, pool_size=1, max_overflow=0, pool_timeout=0)
    with engine.connect(), listening(JobRepository(engine)):
        pass
    with listening(JobRepository(engine)), engine.connect():
        until_it_listens(plain)
    engine.dispose()


def test_an_engine_whose_new_connections_have_begun_something_can_be_heard(
    one_engine: Engine, url: URL
) -> None:
    engine = create_engine(url)

    @event.listens_for(engine, "connect")
    def look(driver: Any, _: object) -> None:
        driver.cursor().execute("SELECT 1")

    with listening(JobRepository(engine)) as wakeup:
        JobRepository(one_engine, notify=True).enqueue(EVENT, NOW, 1000)
        assert wakeup.wait(LONG_MS) is True
    engine.dispose()


def test_closed_it_is_gone_from_the_server(hearing: JobRepository, plain: Plain) -> None:
    with listening(hearing):
        until_it_listens(plain)
    give_up = time.monotonic() + LONGEST_WAIT_S
    while plain.execute(LISTENING).fetchall():
        assert time.monotonic() < give_up, "it is still there"


def test_a_session_that_is_terminated_within_a_wait_is_replaced(
    hearing: JobRepository, one_engine: Engine, plain: Plain
) -> None:
    jobs = JobRepository(one_engine, notify=True)
    with listening(hearing) as wakeup, ThreadPoolExecutor(1) as threads:
        for number in range(3):
            first = until_it_listens(plain)
            answer = threads.submit(wakeup.wait, LONG_MS)
            plain.execute("SELECT pg_terminate_backend(%s, 30000)", [first])
            assert answer.result(LONGEST_WAIT_S) is True, "something may have been missed"
            assert until_it_listens(plain) != first
            jobs.enqueue({"id": f"job-{number}", "qty": 1}, NOW, 1000)
            assert wakeup.wait(LONG_MS) is True


def test_a_session_that_was_terminated_between_two_waits_is_replaced(
    hearing: JobRepository, plain: Plain
) -> None:
    with listening(hearing) as wakeup:
        first = until_it_listens(plain)
        plain.execute("SELECT pg_terminate_backend(%s, 30000)", [first])
        assert wakeup.wait(LONG_MS) is True
        assert until_it_listens(plain) != first


def test_a_server_that_takes_no_connection_is_polled_until_it_does(
    hearing: JobRepository, plain: Plain, postgresql: Server
) -> None:
    allow = f"ALTER DATABASE {hearing._bind.engine.url.database} ALLOW_CONNECTIONS"
    with listening(hearing) as wakeup, beside(postgresql.empty()) as elsewhere:
        elsewhere.execute(f"{allow} false".encode())
        try:
            plain.execute("SELECT pg_terminate_backend(%s, 30000)", [until_it_listens(plain)])
            assert wakeup.wait(300) is False
            assert wakeup.wait(300) is False
            wakeup.wake()
            assert wakeup.wait(LONG_MS) is True
        finally:
            elsewhere.execute(f"{allow} true".encode())
        assert wakeup.wait(LONG_MS) is True
        until_it_listens(plain)


# Which table


class Base(DeclarativeBase):
    metadata = MetaData()


class Letter(JobMixin, Base):
    __tablename__ = "letters"


class LetterRedrive(RedriveMixin, Base):
    __tablename__ = "letter_redrives"


class Longest(JobMixin, Base):
    __tablename__ = "j" * 60


class LongestRedrive(RedriveMixin, Base):
    __tablename__ = "r" * 60


class Odd(JobMixin, Base):
    __tablename__ = "Jöbs; 'and' more"


class OddRedrive(RedriveMixin, Base):
    __tablename__ = "Redrives; 'and' more"


MODELS: dict[str, tuple[type[JobMixin], type[RedriveMixin]]] = {
    "default": (Job, Redrive),
    "letters": (Letter, LetterRedrive),
    "longest": (Longest, LongestRedrive),
    "odd": (Odd, OddRedrive),
}


@pytest.fixture(scope="module")
def with_models(postgresql: Server) -> Iterator[Engine]:
    engine = create_engine(postgresql.empty())
    Base.metadata.create_all(engine)
    schema.upgrade(engine)
    yield engine
    engine.dispose()


@pytest.mark.parametrize("spoken", MODELS)
def test_only_those_who_wait_for_this_table_hear_it(with_models: Engine, spoken: str) -> None:
    def repository(name: str, **settings: Any) -> JobRepository:
        job, redrive = MODELS[name]
        return JobRepository(with_models, job=job, redrive=redrive, **settings)

    with (
        listening(repository("default")) as default,
        listening(repository("letters")) as letters,
        listening(repository("longest")) as longest,
        listening(repository("odd")) as odd,
    ):
        waiting = {"default": default, "letters": letters, "longest": longest, "odd": odd}
        repository(spoken, notify=True).enqueue({"id": f"job-{spoken}", "qty": 1}, NOW, 1000)
        assert waiting.pop(spoken).wait(LONG_MS) is True
        # Each has to get through what was said so far before it hears this.
        for name, other in waiting.items():
            assert other.wait(0) is False, name
            repository(name, notify=True).enqueue({"id": f"of-{spoken}", "qty": 1}, NOW, 1000)
            assert other.wait(LONG_MS) is True
            assert other.wait(0) is False, name


def test_a_schema_of_a_tenant_has_a_channel_of_its_own(postgresql: Server) -> None:
    base = create_engine(postgresql.fresh())
    tenants = [
        base.execution_options(schema_translate_map={None: name}) for name in ("north", "south")
    ]
    with base.begin() as connection:
        for name in ("north", "south"):
            connection.exec_driver_sql(f"CREATE SCHEMA {name}")
    for tenant in tenants:
        with tenant.begin() as connection:
            tables: list[Table] = list(Job.metadata.sorted_tables)
            Job.metadata.create_all(connection, tables, checkfirst=False)
    north, south = tenants
    with listening(JobRepository(north)) as here, listening(JobRepository(south)) as there:
        JobRepository(north, notify=True).enqueue(EVENT, NOW, 1000)
        assert here.wait(LONG_MS) is True
        assert there.wait(0) is False
        JobRepository(south, notify=True).enqueue(EVENT, NOW, 1000)
        assert there.wait(LONG_MS) is True
        assert there.wait(0) is False
    base.dispose()
