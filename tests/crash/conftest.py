from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leasestore import open_queue
from tests.crash.children import Child, Start


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes, none of which outlives the test."""
    started: list[Child] = []

    def start_one(work: Callable[..., None], *arguments: object) -> Child:
        started.append(Child(work, *arguments))
        return started[-1]

    yield start_one
    for child in started:
        child.discard()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An empty queue file, closed again."""
    file = tmp_path / "queue.db"
    with open_queue(file):
        pass
    return file
