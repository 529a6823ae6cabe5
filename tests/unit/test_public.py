"""The surface: what `leasestore` offers, that all of it says what it is, and what it costs."""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing
from collections.abc import Iterator
from typing import Any

import pytest

import leasestore


def test_all_is_sorted_without_doubles_and_there() -> None:
    assert leasestore.__all__ == sorted(set(leasestore.__all__))
    assert [name for name in leasestore.__all__ if not hasattr(leasestore, name)] == []


def test_a_star_import_brings_all_and_nothing_else() -> None:
    found: dict[str, Any] = {}
    exec("from leasestore import *", found)
    assert sorted(found.keys() - {"__builtins__"}) == leasestore.__all__


def test_the_contracts_names_are_there() -> None:
    promised = {"retry_delay", "open_queue", "run_once", "run_file", "JobRepository", "Limits"}
    promised |= {"Conflict", "Retryable", "Permanent", "BadAck"}
    assert promised <= set(leasestore.__all__)


def callables() -> Iterator[tuple[str, Any]]:
    """Each public function, class and method, by its name."""
    for name in leasestore.__all__:
        thing = getattr(leasestore, name)
        if inspect.isfunction(thing) or inspect.isclass(thing):
            yield name, thing
        if inspect.isclass(thing):
            for method, value in inspect.getmembers(thing, inspect.isfunction):
                if not method.startswith("_") and value.__module__.startswith("leasestore"):
                    yield f"{name}.{method}", value


@pytest.mark.parametrize(("name", "thing"), list(callables()), ids=lambda value: str(value)[:40])
def test_each_public_thing_has_a_docstring_of_its_own(name: str, thing: Any) -> None:
    doc = thing.__dict__.get("__doc__") if inspect.isclass(thing) else thing.__doc__
    assert doc, name
    assert doc.strip()


@pytest.mark.parametrize(
    ("name", "function"),
    [(name, thing) for name, thing in callables() if inspect.isfunction(thing)],
    ids=lambda value: str(value)[:40],
)
def test_each_public_function_is_annotated(name: str, function: Any) -> None:
    signature = inspect.signature(function)
    bare = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.annotation is parameter.empty and parameter.name not in ("self", "cls")
    ]
    assert bare == [], name
    assert signature.return_annotation is not signature.empty, name
    assert typing.get_type_hints(function)


def imported_by(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has after this code."""
    shown = "import sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{shown}"], check=True, capture_output=True, text=True
    )
    return set(done.stdout.split())


def test_importing_the_package_does_not_import_alembic() -> None:
    imported = imported_by("import leasestore")
    assert "sqlalchemy" in imported
    assert not imported & {"alembic", "mako", "click", "rich", "psycopg", "aiosqlite", "pytest"}


def test_the_modules_that_cost_more_are_there_when_asked_for() -> None:
    code = (
        "import sys, leasestore; assert 'alembic' not in sys.modules; leasestore.schema.upgrade; "
        "assert 'alembic' in sys.modules; leasestore.aio.AsyncJobRepository"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'worker_of_wonders'"):
        leasestore.worker_of_wonders  # noqa: B018
