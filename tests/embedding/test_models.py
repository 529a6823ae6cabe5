"""Job models on the application's own Base: complete, finally named, and known to autogenerate."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata, produce_migrations, render_python_code
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import (
    JSON,
    Connection,
    Engine,
    ForeignKey,
    Index,
    MetaData,
    String,
    Table,
    create_engine,
    func,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, column_property, mapped_column
from sqlalchemy.schema import CreateSchema

import leasestore.autogenerate  # noqa: F401  # as an application's env.py has it
from leasestore import JobMixin, JobRepository, RedriveMixin, SchemaError
from leasestore.models import table_of
from tests.embedding import application

# SQLAlchemy and Alembic say of SQLite's indexes over expressions that they cannot compare them.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Skipped unsupported reflection of expression-based index"),
    pytest.mark.filterwarnings("ignore:autogenerate skipping metadata-specified expression-based"),
]

CONVENTION = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s_app",
    "ck": "ck_%(table_name)s_%(constraint_name)s_app",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s_app",
    "pk": "pk_%(table_name)s_app",
}


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=CONVENTION)


class Customer(Base):
    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(primary_key=True)


class Delivery(JobMixin, Base):
    __tablename__ = "deliveries"
    __table_args__ = (
        Index("ix_deliveries_carrier", "carrier"),
        {"info": {"owner": "logistics"}},
    )

    customer_id: Mapped[int] = mapped_column(ForeignKey("customers.id"))
    carrier: Mapped[str | None] = mapped_column(String(20), unique=True)


class DeliveryRedrive(RedriveMixin, Base):
    __tablename__ = "delivery_redrives"


class Invoice(JobMixin, Base):
    __tablename__ = "invoices"
    payload: Mapped[dict[str, Any] | None] = mapped_column(JSON)


class InvoiceRedrive(RedriveMixin, Base):
    __tablename__ = "invoice_redrives"


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """Of an empty database."""
    if request.param == "postgresql":
        engine = create_engine(request.getfixturevalue("postgresql").empty())
    else:
        engine = create_engine(f"sqlite:///{tmp_path}/models.db")
    yield engine
    engine.dispose()


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        yield connection


def differences(connection: Connection, metadata: MetaData) -> list[Any]:
    found: list[Any] = compare_metadata(MigrationContext.configure(connection), metadata)
    return found


@pytest.mark.parametrize("metadata", [Base.metadata, application.Base.metadata])
def test_what_autogenerate_writes_makes_the_models_and_leaves_no_difference(
    connection: Connection, metadata: MetaData
) -> None:
    context = MigrationContext.configure(connection)
    upgrade = produce_migrations(context, metadata).upgrade_ops
    assert upgrade is not None
    script = render_python_code(upgrade, render_as_batch=False)
    names: dict[str, Any] = {"op": Operations(context)}
    exec("import sqlalchemy as sa\n" + "\n".join(map(str.strip, script.splitlines())), names)
    assert differences(connection, metadata) == []
    assert "sqlite_autoincrement=True" in script


@pytest.mark.parametrize("metadata", [Base.metadata, application.Base.metadata])
def test_the_same_as_a_script_leaves_no_difference_either(
    connection: Connection, metadata: MetaData
) -> None:
    upgrade = produce_migrations(MigrationContext.configure(connection), metadata).upgrade_ops
    assert upgrade is not None
    written = io.StringIO()
    offline = MigrationContext.configure(
        dialect_name=connection.dialect.name, opts={"as_sql": True, "output_buffer": written}
    )
    for operation in upgrade.ops:
        _invoke(Operations(offline), operation)
    for statement in written.getvalue().split(";"):
        if statement.strip():
            connection.exec_driver_sql(statement)
    assert differences(connection, metadata) == []
    never_reused = {"sqlite": "AUTOINCREMENT", "postgresql": "BIGSERIAL"}
    assert never_reused[connection.dialect.name] in written.getvalue()


def _invoke(operations: Operations, operation: Any) -> None:
    for inner in getattr(operation, "ops", [operation]):
        operations.invoke(inner)


def test_created_by_the_models_there_is_no_difference_either(connection: Connection) -> None:
    Base.metadata.create_all(connection)
    assert differences(connection, Base.metadata) == []


@pytest.mark.parametrize("what", ["claim", "block", "deadline", "spent", "lease"])
def test_autogenerate_finds_the_index_that_is_missing(connection: Connection, what: str) -> None:
    Base.metadata.create_all(connection)
    connection.execute(text(f"DROP INDEX ix_deliveries_{what}"))
    ((verb, index),) = differences(connection, Base.metadata)
    assert (verb, index.name) == ("add_index", f"ix_deliveries_{what}")


def test_the_names_are_final_and_the_applications_stay_its_own(connection: Connection) -> None:
    Base.metadata.create_all(connection)
    inspector = inspect(connection)
    uniques = {rule["name"] for rule in inspector.get_unique_constraints("deliveries")}
    checks = {rule["name"] for rule in inspector.get_check_constraints("deliveries")}
    indexes = {
        index["name"]
        for index in inspector.get_indexes("deliveries")
        if "duplicates_constraint" not in index
    }
    assert uniques == {"uq_deliveries_id", "uq_deliveries_carrier_app"}
    assert checks == {"ck_deliveries_status"}
    assert {"ix_deliveries_carrier", "ix_deliveries_deadline"} <= indexes
    assert table_of(Delivery, JobMixin).info == {"owner": "logistics"}


def test_the_contracts_columns_come_first_and_in_order() -> None:
    names = Delivery.__table__.columns.keys()
    assert names[:12] == [
        "seq", "id", "qty", "status", "attempts", "max_attempts", "token", "available_at",
        "deadline", "owner", "lease_until", "reason",
    ]  # fmt: skip
    assert names[12:] == ["customer_id", "carrier"]


def test_two_queues_in_one_application_do_not_meet(engine: Engine) -> None:
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(Customer).values(id=1))
    deliveries = JobRepository(engine, job=Delivery, redrive=DeliveryRedrive)
    invoices = JobRepository(engine, job=Invoice, redrive=InvoiceRedrive)
    event: Any = {"id": "order-1", "qty": 1}
    deliveries.enqueue(event, 0, 1000, values={"customer_id": 1})
    assert invoices.claim("me", 0) is None
    invoices.enqueue(event, 0, 1000, values={"payload": {"total": 3}})
    assert deliveries.claim("me", 0) is not None
    assert invoices.claim("me", 0) is not None


# A schema of its own: on SQLite, an attached database.


def make_work(engine: Engine, tmp_path: Path) -> None:
    """Let the engine have a schema `work`."""
    if engine.dialect.name == "postgresql":
        with engine.begin() as connection:
            connection.execute(CreateSchema("work"))
        return

    @sqlalchemy.event.listens_for(engine, "connect")
    def attach(connection: Any, _: Any) -> None:
        connection.execute(f"ATTACH DATABASE '{tmp_path}/work.db' AS work")


def in_schema(schema: str) -> tuple[type[DeclarativeBase], Any, Any]:
    class Base(DeclarativeBase):
        metadata = MetaData(schema=schema)

    class Task(JobMixin, Base):
        __tablename__ = "tasks"

    class TaskRedrive(RedriveMixin, Base):
        __tablename__ = "task_redrives"

    return Base, Task, TaskRedrive


@pytest.mark.parametrize("translated", [False, True])
def test_a_schema_name_reaches_every_statement(
    engine: Engine, tmp_path: Path, translated: bool
) -> None:
    base, task, redrive = in_schema("per_tenant" if translated else "work")
    make_work(engine, tmp_path)
    bind = engine.execution_options(
        schema_translate_map={"per_tenant": "work"} if translated else {}
    )
    base.metadata.create_all(bind)
    jobs = JobRepository(bind, job=task, redrive=redrive)
    jobs.enqueue({"id": "a", "qty": 1}, 0, 1000)
    ticket = jobs.claim("me", 0)
    assert ticket is not None
    renewed = jobs.renew(ticket, 1, 2000)
    assert renewed is not None
    assert jobs.finish(renewed, "permanent", 2) == "dead"
    assert jobs.redrive("a", 3, 1000, "again")
    assert jobs.recover(5) == {"recovered": 0, "deadline": 0, "exhausted": 0}
    assert jobs.stuck(5) == []
    with bind.connect() as connection:
        names = inspect(connection).get_table_names(schema="work")
        assert sorted(names) == ["task_redrives", "tasks"]
        assert inspect(connection).get_table_names() == []
    base.metadata.drop_all(bind)
    with pytest.raises(SchemaError) as caught:
        jobs.claim("me", 6)
    schema = "per_tenant" if translated else "work"
    assert caught.value.missing == (f"{schema}.tasks", f"{schema}.task_redrives")


def named(table: str) -> tuple[type[DeclarativeBase], Any, Any]:
    class Base(DeclarativeBase):
        pass

    class Task(JobMixin, Base):
        __tablename__ = table
        order: Mapped[str | None] = mapped_column("Order", String(20))

    class TaskRedrive(RedriveMixin, Base):
        __tablename__ = f"{table} again"

    return Base, Task, TaskRedrive


def test_names_that_need_quoting_serve_beside_each_other(engine: Engine) -> None:
    queues = []
    for name in ("order", "Jobs q", "mail-2.out", "it's", 'say "go"'):
        base, task, redrive = named(name)
        base.metadata.create_all(engine)
        base.metadata.drop_all(engine)
        base.metadata.create_all(engine)
        queues.append(JobRepository(engine, job=task, redrive=redrive))
    for jobs in queues:
        assert jobs.claim("me", 0) is None
        assert jobs.enqueue({"id": "a", "qty": 1}, 0, 1000, values={"order": "first"})
        assert jobs.enqueue({"id": "a", "qty": 1}, 0, 1000) is False
        ticket = jobs.claim("me", 0)
        assert ticket is not None
        assert jobs.renew(ticket, 0) == ticket
        assert jobs.finish(ticket, "permanent", 1, values={"order": "last"}) == "dead"
        assert jobs.redrive("a", 2, 1000, "again")
        assert jobs.recover(2) == {"recovered": 0, "deadline": 0, "exhausted": 0}
        with Session(engine) as session, session.begin():
            assert jobs.within(session).claim("me", 3) is not None
    with engine.connect() as connection:
        for jobs in queues:
            (found,) = connection.execute(select(jobs._queue.own["order"])).scalars()
            assert found == "last"


class MakesTables:
    """As Flask-SQLAlchemy's base class does."""

    @classmethod
    def __table_cls__(cls, *args: Any, **settings: Any) -> Table:
        return Table(*args, **settings)


@pytest.mark.parametrize("mixin", [JobMixin, RedriveMixin])
def test_behind_a_base_that_makes_tables_the_mixin_is_refused_at_once(mixin: type) -> None:
    class Base(DeclarativeBase):
        pass

    class Tables(MakesTables, Base):
        __abstract__ = True

    with pytest.raises(ValueError, match=f"expected {mixin.__name__} as the first base class"):
        type("Task", (Tables, mixin), {"__tablename__": "tasks"})
    task = type("Work", (mixin, Tables), {"__tablename__": "works"})
    assert table_of(task, mixin).dialect_options["sqlite"]["autoincrement"]


def test_other_names_of_the_contracts_columns_are_not_the_applications(engine: Engine) -> None:
    class Base(DeclarativeBase):
        pass

    class Task(JobMixin, Base):
        __tablename__ = "tasks"
        note: Mapped[str | None]
        kind: Mapped[str | None]

        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "task"}  # noqa: RUF012

    class Urgent(Task):
        __mapper_args__ = {"polymorphic_identity": "urgent"}  # noqa: RUF012

    class Special(Task):
        __tablename__ = "special_tasks"
        seq: Mapped[int] = mapped_column(ForeignKey("tasks.seq"), primary_key=True)
        __mapper_args__ = {"polymorphic_identity": "special"}  # noqa: RUF012

    class TaskRedrive(RedriveMixin, Base):
        __tablename__ = "task_redrives"

    Task.state = column_property(table_of(Task, JobMixin).c.status)
    Task.loud = column_property(func.upper(table_of(Task, JobMixin).c.note))
    Base.metadata.create_all(engine)
    jobs = JobRepository(engine, job=Task, redrive=TaskRedrive)
    for name in ("state", "loud", "status"):
        with pytest.raises(ValueError, match=r"only the model's own columns \(kind, note\)"):
            jobs.enqueue({"id": "a", "qty": 1}, 0, 1000, values={name: "done"})
    assert table_of(Urgent, JobMixin) is table_of(Task, JobMixin)
    with pytest.raises(ValueError, match="give the repository the parent class"):
        JobRepository(engine, job=Special, redrive=TaskRedrive)
