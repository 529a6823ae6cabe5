"""The fixture that every conformance test is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack

import pytest

from tests.conformance.postgresql import OLDEST, POSTGRESQL
from tests.conformance.stores import SQLITE, Store

Opened = dict[str, tuple[Store, Callable[[], None]]]


@pytest.fixture(scope="session")
def opened() -> Iterator[Opened]:
    """Backends stay open from test to test: what a call leaves behind meets the next one."""
    stores: Opened = {}
    yield stores
    for _, close in stores.values():
        close()


def _backend(name: str, request: pytest.FixtureRequest) -> AbstractContextManager[Store]:
    if name == OLDEST:
        server = request.getfixturevalue("oldest_postgresql")
        return POSTGRESQL["psycopg-engine"](server.fresh())
    if name in POSTGRESQL:
        return POSTGRESQL[name](request.getfixturevalue("postgresql").fresh())
    factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
    return SQLITE[name](factory.mktemp(name) / "queue.db")


def _clean(name: str, opened: Opened, request: pytest.FixtureRequest) -> Iterator[Store]:
    if name not in opened:
        stack = ExitStack()
        opened[name] = stack.enter_context(_backend(name, request)), stack.close
    store, close = opened[name]
    try:
        store.wipe()
        yield store
        store.assert_clean()
    except BaseException:
        # Not for the next test.
        del opened[name]
        close()
        raise


@pytest.fixture(params=[*SQLITE, *POSTGRESQL, OLDEST])
def store(request: pytest.FixtureRequest, opened: Opened) -> Iterator[Store]:
    """An empty queue on one backend; whatever the test did, nothing may be left open."""
    yield from _clean(request.param, opened, request)


@pytest.fixture(params=SQLITE)
def sqlite_store(request: pytest.FixtureRequest, opened: Opened) -> Iterator[Store]:
    """The same on SQLite only, for what is about its one write lock."""
    yield from _clean(request.param, opened, request)


@pytest.fixture(params=[*POSTGRESQL, OLDEST])
def postgresql_store(request: pytest.FixtureRequest, opened: Opened) -> Iterator[Store]:
    """The same on PostgreSQL only, for what is about its row locks."""
    yield from _clean(request.param, opened, request)


@pytest.fixture
def one_store(opened: Opened, request: pytest.FixtureRequest) -> Iterator[Store]:
    """The same on a single backend, for what no backend has a part in."""
    yield from _clean("default-engine", opened, request)


@pytest.fixture(params=["default-engine", "psycopg-engine"])
def either_store(request: pytest.FixtureRequest, opened: Opened) -> Iterator[Store]:
    """The same on a single backend of each database, for what no driver has a part in."""
    yield from _clean(request.param, opened, request)
