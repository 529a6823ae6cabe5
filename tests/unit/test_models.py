"""The two tables as models, and the models of an application's own on the same mixins."""

from __future__ import annotations

import pickle
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import Any

import pytest
from alembic.autogenerate import render_python_code
from alembic.operations.ops import CreateIndexOp, UpgradeOps
from sqlalchemy import CheckConstraint, Index, MetaData, Table, UniqueConstraint
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.schema import CreateIndex, CreateTable

from leasestore import Job, JobMixin, Redrive, RedriveMixin
from leasestore.models import own_columns, table_of
from tests.support import CONTRACT_DDL

CONTRACTS_INDEXES = ("claim", "block", "deadline", "spent", "lease")
MODELS: list[type[Any]] = [Job, Redrive]


def indexes_of(table: str) -> set[str]:
    return {f"ix_{table}_{what}" for what in CONTRACTS_INDEXES}


class Base(DeclarativeBase):
    pass


class Delivery(JobMixin, Base):
    __tablename__ = "deliveries"

    customer_id: Mapped[int]
    kind: Mapped[str] = mapped_column("type")


class DeliveryRedrive(RedriveMixin, Base):
    __tablename__ = "delivery_redrives"


Index("ix_deliveries_customer", Delivery.customer_id)


class Unrelated(Base):
    __tablename__ = "unrelated"

    id: Mapped[int] = mapped_column(primary_key=True)


def create(model: type[Any], dialect: Any = None) -> str:
    return str(CreateTable(model.__table__).compile(dialect=dialect or sqlite.dialect()))


def create_index(index: Index, dialect: Any) -> str:
    return str(CreateIndex(index).compile(dialect=dialect))


def described(ddl: str) -> dict[str, Any]:
    """What SQLite makes of it: columns with type, NOT NULL, default, key; and AUTOINCREMENT."""
    with closing(sqlite3.connect(":memory:")) as plain:
        plain.executescript(ddl)
        tables = [
            name
            for (name,) in plain.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            if name != "sqlite_sequence"
        ]
        return {
            name: (
                plain.execute(f"PRAGMA table_info({name})").fetchall(),
                [row[2:] for row in plain.execute(f"PRAGMA index_list({name})")],
                "AUTOINCREMENT"
                in plain.execute(
                    "SELECT sql FROM sqlite_schema WHERE name = ?", (name,)
                ).fetchone()[0],
            )
            for name in tables
        }


def test_the_default_models_are_the_contracts_tables_on_sqlite() -> None:
    assert described(";".join(map(create, MODELS))) == described(CONTRACT_DDL)


def test_times_and_tokens_have_64_bits_elsewhere() -> None:
    ddl = create(Job, postgresql.dialect())  # type: ignore[no-untyped-call]
    for name in ("token", "available_at", "deadline", "lease_until"):
        assert f"{name} BIGINT" in ddl
    assert "seq BIGSERIAL" in ddl
    assert "at_ms BIGINT" in create(Redrive, postgresql.dialect())  # type: ignore[no-untyped-call]


def test_an_own_model_has_the_contracts_columns_first_and_in_order() -> None:
    names = [column.name for column in table_of(Delivery, JobMixin).c]
    assert names == [*Job.__table__.c.keys(), "customer_id", "type"]
    audit = [column.name for column in table_of(DeliveryRedrive, RedriveMixin).c]
    assert audit == Redrive.__table__.c.keys()


def test_an_own_model_keeps_the_contracts_constraints() -> None:
    table = table_of(Delivery, JobMixin)
    kinds = {type(constraint): constraint.name for constraint in table.constraints}
    assert kinds[UniqueConstraint] == "uq_deliveries_id"
    assert kinds[CheckConstraint] == "ck_deliveries_status"
    assert "AUTOINCREMENT" in create(Delivery)
    assert "AUTOINCREMENT" in create(DeliveryRedrive)


def test_names_do_not_depend_on_a_naming_convention() -> None:
    class Named(DeclarativeBase):
        metadata = MetaData(
            naming_convention={
                "uq": "unique_%(table_name)s_%(column_0_name)s",
                "ck": "check_%(table_name)s_%(constraint_name)s",
            }
        )

    class Parcel(JobMixin, Named):
        __tablename__ = "parcels"

    ddl = create(Parcel)
    assert "CONSTRAINT uq_parcels_id UNIQUE" in ddl
    assert "CONSTRAINT ck_parcels_status CHECK" in ddl


def test_a_key_of_an_own_model_is_not_null() -> None:
    assert Delivery.__table__.c.seq.nullable is False


def test_own_columns_are_those_that_the_contract_does_not_have() -> None:
    own = own_columns(Delivery)
    assert {name: column.name for name, column in own.items()} == {
        "customer_id": "customer_id",
        "kind": "type",
    }
    assert own_columns(Job) == {}


@pytest.mark.parametrize("mixin", [JobMixin, RedriveMixin])
@pytest.mark.parametrize(
    "model",
    [
        Unrelated,
        JobMixin,
        RedriveMixin,
        Base,
        dict,
        None,
        "jobs",
        1,
        Delivery.__table__,
        Delivery(),
        object(),
    ],
)
def test_what_is_no_mapped_class_of_the_mixin_is_refused(model: Any, mixin: type[Any]) -> None:
    with pytest.raises(ValueError, match=f"expected a mapped class with {mixin.__name__}, got"):
        table_of(model, mixin)


def test_the_two_kinds_are_not_taken_for_each_other() -> None:
    with pytest.raises(ValueError, match="with RedriveMixin, got"):
        table_of(Delivery, RedriveMixin)
    with pytest.raises(ValueError, match="with JobMixin, got"):
        table_of(DeliveryRedrive, JobMixin)


def test_table_arguments_of_an_own_model_are_kept_beside_the_contracts() -> None:
    class Own(DeclarativeBase):
        pass

    class Parcel(JobMixin, Own):
        __tablename__ = "parcels"
        __table_args__ = (
            UniqueConstraint("label", name="uq_label"),
            Index("ix_label", "label"),
            {"comment": "parcels", "sqlite_autoincrement": False},
        )

        label: Mapped[str]

    class ParcelRedrive(RedriveMixin, Own):
        __tablename__ = "parcel_redrives"
        __table_args__ = ({"comment": "audit"},)

    table = table_of(Parcel, JobMixin)
    names = {constraint.name for constraint in table.constraints}
    assert {"uq_label", "uq_parcels_id", "ck_parcels_status"} <= names
    assert {index.name for index in table.indexes} == {"ix_label", *indexes_of("parcels")}
    assert table.comment == "parcels"
    assert table_of(ParcelRedrive, RedriveMixin).comment == "audit"
    for model in (Parcel, ParcelRedrive):
        assert "AUTOINCREMENT" in create(model)


@pytest.mark.parametrize("mixin", [JobMixin, RedriveMixin])
def test_a_table_that_the_mixin_did_not_make_is_refused(mixin: type[Any]) -> None:
    class Own(DeclarativeBase):
        pass

    class Otherwise(mixin, Own):  # type: ignore[misc]
        __tablename__ = "otherwise"

        @classmethod
        def __table_cls__(cls, name: str, *args: Any, **settings: Any) -> Table:
            return Table(name, *args, **settings)

    with pytest.raises(ValueError, match=f"Otherwise: expected the table that {mixin.__name__}"):
        table_of(Otherwise, mixin)


def test_an_index_declared_after_the_class_is_right() -> None:
    indexes = {index.name for index in table_of(Delivery, JobMixin).indexes}
    assert indexes == {"ix_deliveries_customer", *indexes_of("deliveries")}


DIALECTS: list[Any] = [sqlite.dialect(), postgresql.dialect()]  # type: ignore[no-untyped-call]
COPIES: dict[str, Any] = {
    "the model's": lambda: Job.__table__,
    "to_metadata": lambda: Job.__table__.to_metadata(MetaData()),  # type: ignore[attr-defined]
    "pickled": lambda: pickle.loads(pickle.dumps(Job.metadata)).tables["jobs"],
}
CONDITIONS = {"sqlite_where", "postgresql_where"}


@pytest.mark.parametrize("copy", COPIES)
def test_the_indexes_have_their_conditions_on_both_databases(copy: str) -> None:
    indexes = COPIES[copy]().indexes
    assert {index.name for index in indexes} == indexes_of("jobs")
    for index in indexes:
        assert set(index.kwargs) == set(dict(index.dialect_kwargs)) == CONDITIONS
        assert len(index.dialect_kwargs) == 2
        for dialect in DIALECTS:
            assert " WHERE status " in create_index(index, dialect)
        script = render_python_code(UpgradeOps([CreateIndexOp.from_index(index)]))
        assert "sqlite_where=sa.text" in script
        assert "postgresql_where=sa.text" in script


def test_options_of_an_index_are_as_those_of_any_other() -> None:
    model: Any = type(
        "Kept",
        (JobMixin, type("OtherBase", (DeclarativeBase,), {})),
        {"__tablename__": "kept", "__module__": __name__},
    )
    claim = next(index for index in model.__table__.indexes if index.name == "ix_kept_claim")
    options = claim.dialect_options
    assert list(options) == ["sqlite", "postgresql"]
    assert len(options) == 2
    assert "postgresql" in options
    assert "mysql" not in options
    assert options["mysql"]["length"] is None
    assert "mysql" in claim.dialect_options

    on_sqlite, on_postgresql = DIALECTS
    claim.dialect_kwargs["postgresql_where"] = claim.table.c.qty == 0
    claim.dialect_kwargs["postgresql_concurrently"] = True
    made = create_index(claim, on_postgresql)
    assert made.startswith("CREATE INDEX CONCURRENTLY")
    assert made.endswith("WHERE qty = 0")
    assert "WHERE status" in create_index(claim, on_sqlite)


def test_whoever_asks_for_options_first_finds_the_condition() -> None:
    """In a fresh process, since asking is what makes them."""
    code = (
        "import sys, leasestore; index = next(iter(leasestore.Job.__table__.indexes)); "
        "assert 'sqlalchemy.dialects.postgresql' not in sys.modules; "
        "assert index.dialect_options['sqlite']['where'] is not None; "
        "assert 'sqlalchemy.dialects.postgresql' not in sys.modules; "
        "assert index.dialect_options['postgresql']['where'] is not None; "
        "assert 'sqlalchemy.dialects.postgresql' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
