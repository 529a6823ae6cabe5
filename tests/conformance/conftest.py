"""The fixture that every conformance test is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conformance.stores import BACKENDS, Store

Opened = dict[str, tuple[Store, Callable[[], None]]]


@pytest.fixture(scope="session")
def opened() -> Iterator[Opened]:
    """Backends stay open from test to test: what a call leaves behind meets the next one."""
    stores: Opened = {}
    yield stores
    for _, close in stores.values():
        close()


def _clean(name: str, opened: Opened, factory: pytest.TempPathFactory) -> Iterator[Store]:
    if name not in opened:
        stack = ExitStack()
        path: Path = factory.mktemp(name) / "queue.db"
        opened[name] = stack.enter_context(BACKENDS[name](path)), stack.close
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


@pytest.fixture(params=BACKENDS)
def store(
    request: pytest.FixtureRequest, opened: Opened, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    """An empty queue on one backend; whatever the test did, nothing may be left open."""
    yield from _clean(request.param, opened, tmp_path_factory)


@pytest.fixture
def one_store(opened: Opened, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The same on a single backend, for what no backend has a part in."""
    yield from _clean("default-engine", opened, tmp_path_factory)
