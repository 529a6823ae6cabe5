"""The surface: what `leasestore` offers, that all of it says what it is, and what it costs."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
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


def test_dir_shows_what_was_not_imported_yet() -> None:
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import leasestore as l; assert {*l.__all__, '__doc__'} <= {*dir(l)}",
        ],
        check=True,
    )


def test_a_type_checker_sees_what_is_imported_later() -> None:
    tree = ast.parse(Path(leasestore.__file__).read_text(encoding="utf-8"))
    (branch,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module.removeprefix("leasestore.")
        for node in branch.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    assert seen.pop("aio") == seen.pop("schema") == "leasestore"
    assert seen == vars(leasestore)["_LATER"]
    assert set(seen) <= set(leasestore.__all__)


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
    """The modules that a fresh interpreter has after this code."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return set(done.stdout.split())


LATER = {"worker", "watcher", "wakeup", "listening", "queue_file", "schema", "aio", "autogenerate"}
POSTGRESQL = {"sqlalchemy.dialects.postgresql", "leasestore.dialects.postgresql"}
OTHERS = {"alembic", "mako", "click", "rich", "psycopg", "aiosqlite", "greenlet", "pytest"}


@pytest.mark.parametrize(
    "code",
    [
        "import leasestore",
        "from leasestore import Job, JobRepository, run_once",
        "import leasestore; dir(leasestore)",
    ],
)
def test_importing_the_package_imports_nothing_that_only_some_need(code: str) -> None:
    # SQLAlchemy itself imports asyncio, and 2.0 greenlet where it is installed.
    imported = imported_by(code) - imported_by("import sqlalchemy.orm")
    assert {"leasestore", "leasestore.repository"} <= imported
    later = {f"leasestore.{module}" for module in LATER}
    assert not imported & {*later, *POSTGRESQL, *OTHERS, "sqlite3"}


@pytest.mark.parametrize(
    "what",
    [
        "leasestore.JobRepository(engine)",
        "leasestore.Job.metadata.create_all(engine)",
        "leasestore.database_clock(engine)",
    ],
)
def test_on_sqlite_postgresql_is_not_imported(what: str) -> None:
    code = f"import leasestore, sqlalchemy; engine = sqlalchemy.create_engine('sqlite://'); {what}"
    imported = imported_by(code)
    assert "sqlalchemy.dialects.sqlite" in imported
    assert not imported & POSTGRESQL


@pytest.mark.parametrize(
    ("name", "brought"),
    [
        ("Delivery", "worker"),
        ("Worked", "worker"),
        ("Worker", "worker"),
        ("Watcher", "watcher"),
        ("Wakeup", "wakeup"),
        ("QueueFile", "queue_file"),
        ("open_queue", "queue_file"),
        ("run_file", "queue_file"),
        ("schema", "schema"),
        ("aio", "aio"),
    ],
)
def test_what_costs_more_is_there_when_asked_for(name: str, brought: str) -> None:
    assert f"leasestore.{brought}" in imported_by(f"import leasestore; leasestore.{name}")
    assert f"leasestore.{brought}" in imported_by(f"from leasestore import {name}")


def test_the_same_thing_is_there_every_time() -> None:
    code = (
        "import leasestore; assert 'Worker' not in vars(leasestore); first = leasestore.Worker; "
        "from leasestore.worker import Worker; assert first is leasestore.Worker is Worker"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_not_there_is_said_to_be_missing() -> None:
    with pytest.raises(AttributeError, match="no attribute 'worker_of_wonders'"):
        leasestore.worker_of_wonders  # type: ignore[attr-defined]  # noqa: B018
