from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from leasestore import open_queue, system_clock
from leasestore.cli.commands import leasestore


def long_ago() -> int:
    return system_clock() - 20_000


Run = Callable[..., Result]
Written = Callable[..., None]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory that the commands run in; what they import from it is forgotten again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEASESTORE_DB", raising=False)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def write(here: Path) -> Written:
    """Write the application's module `shop`, or another one."""

    def write(source: str, name: str = "shop.py") -> None:
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(source)
        importlib.invalidate_caches()

    return write


@pytest.fixture
def run() -> Run:
    return lambda *arguments: CliRunner().invoke(leasestore, [*map(str, arguments)])


@pytest.fixture
def file(here: Path) -> Path:
    """A queue with three jobs."""
    path = here / "queue.db"
    with open_queue(path) as queue:
        for number in range(3):
            queue.enqueue({"id": f"job-{number}", "qty": 1}, long_ago, 60_000)
    return path
