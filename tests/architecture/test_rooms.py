"""Where a line of code may stand: each rule looks at the syntax tree of the whole package."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import leasestore

PACKAGE = Path(leasestore.__file__).parent
# The demo is an application of its own that uses the library, as the examples are.
MODULES = sorted(
    path for path in PACKAGE.rglob("*.py") if not {"demo", "migrations"} & set(path.parts)
)


def _called(name: str) -> Callable[[ast.AST], bool]:
    def matches(node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return False
        function = node.func
        return (isinstance(function, ast.Attribute) and function.attr == name) or (
            isinstance(function, ast.Name) and function.id == name
        )

    return matches


def _imported(*modules: str) -> Callable[[ast.AST], bool]:
    def matches(node: ast.AST) -> bool:
        if isinstance(node, ast.Import):
            return any(alias.name.partition(".")[0] in modules for alias in node.names)
        return isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in modules

    return matches


def _text(*words: str) -> Callable[[ast.AST], bool]:
    """A string that starts with one of these words and is no docstring of ours."""

    def matches(node: ast.AST) -> bool:
        return isinstance(node, ast.Constant) and str(node.value).startswith(words)

    return matches


def _named(*names: str) -> Callable[[ast.AST], bool]:
    def matches(node: ast.AST) -> bool:
        return isinstance(node, ast.Attribute) and node.attr in names

    return matches


RULES: dict[str, tuple[Callable[[ast.AST], bool], set[str]]] = {
    "execute": (
        _called("execute"),
        {
            *("operations", "batch_operations", "execution"),
            *("dialects/postgresql", "dialects/sqlite", "queue_file"),
        },
    ),
    "driver SQL": (_called("exec_driver_sql"), set()),
    "BEGIN": (_text("BEGIN "), {"dialects/sqlite"}),
    "ROLLBACK": (_text("ROLLBACK"), {"dialects/sqlite"}),
    "COMMIT": (_text("COMMIT"), set()),
    "begin": (_called("begin"), {"aio", "transactions"}),
    "commit": (_called("commit"), {"transactions"}),
    "rollback": (_called("rollback"), {"transactions"}),
    "savepoint": (_called("begin_nested"), set()),
    "a listener": (_named("listens_for", "listen"), {"queue_file"}),
    "a database by name": (
        lambda node: isinstance(node, ast.Constant) and node.value in ("sqlite", "postgresql"),
        {"cli", "dialects/__init__", "models", "queue_file", "schema"},
    ),
    "the SQLite driver": (_imported("sqlite3"), {"dialects/sqlite", "queue_file"}),
    "a clock": (_imported("time", "datetime"), {"cli", "clock"}),
    "chance": (_imported("random"), {"dialects/sqlite", "wakeup", "watcher", "worker"}),
    "threads": (_imported("threading", "multiprocessing"), {"listening", "wakeup", "worker"}),
    "waiting": (_imported("select", "selectors"), {"listening", "wakeup"}),
    "signals": (_imported("signal"), {"cli", "worker"}),
    "DDL": (_called("create_all"), set()),
    "Alembic": (_imported("alembic"), {"autogenerate", "schema"}),
    "arguments": (_named("argv"), set()),
    "printing": (_called("print"), {"cli"}),
    "the terminal": (_imported("click", "rich"), {"cli"}),
}


def _uses(matches: Callable[[ast.AST], bool]) -> Iterator[tuple[str, int]]:
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        room = path.relative_to(PACKAGE).with_suffix("").as_posix()
        for node in ast.walk(tree):
            if id(node) not in docstrings and matches(node):
                yield room, getattr(node, "lineno", 0)


def _room(name: str) -> str:
    """A package is one room; `dialects` has a room a database."""
    return name if name.startswith("dialects/") else name.partition("/")[0]


@pytest.mark.parametrize("what", RULES)
def test_stands_only_in_its_room(what: str) -> None:
    matches, rooms = RULES[what]
    strays = [f"{room}.py:{line}" for room, line in _uses(matches) if _room(room) not in rooms]
    assert not strays, f"{what} belongs in {rooms or 'no module'}; found in {strays}"


@pytest.mark.parametrize("what", [what for what, (_, rooms) in RULES.items() if rooms])
def test_the_rule_still_finds_what_it_looks_for(what: str) -> None:
    matches, rooms = RULES[what]
    assert {_room(room) for room, _ in _uses(matches)} == rooms


def test_the_lock_is_taken_by_one_line() -> None:
    begins = list(_uses(lambda node: _text("BEGIN IMMEDIATE")(node)))
    sent = [
        line
        for line in (PACKAGE / "dialects/sqlite.py").read_text(encoding="utf-8").splitlines()
        if 'execute("BEGIN IMMEDIATE' in line
    ]
    assert begins
    assert len(sent) == 1
