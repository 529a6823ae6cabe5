"""The floors: import-linter's contract in pyproject.toml, and the frozen migrations."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from importlinter import cli

from leasestore.schema import migrations

ROOT = Path(__file__).parents[2]
REVISIONS = sorted((migrations() / "versions").glob("*.py"))


def test_a_module_imports_only_from_floors_below(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    # Its logging would silence every logger that other tests listen to.
    monkeypatch.setattr("logging.config.dictConfig", lambda _: None)
    kept = (
        cli.lint_imports(config_filename="pyproject.toml", no_cache=True) == cli.EXIT_STATUS_SUCCESS
    )
    assert kept, capsys.readouterr().out


@pytest.mark.parametrize("revision", REVISIONS, ids=lambda path: path.stem)
def test_a_revision_imports_only_alembic_and_sqlalchemy(revision: Path) -> None:
    tree = ast.parse(revision.read_text(encoding="utf-8"))
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
        )
    }
    assert imported <= {"__future__", "alembic", "sqlalchemy"}
