from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from leasestore import JobRepository
from tests.embedding.application import Base, Delivery, DeliveryRedrive
from tests.support import ENGINES

AUTOCOMMIT = {"autocommit", "isolation-none"}
"""Modes without a transaction to join, until `leasestore.immediate` begins one."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "application.db"


def _application(name: str, path: Path) -> Iterator[Engine]:
    engine = ENGINES[name](path)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture(params=[name for name in ENGINES if name not in AUTOCOMMIT])
def engine(request: pytest.FixtureRequest, path: Path) -> Iterator[Engine]:
    """The application's engine, in every mode that has transactions."""
    yield from _application(request.param, path)


@pytest.fixture(params=ENGINES)
def any_engine(request: pytest.FixtureRequest, path: Path) -> Iterator[Engine]:
    yield from _application(request.param, path)


@pytest.fixture(params=sorted(AUTOCOMMIT))
def autocommit_engine(request: pytest.FixtureRequest, path: Path) -> Iterator[Engine]:
    yield from _application(request.param, path)


@pytest.fixture
def default_engine(path: Path) -> Iterator[Engine]:
    yield from _application("default", path)


@pytest.fixture
def recipe_engine(path: Path) -> Iterator[Engine]:
    """The one on which a transaction that only reads is a real one."""
    yield from _application("begin-recipe", path)


def deliveries(engine: Engine) -> JobRepository:
    return JobRepository(engine, job=Delivery, redrive=DeliveryRedrive)
