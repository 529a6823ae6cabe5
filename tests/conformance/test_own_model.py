"""A job model of the application's own: its columns are written with the contract's, or not at
all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import JSON, Column, Engine, ForeignKey, String, create_engine, event, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from leasestore import (
    Conflict,
    JobMixin,
    JobRepository,
    RedriveMixin,
    Retryable,
    StuckJob,
    Watcher,
    run_once,
)
from tests.conformance.scene import Points
from tests.conformance.stores import bound, do_not_sync
from tests.support import make_file, rows


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customers"

    id: Mapped[int] = mapped_column(primary_key=True)


class Delivery(JobMixin, Base):
    __tablename__ = "deliveries"

    customer_id: Mapped[int] = mapped_column(ForeignKey("customers.id"))
    payload: Mapped[dict[str, Any]] = mapped_column(JSON)
    kind: Mapped[str] = mapped_column("type", String, default="parcel")
    result: Mapped[str | None]


class DeliveryRedrive(RedriveMixin, Base):
    __tablename__ = "delivery_redrives"


EVENT: Any = {"id": "a", "qty": 2}
VALUES: dict[str, Any] = {"customer_id": 7, "payload": {"to": ["Ghent", 9000, None]}}


def make_tables(path: Path) -> None:
    engine = do_not_sync(create_engine(f"sqlite:///{path}"))
    Base.metadata.create_all(engine)
    engine.dispose()


# The driver's mode makes no difference to the columns that a statement writes.
@pytest.fixture(params=[("default", "engine"), ("begin-recipe", "connection")], ids="-".join)
def deliveries(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JobRepository]:
    make_tables(tmp_path / "app.db")
    name, door = request.param
    with bound(name, door, tmp_path / "app.db") as bind:
        yield JobRepository(bind, job=Delivery, redrive=DeliveryRedrive)


@pytest.fixture
def one(tmp_path: Path) -> Iterator[JobRepository]:
    make_tables(tmp_path / "app.db")
    with bound("default", "engine", tmp_path / "app.db") as bind:
        yield JobRepository(bind, job=Delivery, redrive=DeliveryRedrive)


def stored(path: Path) -> dict[str, Any]:
    (row,) = rows(path / "app.db", "deliveries")
    return row


def test_own_values_are_stored_with_a_new_job(deliveries: JobRepository, tmp_path: Path) -> None:
    assert deliveries.enqueue(EVENT, 0, 1000, values=VALUES) is True
    row = stored(tmp_path)
    assert (row["id"], row["qty"], row["status"], row["customer_id"]) == ("a", 2, "pending", 7)
    assert (row["type"], row["result"]) == ("parcel", None)
    engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    with Session(engine) as session:
        delivery = session.scalars(select(Delivery)).one()
        assert (delivery.payload, delivery.kind) == ({"to": ["Ghent", 9000, None]}, "parcel")
    engine.dispose()


def test_own_values_are_written_with_a_finish(deliveries: JobRepository, tmp_path: Path) -> None:
    deliveries.enqueue(EVENT, 0, 1000, values=VALUES)
    ticket = deliveries.claim("me", 0)
    assert ticket is not None
    values = {"result": "left with a neighbour", "payload": {"to": "next door"}, "kind": "letter"}
    assert deliveries.finish(ticket, "ok", 1, values=values) == "done"
    row = stored(tmp_path)
    assert (row["result"], row["type"]) == ("left with a neighbour", "letter")
    assert row["payload"] == '{"to": "next door"}'
    assert row["customer_id"] == 7


def test_a_stale_finish_writes_no_value(deliveries: JobRepository, tmp_path: Path) -> None:
    deliveries.enqueue(EVENT, 0, 5000, values=VALUES)
    stale = deliveries.claim("me", 0, 100)
    assert deliveries.claim("you", 100) is not None
    assert stale is not None
    before = stored(tmp_path)
    for now in (99, 150):
        assert deliveries.finish(stale, "ok", now, values={"result": "stale"}) is False
    assert stored(tmp_path) == before


def test_a_finish_undone_writes_no_value(deliveries: JobRepository, tmp_path: Path) -> None:
    deliveries.enqueue(EVENT, 0, 5000, values=VALUES)
    ticket = deliveries.claim("me", 0)
    assert ticket is not None
    before = stored(tmp_path)
    fault = Points("after-finish", RuntimeError("made up"))
    with pytest.raises(RuntimeError):
        deliveries.finish(ticket, "ok", 1, fault=fault, values={"result": "undone"})
    assert stored(tmp_path) == before


def test_a_duplicate_keeps_the_values_it_has(deliveries: JobRepository, tmp_path: Path) -> None:
    deliveries.enqueue(EVENT, 0, 1000, values=VALUES)
    before = stored(tmp_path)
    assert deliveries.enqueue(EVENT, 0, 1000, values={**VALUES, "customer_id": 8}) is False
    with pytest.raises(Conflict):
        deliveries.enqueue({"id": "a", "qty": 3}, 0, 1000, values=VALUES)
    assert stored(tmp_path) == before


def test_a_watcher_watches_the_applications_tables(
    deliveries: JobRepository, tmp_path: Path
) -> None:
    deliveries.enqueue(EVENT, 0, 5000, values=VALUES)
    deliveries.claim("gone", 0)
    told: list[StuckJob] = []
    assert Watcher(deliveries, lambda: 1000, report=told.append).look()["recovered"] == 1
    assert [(job["id"], job["qty"], job["owner"]) for job in told] == [("a", 2, "gone")]
    row = stored(tmp_path)
    assert (row["status"], row["customer_id"]) == ("pending", 7)


def test_each_of_a_batch_has_values_of_its_own(deliveries: JobRepository, tmp_path: Path) -> None:
    events: list[Any] = [{"id": name, "qty": 1} for name in ("a", "b", "a", "c", "d")]
    values = [
        VALUES,
        {"payload": {"to": "Bruges"}, "customer_id": 8},
        {**VALUES, "customer_id": 9},
        {**VALUES, "kind": "letter"},
        {"customer_id": 3, "payload": None, "kind": "crate", "result": "early"},
    ]
    before = [{**each} for each in values]
    answers = deliveries.enqueue_many(events, 0, 1000, values=values)
    assert answers == [True, True, False, True, True]
    assert values == before
    found = rows(tmp_path / "app.db", "deliveries")
    columns = ("seq", "id", "customer_id", "type", "payload", "result")
    assert [tuple(row[name] for name in columns) for row in found] == [
        (1, "a", 7, "parcel", '{"to": ["Ghent", 9000, null]}', None),
        (2, "b", 8, "parcel", '{"to": "Bruges"}', None),
        (3, "c", 7, "letter", '{"to": ["Ghent", 9000, null]}', None),
        (4, "d", 3, "crate", "null", "early"),
    ]


def test_a_batch_works_on_the_applications_tables(deliveries: JobRepository) -> None:
    events: list[Any] = [{"id": name, "qty": 1} for name in ("a", "b")]
    deliveries.enqueue_many(events[:1], 0, 5000, values=[VALUES])
    assert deliveries.enqueue_many(events, 0, 5000, values=[VALUES] * 2) == [False, True]
    tickets = deliveries.claim_batch("me", 0, 5)
    renewed = [one for one in deliveries.renew_batch(tickets, 1) if one]
    assert len(renewed) == 2
    assert deliveries.finish_batch([(one, "ok", 0) for one in renewed], 2) == ["done", "done"]


def test_a_claim_of_the_next_writes_the_values_of_the_one_before(
    deliveries: JobRepository, tmp_path: Path
) -> None:
    deliveries.enqueue(EVENT, 0, 5000, values=VALUES)
    ticket = deliveries.claim("me", 0)
    assert ticket is not None
    values = {"result": "signed"}
    assert deliveries.finish_and_claim(ticket, "ok", "me", 1, values=values) == ("done", None)
    assert stored(tmp_path)["result"] == "signed"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([VALUES], r"values: expected one dict for each event \(2\), got 1"),
        ([VALUES] * 3, r"values: expected one dict for each event \(2\), got 3"),
        (VALUES, r"values: expected list or tuple"),
        ([VALUES, {"token": 9}], r"values\[1\]: values: expected only the model's own columns"),
        ([VALUES, 7], r"values\[1\]: values: expected a dict"),
    ],
)
def test_a_batch_wants_values_for_each(
    one: JobRepository, tmp_path: Path, values: Any, expected: str
) -> None:
    events: list[Any] = [{"id": name, "qty": 1} for name in ("a", "b")]
    with pytest.raises(ValueError, match=expected):
        one.enqueue_many(events, 0, 1000, values=values)
    assert rows(tmp_path / "app.db", "deliveries") == []


def test_every_verb_works_on_the_applications_tables(
    deliveries: JobRepository, tmp_path: Path
) -> None:
    deliveries.enqueue(EVENT, 0, 5000, 2, values=VALUES)
    ticket = deliveries.claim("me", 0, job_id="a")
    assert ticket is not None
    assert deliveries.release(ticket)
    ticket = deliveries.claim("me", 1)
    assert ticket is not None
    renewed = deliveries.renew(ticket, 2)
    assert renewed is not None
    assert deliveries.stuck(renewed["lease_until"])[0]["id"] == "a"
    assert deliveries.recover(renewed["lease_until"])["recovered"] == 1
    ticket = deliveries.claim("me", 2000)
    assert ticket is not None
    assert deliveries.finish(ticket, "retry", 2001) == "dead"
    assert deliveries.redrive("a", 2002, 1000, "by-hand")
    (audit,) = rows(tmp_path / "app.db", "delivery_redrives")
    assert (audit["id"], audit["token"], audit["at_ms"]) == ("a", 3, 2002)
    assert stored(tmp_path)["customer_id"] == 7


def test_get_answers_the_contracts_columns_only(one: JobRepository) -> None:
    one.enqueue(EVENT, 0, 1000, values=VALUES)
    row: Any = one.get("a")
    assert len(row) == 12
    assert "payload" not in row


OWNED = ["seq", "id", "qty", "status", "attempts", "max_attempts", "token", "available_at"]
OWNED += ["deadline", "owner", "lease_until", "reason"]
BAD: dict[str, Any] = {
    **{f"owned-{name}": {name: 1} for name in OWNED},
    "unknown": {"colour": "red"},
    "by-column-instead-of-attribute": {"type": "letter"},
    "no-name": {None: 1},
    "number": {1: 1},
    "among-good-ones": {**VALUES, "token": 9},
    "list": [("customer_id", 7)],
    "text": "customer_id",
    "int": 7,
    "bool": True,
}


@pytest.mark.parametrize("case", BAD)
def test_values_may_set_own_columns_only(one: JobRepository, tmp_path: Path, case: str) -> None:
    one.enqueue(EVENT, 0, 1000, values=VALUES)
    ticket = one.claim("me", 0)
    assert ticket is not None
    before = stored(tmp_path)
    sent: list[str] = []
    assert isinstance(one._bind, Engine)
    event.listen(one._bind, "before_cursor_execute", lambda *given: sent.append(given[2]))
    with pytest.raises(ValueError, match="values: expected"):
        one.enqueue({"id": "b", "qty": 1}, 0, 1000, values=BAD[case])
    with pytest.raises(ValueError, match="values: expected"):
        one.finish(ticket, "ok", 1, values=BAD[case])
    assert sent == []
    assert stored(tmp_path) == before


def test_an_error_about_values_names_the_columns_there_are(one: JobRepository) -> None:
    with pytest.raises(ValueError, match=r"customer_id, kind, payload, result.*'colour'"):
        one.enqueue(EVENT, 0, 1000, values={"colour": "red"})


def test_the_default_model_has_no_columns_of_its_own(tmp_path: Path) -> None:
    with bound("default", "engine", make_file(tmp_path / "queue.db")) as bind:
        repository = JobRepository(bind)
        assert repository.enqueue(EVENT, 0, 1000, values={}) is True
        with pytest.raises(ValueError, match=r"values.*JobMixin"):
            repository.enqueue({"id": "b", "qty": 1}, 0, 1000, values={"colour": "red"})


def test_values_are_not_modified(one: JobRepository) -> None:
    values = {**VALUES}
    one.enqueue(EVENT, 0, 1000, values=values)
    assert values == VALUES


def test_a_value_that_the_table_refuses_is_its_error_and_changes_nothing(
    one: JobRepository, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="customer_id"):
        one.enqueue(EVENT, 0, 1000, values={"payload": {}})
    assert rows(tmp_path / "app.db", "deliveries") == []
    assert one.enqueue(EVENT, 0, 1000, values=VALUES) is True


def test_a_foreign_key_holds(tmp_path: Path) -> None:
    make_tables(tmp_path / "app.db")
    engine = do_not_sync(create_engine(f"sqlite:///{tmp_path / 'app.db'}"))
    event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
    repository = JobRepository(engine, job=Delivery, redrive=DeliveryRedrive)
    with pytest.raises(Exception, match="FOREIGN KEY"):
        repository.enqueue(EVENT, 0, 1000, values=VALUES)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO customers VALUES (7)"))
    assert repository.enqueue(EVENT, 0, 1000, values=VALUES) is True
    engine.dispose()


def test_two_queues_in_one_database_do_not_mix(tmp_path: Path) -> None:
    path = make_file(tmp_path / "app.db")
    make_tables(path)
    with bound("default", "engine", path) as bind:
        plain = JobRepository(bind)
        own = JobRepository(bind, job=Delivery, redrive=DeliveryRedrive)
        plain.enqueue({"id": "a", "qty": 1}, 0, 1000)
        assert own.claim("me", 0) is None
        assert own.enqueue({"id": "a", "qty": 9}, 0, 1000, values=VALUES) is True
        ticket = own.claim("me", 0)
        assert ticket is not None
        assert ticket["qty"] == 9
        row = plain.get("a")
        assert row is not None
        assert row["status"] == "pending"


def test_own_columns_called_as_the_words_of_the_statements(tmp_path: Path) -> None:
    class Other(DeclarativeBase):
        pass

    class Awkward(JobMixin, Other):
        __tablename__ = "select"

        now: Mapped[int]
        until: Mapped[int]
        again: Mapped[int]
        limit: Mapped[int]
        order: Mapped[int]

    class AwkwardRedrive(RedriveMixin, Other):
        __tablename__ = "where"

    engine = do_not_sync(create_engine(f"sqlite:///{tmp_path / 'app.db'}"))
    Other.metadata.create_all(engine)
    repository = JobRepository(engine, job=Awkward, redrive=AwkwardRedrive)
    names = ("now", "until", "again", "limit", "order")
    values = {name: number for number, name in enumerate(names, 1)}
    repository.enqueue(EVENT, 0, 1000, values=values)
    ticket = repository.claim("me", 0)
    assert ticket is not None
    changed = {name: number * 10 for name, number in values.items()}
    assert repository.finish(ticket, "retry", 5, 6, values=changed) == "pending"
    (row,) = rows(tmp_path / "app.db", '"select"')
    assert (row["available_at"], row["deadline"]) == (11, 1000)
    assert [row[name] for name in names] == [*range(10, 60, 10)]
    engine.dispose()


def test_run_once_works_on_an_own_model(one: JobRepository) -> None:
    one.enqueue(EVENT, 0, 5000, values=VALUES)

    def send(event: Any) -> bool:
        assert event == EVENT
        raise Retryable

    assert run_once(one, "me", lambda: 0, send, 1) == {
        "id": "a",
        "token": 1,
        "status": "pending",
    }


class Plain(Base):
    __tablename__ = "plain"

    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.parametrize(
    ("models", "mixin"),
    [
        ({"job": Plain}, "JobMixin"),
        ({"job": DeliveryRedrive}, "JobMixin"),
        ({"job": JobMixin}, "JobMixin"),
        ({"job": None}, "JobMixin"),
        ({"job": Delivery.__table__}, "JobMixin"),
        ({"job": "jobs"}, "JobMixin"),
        ({"redrive": Plain}, "RedriveMixin"),
        ({"redrive": Delivery}, "RedriveMixin"),
        ({"redrive": Column("id")}, "RedriveMixin"),
    ],
)
def test_models_without_the_mixins_are_refused(
    tmp_path: Path, models: dict[str, Any], mixin: str
) -> None:
    with (
        bound("default", "engine", tmp_path / "app.db") as bind,
        pytest.raises(ValueError, match=rf"with {mixin}"),
    ):
        JobRepository(bind, **models)


def test_a_queue_is_a_pair_of_tables() -> None:
    pairs: list[dict[str, Any]] = [{"job": Delivery}, {"redrive": DeliveryRedrive}]
    for pair in pairs:
        with pytest.raises(ValueError, match="expected a pair of your own models or neither"):
            JobRepository(create_engine("sqlite://"), **pair)
