"""The two tables, declaratively: `Job` and `Redrive` are the contract's tables to the column;
`JobMixin` and `RedriveMixin` carry the same columns into an application's own models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ColumnElement,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    and_,
    func,
    inspect,
    literal_column,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Mapper, mapped_column
from sqlalchemy.sql.elements import Grouping, conv

from leasestore.tickets import JobState

# 64 bits for times and tokens everywhere; SQLite's AUTOINCREMENT wants the word INTEGER.
_Long = BigInteger().with_variant(Integer(), "sqlite")
_NEVER_REUSED = {"sqlite_autoincrement": True}
_STATUS_RULE = "status IN ('pending','leased','done','dead')"
_CONTRACTS = "leasestore"
BLOCK_BITS = 10
"""Jobs are in one block if their `seq` differs in its last bits only: 1024 to a block."""


class Terms:
    """What the indexes are over, in the words that the statements have to repeat to the letter.

    Of what is leased, `lease_until` is never NULL, and never later than the deadline; of what is
    pending it is always NULL.

    Attributes:
        open: neither done nor dead.
        leased: somebody has it, in time or not.
        spent: it had all its attempts.
        order: the order of claims. An expression, so that no planner takes the primary key
            instead and walks through everything that is done.
        block: which block of jobs it is in.
        claimable_at: from when on a claim may take an open job.
        free_at: from when on nobody has an open job; 0 if nobody has it now.
    """

    def __init__(self, column: Mapping[str, Column[Any]]) -> None:
        status, seq, lease_until = column["status"], column["seq"], column["lease_until"]
        self.open = status.in_((word("pending"), word("leased")))
        self.leased = status == word("leased")
        self.spent = column["attempts"] >= column["max_attempts"]
        # Grouped, so that what autogenerate writes on one database is right on the other as well.
        self.order = Grouping(seq + literal_column("0"))
        self.block = Grouping(seq.bitwise_rshift(literal_column(str(BLOCK_BITS))))
        self.claimable_at = func.coalesce(lease_until, column["available_at"])
        self.free_at = func.coalesce(lease_until, literal_column("0"))


def word(text: str) -> ColumnElement[str]:
    """Part of the SQL text: a partial index serves only a predicate that is written out."""
    return literal_column(f"'{text}'", Text)


def _indexes(name: str, column: Mapping[str, Column[Any]]) -> list[Index]:
    """Over open jobs only, so that what is done or dead costs nothing."""
    terms = Terms(column)
    return [
        _PartialIndex(conv(f"ix_{name}_{what}"), *over, where=where)
        for what, where, over in (
            ("claim", terms.open, (terms.order, terms.claimable_at)),
            ("block", terms.open, (terms.block, terms.claimable_at)),
            ("deadline", terms.open, (column["deadline"],)),
            ("spent", and_(terms.open, terms.spent), (terms.free_at,)),
            ("lease", terms.leased, (column["lease_until"], column["seq"])),
        )
    ]


def _refuse_other_table_maker(model: type, mixin: type) -> None:
    """Some bases, as Flask-SQLAlchemy's, make tables too; then the mixin has to come first."""
    maker = next(base for base in model.__mro__ if "__table_cls__" in vars(base))
    if not issubclass(maker, mixin):
        raise ValueError(
            f"{model.__name__}: expected {mixin.__name__} as the first base class, got one behind "
            f"{maker.__name__}, which makes tables without the constraints of {mixin.__name__}"
        )


class _Options(Mapping[str, Any]):
    """An index's options by database, each with the condition as soon as somebody asks for it.

    To have options SQLAlchemy imports the database's whole dialect, which for PostgreSQL takes a
    sixth as long as the rest of it; who works on the other database need not wait for that.
    """

    _PARTIAL = "sqlite", "postgresql"

    def __init__(self, options: Mapping[str, Any], where: ColumnElement[bool]) -> None:
        self._options, self._where = options, where

    def __getitem__(self, database: str) -> Any:
        options = self._options[database]
        if database in self._PARTIAL and options["where"] is None:
            options["where"] = self._where
        return options

    def _databases(self) -> list[str]:
        return list(dict.fromkeys((*self._PARTIAL, *self._options)))

    def __iter__(self) -> Iterator[str]:
        return iter(self._databases())

    def __contains__(self, database: object) -> bool:
        return database in self._databases()

    def __len__(self) -> int:
        return len(self._databases())


class _PartialIndex(Index):
    """With `sqlite_where` and `postgresql_where`, which cost nothing until they are looked at."""

    def __init__(self, name: str, *over: ColumnElement[Any], where: ColumnElement[bool]) -> None:
        self._own_options = _Options(super().dialect_options, where)
        super().__init__(name, *over, info={_CONTRACTS: True})

    @property
    def dialect_options(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._own_options


class JobMixin:
    """The contract's twelve columns (CONTRACT.md, "Schema"), for a job model on any `Base`.

        class Shipment(JobMixin, Base):
            __tablename__ = "shipments"
            customer_id: Mapped[int] = mapped_column(ForeignKey("customers.id"))

    All times are milliseconds. The columns belong to leasestore: read them in any query, write
    them through a repository only.
    """

    if TYPE_CHECKING:
        # Seen by SQLAlchemy, it would make a table of every subclass that inherits one.
        __tablename__: str

    def __init_subclass__(cls, **settings: Any) -> None:
        _refuse_other_table_maker(cls, JobMixin)
        super().__init_subclass__(**settings)

    seq: Mapped[int] = mapped_column(_Long, primary_key=True, sort_order=-12)
    id: Mapped[str] = mapped_column(Text, sort_order=-11)
    qty: Mapped[int] = mapped_column(Integer, sort_order=-10)
    status: Mapped[str] = mapped_column(Text, sort_order=-9)
    attempts: Mapped[int] = mapped_column(Integer, sort_order=-8)
    max_attempts: Mapped[int] = mapped_column(Integer, sort_order=-7)
    token: Mapped[int] = mapped_column(_Long, sort_order=-6)
    available_at: Mapped[int] = mapped_column(_Long, sort_order=-5)
    deadline: Mapped[int] = mapped_column(_Long, sort_order=-4)
    owner: Mapped[str | None] = mapped_column(Text, sort_order=-3)
    lease_until: Mapped[int | None] = mapped_column(_Long, sort_order=-2)
    reason: Mapped[str | None] = mapped_column(Text, sort_order=-1)

    @classmethod
    def __table_cls__(cls, name: str, *args: Any, **settings: Any) -> Table:
        """Adds the contract's constraints to whatever `__table_args__` the model has."""
        columns = {arg.name: arg for arg in args if isinstance(arg, Column)}
        if "id" not in columns:
            # A subclass with a table joined to its parent's, which has the contract's columns.
            return Table(name, *args, **settings)
        # conv: these names are final, whatever naming convention the MetaData has.
        unique = UniqueConstraint("id", name=conv(f"uq_{name}_id"))
        check = CheckConstraint(_STATUS_RULE, name=conv(f"ck_{name}_status"))
        rules = unique, check, *_indexes(name, columns)
        return Table(name, *args, *rules, **{**settings, **_NEVER_REUSED})


class RedriveMixin:
    """The audit of redrives (CONTRACT.md, "redrive"): one row each, never changed."""

    if TYPE_CHECKING:
        # Seen by SQLAlchemy, it would make a table of every subclass that inherits one.
        __tablename__: str

    def __init_subclass__(cls, **settings: Any) -> None:
        _refuse_other_table_maker(cls, RedriveMixin)
        super().__init_subclass__(**settings)

    seq: Mapped[int] = mapped_column(_Long, primary_key=True, sort_order=-5)
    id: Mapped[str] = mapped_column(Text, sort_order=-4)
    token: Mapped[int] = mapped_column(_Long, sort_order=-3)
    at_ms: Mapped[int] = mapped_column(_Long, sort_order=-2)
    note: Mapped[str] = mapped_column(Text, sort_order=-1)

    @classmethod
    def __table_cls__(cls, name: str, *args: Any, **settings: Any) -> Table:
        return Table(name, *args, **{**settings, **_NEVER_REUSED})


class Base(DeclarativeBase):
    """Of the default models only: leasestore's own MetaData."""

    metadata = MetaData()


class Job(JobMixin, Base):
    """The default job table, `jobs`."""

    __tablename__ = "jobs"

    # To the letter, so that a file made by plain code differs in nothing: the contract's
    # constraints have no names, and its `seq INTEGER PRIMARY KEY` no NOT NULL.
    seq: Mapped[int] = mapped_column(_Long, primary_key=True, nullable=True, sort_order=-12)

    @classmethod
    def __table_cls__(cls, name: str, *args: Any, **settings: Any) -> Table:
        columns = {arg.name: arg for arg in args if isinstance(arg, Column)}
        rules = UniqueConstraint("id"), CheckConstraint(_STATUS_RULE), *_indexes(name, columns)
        return Table(name, *args, *rules, **{**settings, **_NEVER_REUSED})


class Redrive(RedriveMixin, Base):
    """The default audit table, `redrives`."""

    __tablename__ = "redrives"

    seq: Mapped[int] = mapped_column(_Long, primary_key=True, nullable=True, sort_order=-5)


def contracts_indexes(table: Table) -> list[Index]:
    """Those of a table's indexes that came with `JobMixin`."""
    return [index for index in table.indexes if index.info.get(_CONTRACTS)]


def table_of(model: object, mixin: type[Any]) -> Table:
    """The table of a mapped class that keeps what its mixin declares."""
    mapper = inspect(model, raiseerr=False)
    if not isinstance(mapper, Mapper) or not issubclass(mapper.class_, mixin):
        raise ValueError(f"expected a mapped class with {mixin.__name__}, got {model!r}")
    name, table = mapper.class_.__name__, mapper.local_table
    assert isinstance(table, Table)
    if not {"seq", "id", "token"} <= set(table.c.keys()):
        raise ValueError(
            f"{name}: expected the class that has the table with the columns of {mixin.__name__}, "
            f"got one whose table is {table.name}; give the repository the parent class"
        )
    if not table.dialect_options["sqlite"]["autoincrement"]:
        raise ValueError(
            f"{name}: expected the table that {mixin.__name__} makes, with its constraints; the "
            "model's __table_cls__ or __table__ replaces it. Leave that to the mixin"
        )
    return table


def own_columns(model: type[JobMixin]) -> Mapping[str, Column[Any]]:
    """The columns that the application added, by attribute."""
    table = inspect(model).local_table
    return {
        attribute.key: column
        for attribute in inspect(model).column_attrs
        for column in attribute.columns[:1]
        if isinstance(column, Column)
        and column.table is table
        # By the column's name, whatever other names the model has for it.
        and column.name not in JobState.__annotations__
    }
