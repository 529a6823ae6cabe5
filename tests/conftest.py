from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests import postgresql as servers


@pytest.fixture(scope="session", autouse=True)
def heeded_signals() -> Iterator[None]:
    """Signals as a terminal gives them, also where the run was started in the background or under
    nohup: what is ignored there would be ignored by every child, too."""
    usual: dict[signal.Signals, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[servers.Server]:
    """Started by the first test that asks for it, stopped at the end."""
    with servers.server() as server:
        yield server


@pytest.fixture(scope="session")
def oldest_postgresql() -> Iterator[servers.Server]:
    """The same for the oldest version at hand."""
    with servers.oldest_server() as server:
        yield server


@pytest.fixture(scope="session", params=["postgresql", "oldest_postgresql"])
def each_postgresql(request: pytest.FixtureRequest) -> servers.Server:
    """For what depends on the server's version."""
    server: servers.Server = request.getfixturevalue(request.param)
    return server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs the PostgreSQL server, so that the quick part can do without."""
    for item in items:
        if re.search(r"psycopg|asyncpg|postgresql", item.nodeid):
            item.add_marker(pytest.mark.postgresql)
