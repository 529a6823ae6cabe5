"""That the benchmarks run and write what they measured; not how fast anything is."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from benchmarks.backlogs import Part, fill_database, fill_file
from benchmarks.contenders import LEASE_MS, NOW_MS, Postgresql, Sqlite, Verbs
from benchmarks.contenders.library import Library
from benchmarks.contenders.psycopg_by_hand import Autocommit, Transactions
from benchmarks.contenders.sqlalchemy_by_hand import SqlalchemyByHand
from benchmarks.contenders.sqlite_by_hand import SqliteByHand
from benchmarks.databases import Files
from benchmarks.measure import Spread, Table, in_turns, us_each
from benchmarks.plot import write_plot
from tests.postgresql import Server, libpq
from tests.support import rows

ROOT = Path(__file__).parents[2]
TINY = (
    "--quick --rounds 1 --cycles 2 --claims 2 --scale 0.0001 --window-s 0.05 --warm-up 1"
    " --windows 1 --drain-jobs 20 --bloat-jobs 10"
)


def _measure(path: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    """What the command prints, and the tables that it writes."""
    ended = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-m", "benchmarks"),
            *(*TINY.split(), "--json", str(path), *arguments),
        ],
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    written: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return ended.stdout, written["tables"]


def _groups(table: dict[str, Any]) -> set[str]:
    return {row["group"] for row in table["rows"]}


@pytest.mark.crash
def test_the_tables_of_sqlite(tmp_path: Path) -> None:
    printed, tables = _measure(tmp_path / "figures.json", "--backends", "sqlite")
    assert {"cycle", "backlog", "contention", "imports"} <= set(tables)
    assert not {"postgresql-cycle", "workers", "capacity", "bloat", "peers"} & set(tables)
    assert _groups(tables["cycle"]) == {"WAL, FULL", "DELETE, FULL", "WAL, OFF"}
    assert "SQLite, 1,000,000 done, 100 ready" in _groups(tables["backlog"])
    for table in tables.values():
        assert table["title"] in printed
        assert all(row["figure"]["median"] >= 0 for row in table["rows"])


@pytest.mark.crash
def test_the_tables_of_postgresql(tmp_path: Path, postgresql: Server) -> None:
    server = postgresql.empty().render_as_string(hide_password=False)
    _, tables = _measure(
        *(tmp_path / "figures.json", "--backends", "postgresql", "--postgresql", server),
        *("--tables", "postgresql-cycle,drain,backlog,bloat", "--peers"),
    )
    assert set(tables) == {"postgresql-cycle", "drain", "backlog", "bloat"}
    # As the server of the tests is started, and as the session asks for.
    assert "fsync=off, synchronous_commit=on" in _groups(tables["postgresql-cycle"])
    assert all(group.startswith("PostgreSQL, ") for group in _groups(tables["backlog"]))
    # Installed or not, the worker beside ours is named.
    assert any("20 jobs" in group for group in _groups(tables["drain"]))
    assert any("pgqueuer" in note for note in tables["drain"]["notes"])


_MIXED = [
    Part(2, deadline=NOW_MS),
    Part(2, "leased", lease_until=NOW_MS, deadline=NOW_MS - 1),
    Part(2, available_at=NOW_MS + 1),
    Part(1, "leased", lease_until=NOW_MS + 1),
    Part(1, "leased", lease_until=NOW_MS),
    Part(2, "done"),
    Part(2),
]
# The first that could be claimed, and the last one.
_EXHAUST = "UPDATE jobs SET max_attempts = 1, attempts = 1 WHERE seq IN (8, 12)"


def _work(contender: Verbs) -> None:
    """What becomes of these jobs: some are swept, two are claimed, one is finished in time."""
    try:
        assert contender.enqueue("one-more", NOW_MS)
        assert not contender.enqueue("one-more", NOW_MS)
        first, second = contender.claim(NOW_MS), contender.claim(NOW_MS)
        assert contender.finish(first, NOW_MS)
        assert not contender.finish(first, NOW_MS)
        assert not contender.finish(second, second["lease_until"])
        # The lease of the second has ended, and all that was delayed is due.
        assert contender.claim(NOW_MS + LEASE_MS)
    finally:
        contender.close()


@pytest.mark.parametrize("by_hand", [SqliteByHand, SqlalchemyByHand])
def test_by_hand_on_sqlite_is_the_same_work(
    by_hand: Callable[[Sqlite], Verbs], tmp_path: Path
) -> None:
    files = Files(tmp_path)
    targets = files.copy(), files.copy()
    contenders: tuple[Callable[[Sqlite], Verbs], ...] = by_hand, Library
    for target, opens in zip(targets, contenders, strict=True):
        fill_file(target.path, _MIXED)
        with closing(sqlite3.connect(target.path)) as plain, plain:
            plain.execute(_EXHAUST)
        _work(opens(target))
    assert rows(targets[0].path) == rows(targets[1].path)


@pytest.mark.parametrize("opens", [Autocommit, Transactions])
def test_by_hand_on_postgresql_is_the_same_work(
    opens: Callable[[Postgresql], Verbs], postgresql: Server
) -> None:
    found = []
    contenders: tuple[Callable[[Postgresql], Verbs], ...] = opens, Library
    for contender in contenders:
        target = Postgresql(libpq(postgresql.fresh()))
        fill_database(target, _MIXED)
        with psycopg.connect(target.url, autocommit=True) as connection:
            connection.execute(_EXHAUST)
            _work(contender(target))
            found.append(connection.execute("SELECT * FROM jobs ORDER BY seq").fetchall())
    assert found[0] == found[1]


def test_contenders_take_turns_and_the_warm_up_does_not_count() -> None:
    asked: list[str] = []

    def figure_of(name: str) -> float:
        asked.append(name)
        return float(len(asked))

    figures = in_turns(2, {"a": lambda: figure_of("a"), "b": lambda: figure_of("b")})
    assert asked == ["a", "b", "b", "a", "a", "b"]
    assert figures == {"a": [4.0, 5.0], "b": [3.0, 6.0]}


def test_what_comes_before_is_not_timed() -> None:
    now = 0.0

    def take(seconds: float) -> None:
        nonlocal now
        now += seconds

    measure = us_each(lambda _: take(2), 4, lambda: now, before=lambda _: take(3))
    assert measure() == 500_000


def test_ratios_are_taken_round_by_round() -> None:
    table = Table("t", "title", "us", "the base")
    table.add("group", {"base": [1.0, 10.0, 100.0], "other": [2.0, 20.0, 400.0]}, "base")
    base, other = table.rows
    assert base.ratio == Spread(1, 1, 1)
    assert other.figure == Spread(20, 11, 210)
    assert other.ratio == Spread(2, 2, 3)


def test_the_tables_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    table = Table("t", "title", "us", "the base")
    table.add("group", {"base": [1.0, 2.0], "other": [100.0, 100.0]}, "base")
    write_plot(tmp_path / "picture.png", [table])
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
