"""The tables as text and as JSON."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import tomllib
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy

from benchmarks.bench import Bench
from benchmarks.measure import Row, Spread, Table

_PROJECT = Path(__file__).parents[1] / "pyproject.toml"
_COLUMNS = "{:<40} {:>20} {:>20} {:>7} {:>17}"


def machine(bench: Bench) -> dict[str, object]:
    """Where the figures come from."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "processors": os.cpu_count(),
        "load": os.getloadavg(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "leasestore": tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["version"],
        "sqlalchemy": sqlalchemy.__version__,
        "sqlite": sqlite3.sqlite_version,
        "psycopg": psycopg.__version__,
        "postgresql": None if bench.databases is None else bench.databases.settings,
        "sizes": asdict(bench.sizes),
    }


def write_json(path: Path, about: dict[str, object], tables: Iterable[Table]) -> None:
    written: dict[str, Any] = {
        "machine": about,
        "tables": {table.name: asdict(table) for table in tables},
    }
    path.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


def heading(about: dict[str, object]) -> str:
    return "\n".join(f"{name:<12} {value}" for name, value in about.items()) + "\n"


def text(table: Table) -> str:
    columns = _COLUMNS.format("", table.unit, "middle half", "ratio", "middle half")
    lines = ["", f"{table.name}: {table.title}", table.reading, "", columns]
    for group, rows in groupby(table.rows, key=lambda row: row.group):
        lines += [group, *map(_line, rows)]
    lines += ["", *(f"({note})" for note in table.notes)] if table.notes else []
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    ratio, spread = ("", "") if row.ratio is None else (f"{row.ratio.median:.2f}", _half(row.ratio))
    figure = _number(row.figure.median)
    return _COLUMNS.format(f"  {row.contender}", figure, _half(row.figure), ratio, spread).rstrip()


def _half(spread: Spread) -> str:
    if spread.low == spread.high:
        return ""
    return f"{_number(spread.low)} to {_number(spread.high)}"


def _number(value: float) -> str:
    return f"{value:,.2f}" if value < 10 else f"{value:,.0f}"
