"""The contract's CREATE statements, the models and the migration make the same two tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine

from leasestore import open_queue, schema
from leasestore.models import Base
from tests.schema import structure
from tests.support import make_file

TABLES = ("jobs", "redrives")


def _by_models(path: Path) -> None:
    engine = create_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    engine.dispose()


def _by_migration(path: Path) -> None:
    engine = create_engine(f"sqlite:///{path}")
    schema.upgrade(engine)
    engine.dispose()


def _by_open_queue(path: Path) -> None:
    open_queue(path).close()


@pytest.mark.parametrize("make", [_by_models, _by_migration, _by_open_queue])
def test_the_tables_are_the_contracts(make: object, tmp_path: Path) -> None:
    assert callable(make)
    make(tmp_path / "made.db")
    expected = structure.of_file(make_file(tmp_path / "contract.db"), TABLES)
    assert structure.of_file(tmp_path / "made.db", TABLES) == expected


@pytest.mark.parametrize("make", [_by_migration, _by_open_queue])
def test_the_indexes_are_those_of_the_models(make: object, tmp_path: Path) -> None:
    assert callable(make)
    make(tmp_path / "made.db")
    _by_models(tmp_path / "models.db")
    expected = structure.indexes_of_file(tmp_path / "models.db")
    assert len(expected) == 5
    assert structure.indexes_of_file(tmp_path / "made.db") == expected


def test_the_comparison_sees_what_it_compares(tmp_path: Path) -> None:
    jobs = structure.of_file(make_file(tmp_path / "contract.db"), TABLES)["jobs"]
    assert jobs["columns"][0] == ("seq", "INTEGER", 0, None, 1)
    assert jobs["columns"][1] == ("id", "TEXT", 1, None, 0)
    assert [name for name, *_ in jobs["columns"]][-3:] == ["owner", "lease_until", "reason"]
    assert jobs["autoincrement"]
    assert jobs["unique"] == [("id",)]
    assert jobs["checks"] == ["statusIN('pending','leased','done','dead')"]
