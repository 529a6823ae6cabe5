from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from leasestore import JobRepository
from tests.support import make_file
from tests.worker.scene import Meddled, Queue, Told, join_workers


def _queue(url: Any) -> Iterator[Queue]:
    engine = create_engine(url)
    yield Queue(engine, JobRepository(engine))
    join_workers()
    engine.dispose()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_file(tmp_path / "queue.db")


@pytest.fixture
def queue(path: Path) -> Iterator[Queue]:
    """An empty queue in a file."""
    yield from _queue(f"sqlite:///{path}")


@pytest.fixture(params=["sqlite", "psycopg"])
def either_queue(request: pytest.FixtureRequest) -> Iterator[Queue]:
    """An empty queue on each database."""
    if request.param == "sqlite":
        yield from _queue(f"sqlite:///{request.getfixturevalue('path')}")
    else:
        yield from _queue(request.getfixturevalue("postgresql").fresh())


@pytest.fixture
def postgresql_queue(request: pytest.FixtureRequest) -> Iterator[Queue]:
    yield from _queue(request.getfixturevalue("postgresql").fresh())


@pytest.fixture
def told() -> Iterator[Told]:
    """What the worker logs during the test."""
    logger = logging.getLogger("leasestore.worker")
    handler, level = Told(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture
def meddled(queue: Queue) -> Meddled:
    """The queue's repository, with something between it and the worker."""
    return Meddled(queue.engine)
