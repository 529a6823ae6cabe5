"""`schema.upgrade` and its kin, from Python: whole or not at all, whoever else does it too."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text

from leasestore import JobRepository, SchemaError, StoreBusy, immediate, schema
from leasestore.models import Base
from tests.schema import structure
from tests.support import CONTRACT_DDL, ENGINES, insert_row, make_file, rows

TABLES = ("jobs", "redrives")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "application.db"


@pytest.fixture
def engine(file: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{file}")
    yield engine
    engine.dispose()


def tables_in(file: Path) -> set[str]:
    with closing(sqlite3.connect(file)) as plain:
        names = plain.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        )
        return {name for (name,) in names}


def dump(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as plain:
        return list(plain.iterdump())


# Where a database stands


def test_from_absent_to_current_and_back(engine: Engine, file: Path) -> None:
    assert schema.position(engine) == "absent"
    with pytest.raises(SchemaError, match=r"lacks jobs, redrives; .*schema\.upgrade") as caught:
        schema.check(engine)
    assert caught.value.missing == TABLES
    schema.upgrade(engine)
    schema.upgrade(engine)
    schema.check(engine)
    assert schema.position(engine) == "current"
    schema.downgrade(engine)
    assert schema.position(engine) == "absent"
    assert tables_in(file) == {schema.VERSION_TABLE}


@pytest.mark.parametrize("mode", ENGINES)
def test_in_every_driver_mode(mode: str, file: Path, tmp_path: Path) -> None:
    engine = ENGINES[mode](file)
    schema.upgrade(engine)
    with engine.connect() as connection:
        schema.upgrade(connection)
        assert not connection.in_transaction()
        schema.check(connection)
    engine.dispose()
    expected = structure.of_file(make_file(tmp_path / "contract.db"), TABLES)
    assert structure.of_file(file, TABLES) == expected


def test_a_column_that_is_missing_is_named(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE redrives (seq INTEGER, id TEXT, token INTEGER)"))
    with pytest.raises(SchemaError) as caught, engine.begin() as connection:
        schema.check(connection)
    assert caught.value.missing == ("jobs", "redrives.at_ms", "redrives.note")


def test_a_newer_release_is_ahead_and_still_works(engine: Engine) -> None:
    schema.upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {schema.VERSION_TABLE} SET version_num = 'ls9999'"))
    assert schema.position(engine) == "ahead"
    schema.check(engine)
    schema.upgrade(engine)
    assert schema.position(engine) == "ahead"
    with pytest.raises(SchemaError, match="made by a newer leasestore"):
        schema.downgrade(engine)
    assert JobRepository(engine).enqueue({"id": "a", "qty": 1}, 0, 1000)


REVISIONS: dict[str, Callable[[Engine], object]] = {
    "upgrade": lambda engine: schema.upgrade(engine, "zzz"),
    "downgrade": lambda engine: schema.downgrade(engine, "zzz"),
    "stamp": lambda engine: schema.stamp(engine, "zzz"),
    "sql": lambda engine: schema.sql(since="zzz"),
    "upgrade_inline": lambda engine: schema.upgrade_inline(None, "zzz"),
    "downgrade_inline": lambda engine: schema.downgrade_inline(None, since="zzz"),
}


@pytest.mark.parametrize("verb", REVISIONS)
def test_a_revision_that_is_none_of_ours_is_refused(verb: str, engine: Engine, file: Path) -> None:
    with pytest.raises(ValueError, match="expected one of base, ls0001, ls0002, head, got 'zzz'"):
        REVISIONS[verb](engine)
    assert tables_in(file) == set()


def test_an_older_release_is_behind(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema.upgrade(engine)
    _with_another_revision(tmp_path, monkeypatch, "op.execute('CREATE INDEX ix ON jobs (qty)')")
    assert schema.position(engine) == "behind"
    schema.upgrade(engine, "ls0002")
    assert schema.position(engine) == "behind"
    schema.upgrade(engine)
    assert schema.position(engine) == "current"


def test_a_table_that_was_dropped_since_is_made_again(engine: Engine, file: Path) -> None:
    schema.upgrade(engine)
    insert_row(file, id="kept")
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE redrives"))
    schema.upgrade(engine)
    schema.check(engine)
    assert schema.position(engine) == "current"
    assert [row["id"] for row in rows(file)] == ["kept"]


def test_a_column_that_was_dropped_since_is_not_passed_over(engine: Engine) -> None:
    schema.upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE jobs DROP COLUMN reason"))
    with pytest.raises(SchemaError, match="expected reason TEXT, found no such column"):
        schema.upgrade(engine)


# Tables that are there already


def test_a_plain_file_is_taken_over_with_its_rows(engine: Engine, file: Path) -> None:
    make_file(file)
    insert_row(file, id="kept")
    before = rows(file)
    assert schema.position(engine) == "unversioned"
    schema.upgrade(engine)
    assert schema.position(engine) == "current"
    assert rows(file) == before


def test_what_the_models_made_can_be_stamped(engine: Engine) -> None:
    Base.metadata.create_all(engine)
    schema.stamp(engine)
    assert schema.position(engine) == "current"
    schema.upgrade(engine)
    Base.metadata.create_all(engine)


def test_nothing_is_stamped_that_is_not_there(engine: Engine, file: Path) -> None:
    with pytest.raises(SchemaError, match="lacks jobs, redrives"):
        schema.stamp(engine)
    assert tables_in(file) == set()


STRANGERS = {
    "another table": ("CREATE TABLE jobs (title)", "expected id TEXT NOT NULL, found no such"),
    "no AUTOINCREMENT": (CONTRACT_DDL.replace("AUTOINCREMENT", ""), "expected AUTOINCREMENT"),
    "no UNIQUE": (CONTRACT_DDL.replace("UNIQUE", ""), r"expected UNIQUE \(id\)"),
    "a weaker CHECK": (CONTRACT_DDL.replace(",'dead'", ""), "expected status IN"),
    "a column more": (CONTRACT_DDL.replace("reason TEXT", "reason TEXT, x INT"), "no further"),
    "a view": ("CREATE VIEW jobs AS SELECT 1 AS seq", "something else of that name"),
    "another type": (CONTRACT_DDL.replace("reason TEXT", "reason BLOB"), "found reason BLOB"),
    "nullable": (CONTRACT_DDL.replace("note TEXT NOT NULL", "note TEXT"), "found note TEXT"),
}


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("verb", [schema.upgrade, schema.stamp])
def test_a_table_that_is_something_else_is_refused_untouched(
    verb: Callable[[Engine], None], stranger: str, engine: Engine, file: Path
) -> None:
    ddl, told = STRANGERS[stranger]
    with closing(sqlite3.connect(file)) as plain:
        plain.executescript(ddl)
    before = dump(file)
    with pytest.raises(SchemaError, match=told):
        verb(engine)
    assert dump(file) == before


# In the caller's transaction


@pytest.mark.parametrize("mode", ["default", "begin-recipe", "autocommit"])
def test_the_callers_rollback_undoes_it(mode: str, file: Path) -> None:
    engine = ENGINES[mode](file)
    with engine.connect() as connection:
        if mode == "autocommit":
            with pytest.raises(KeyError), immediate(connection):
                _upgrade_and_fail(connection)
        else:
            connection.execute(text("SELECT 1"))
            schema.upgrade(connection)
            connection.rollback()
    engine.dispose()
    assert tables_in(file) == set()


def _upgrade_and_fail(connection: object) -> None:
    schema.upgrade(connection)  # type: ignore[arg-type]
    raise KeyError


def test_the_callers_commit_keeps_it(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE mine (id INTEGER)"))
        schema.upgrade(connection)
        assert schema.position(connection) == "current"
    assert schema.position(engine) == "current"


# Failure half-way, and company


def _with_another_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upgrade: str) -> None:
    copied = tmp_path / "migrations"
    shutil.copytree(schema.migrations(), copied)
    (copied / "versions" / "ls9000_next.py").write_text(
        f"""
import os, signal
from alembic import op
revision, down_revision = "ls9000", "ls0002"
def upgrade():
    {upgrade}
def downgrade():
    pass
"""
    )
    monkeypatch.setattr(schema, "migrations", lambda: copied)


def test_a_failure_half_way_leaves_nothing_and_the_next_run_succeeds(
    engine: Engine, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        broken = "op.execute('CREATE TABLE half (way)'); op.execute('no sql at all')"
        _with_another_revision(tmp_path, patched, broken)
        with pytest.raises(Exception, match="syntax error"):
            schema.upgrade(engine)
        assert tables_in(file) == set()
    schema.upgrade(engine)
    assert schema.position(engine) == "current"


@pytest.mark.crash
def test_killed_half_way_leaves_nothing_and_the_next_run_succeeds(
    engine: Engine, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        _with_another_revision(tmp_path, patched, "os.kill(os.getpid(), signal.SIGKILL)")
    script = f"""
from pathlib import Path
from sqlalchemy import create_engine
from leasestore import schema
schema.migrations = lambda: Path({str(tmp_path / "migrations")!r})
schema.upgrade(create_engine("sqlite:///{file}"))
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    schema.upgrade(engine)
    assert schema.position(engine) == "current"
    assert tables_in(file) == {"jobs", "redrives", schema.VERSION_TABLE}


def test_busy_changes_nothing(file: Path) -> None:
    engine = create_engine(f"sqlite:///{file}", connect_args={"timeout": 0.01})
    with closing(sqlite3.connect(file, isolation_level=None)) as plain:
        plain.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy):
            schema.upgrade(engine)
    engine.dispose()
    assert tables_in(file) == set()


def test_threads_on_several_databases_do_not_get_into_each_others_way(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.db" for number in range(4)]
    engines = [create_engine(f"sqlite:///{file}") for file in files for _ in range(2)]
    start = threading.Barrier(len(engines))
    failed: list[BaseException] = []

    def upgrade(engine: Engine) -> None:
        start.wait()
        try:
            schema.upgrade(engine)
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=upgrade, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert [schema.position(engine) for engine in engines] == ["current"] * len(engines)
    for engine in engines:
        engine.dispose()


@pytest.mark.crash
def test_eight_processes_at_once(engine: Engine, file: Path) -> None:
    script = f"""
import sys
from sqlalchemy import create_engine
from leasestore import schema
engine = create_engine("sqlite:///{file}", connect_args={{"timeout": 30}})
print("ready", flush=True)
sys.stdin.readline()
schema.upgrade(engine)
print(schema.position(engine))
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    told = [process.communicate("go\n", timeout=60) for process in processes]
    assert [out for out, _ in told] == ["current\n"] * 8, told
    with engine.connect() as connection:
        versions = connection.execute(text(f"SELECT * FROM {schema.VERSION_TABLE}")).all()
    assert versions == [("ls0002",)]


def test_the_applications_loggers_are_left_alone(engine: Engine) -> None:
    logger = logging.getLogger("application")
    handlers, level = list(logging.getLogger().handlers), logging.getLogger().level
    schema.upgrade(engine)
    assert not logger.disabled
    assert (list(logging.getLogger().handlers), logging.getLogger().level) == (handlers, level)


# As a script


def test_the_script_makes_what_the_upgrade_makes(file: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(file)) as plain:
        plain.executescript(schema.sql())
    online = create_engine(f"sqlite:///{tmp_path}/online.db")
    schema.upgrade(online)
    online.dispose()
    every = (*TABLES, schema.VERSION_TABLE)
    assert structure.of_file(file, every) == structure.of_file(tmp_path / "online.db", every)
    engine = create_engine(f"sqlite:///{file}")
    assert schema.position(engine) == "current"
    engine.dispose()


def test_the_script_from_here_to_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _with_another_revision(tmp_path, monkeypatch, "op.execute('CREATE INDEX ix ON jobs (qty)')")
    later = schema.sql(since="ls0002")
    assert "CREATE INDEX ix ON" in later
    assert "CREATE TABLE" not in later
    assert "CREATE INDEX ix ON" not in schema.sql(to="ls0002")
