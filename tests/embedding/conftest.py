from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, create_engine

from leasestore import JobRepository
from tests.conformance.postgresql import JOINABLE, MODES, engine_in
from tests.embedding.application import Base, Delivery, DeliveryRedrive
from tests.embedding.plain import wipe
from tests.postgresql import Server
from tests.support import ENGINES

AUTOCOMMIT = {"autocommit", "isolation-none"}
"""Modes without a transaction to join, until `leasestore.immediate` begins one."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "application.db"


def _with_tables(url: URL) -> URL:
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    engine.dispose()
    return url


@pytest.fixture(scope="session")
def kept_url(postgresql: Server) -> URL:
    """The application's database on PostgreSQL, the same from test to test."""
    return _with_tables(postgresql.empty())


@pytest.fixture
def application_url(kept_url: URL) -> URL:
    """The same, with no rows."""
    wipe(kept_url)
    return kept_url


def _application(name: str, request: pytest.FixtureRequest) -> Iterator[Engine]:
    if name in MODES:
        engine = engine_in(name, request.getfixturevalue("application_url"))
    else:
        engine = ENGINES[name](request.getfixturevalue("path"))
        Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture(params=[*(name for name in ENGINES if name not in AUTOCOMMIT), *JOINABLE])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """The application's engine, in every mode that has transactions."""
    yield from _application(request.param, request)


@pytest.fixture(params=[name for name in ENGINES if name not in AUTOCOMMIT])
def sqlite_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    yield from _application(request.param, request)


@pytest.fixture(params=[*ENGINES, *JOINABLE])
def any_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """In every mode in which `leasestore.immediate` can begin a transaction."""
    yield from _application(request.param, request)


@pytest.fixture(params=[*sorted(AUTOCOMMIT), "psycopg-autocommit"])
def autocommit_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    yield from _application(request.param, request)


@pytest.fixture(params=["default", "psycopg"])
def either_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """One of each database, for what no mode has a part in."""
    yield from _application(request.param, request)


@pytest.fixture(params=["default", "psycopg"])
def altered_engine(request: pytest.FixtureRequest, path: Path) -> Iterator[Engine]:
    """The same with a database of the test's own, whose tables it may change."""
    if request.param == "psycopg":
        engine = create_engine(_with_tables(request.getfixturevalue("postgresql").empty()))
    else:
        engine = create_engine(_with_tables(URL.create("sqlite", database=str(path))))
    yield engine
    engine.dispose()


@pytest.fixture
def default_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    yield from _application("default", request)


@pytest.fixture
def recipe_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """The one on which a transaction that only reads is a real one."""
    yield from _application("begin-recipe", request)


@pytest.fixture(params=["begin-recipe", "psycopg"])
def suite_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """One on which a test suite can have its own transaction around the application's."""
    yield from _application(request.param, request)


def deliveries(engine: Engine) -> JobRepository:
    return JobRepository(engine, job=Delivery, redrive=DeliveryRedrive)
