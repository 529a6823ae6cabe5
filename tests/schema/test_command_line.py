"""`leasestore upgrade`, `check`, `stamp` and `sql`, as their users meet them."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click import ClickException
from click.testing import CliRunner, Result
from sqlalchemy import URL, create_engine, text

from leasestore import schema
from leasestore.cli.commands import leasestore
from leasestore.cli.database import refuse_missing_file
from leasestore.models import Base
from tests.support import make_file

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    return lambda *arguments, **kw: CliRunner().invoke(leasestore, [*map(str, arguments)], **kw)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


def test_upgrade_makes_the_tables_and_check_says_so(run: Run, file: Path) -> None:
    done = run("upgrade", "--db", file)
    assert (done.exit_code, done.output) == (0, f"sqlite:///{file}: up to date\n")
    done = run("check", "--db", f"sqlite+aiosqlite:///{file}")
    assert (done.exit_code, done.output) == (0, f"sqlite:///{file}: up to date\n")


def test_the_database_may_come_from_the_environment(run: Run, file: Path) -> None:
    assert run("upgrade", env={"LEASESTORE_DB": str(file)}).exit_code == 0
    assert file.exists()


def test_check_of_what_is_absent_exits_with_1(run: Run, file: Path) -> None:
    with closing(sqlite3.connect(file)) as plain:
        plain.execute("CREATE TABLE mine (id INTEGER)")
    done = run("check", "--db", file)
    assert done.exit_code == 1
    assert "not all tables are there" in done.output


def test_check_of_what_is_behind_exits_with_1(run: Run, file: Path) -> None:
    run("upgrade", "--db", file, "--to", "ls0001")
    done = run("check", "--db", file)
    assert (done.exit_code, done.stderr) == (1, "")
    assert "older than this leasestore" in done.stdout


def test_check_of_tables_that_lost_a_column_names_it(run: Run, file: Path) -> None:
    run("upgrade", "--db", file)
    with closing(sqlite3.connect(file)) as plain:
        plain.execute("ALTER TABLE redrives DROP COLUMN note")
    done = run("check", "--db", file)
    assert done.exit_code == 1
    assert "redrives.note" in done.output


def test_tables_of_another_maker_are_taken_over(run: Run, file: Path) -> None:
    make_file(file)
    assert "made by something else" in run("check", "--db", file).output
    assert run("check", "--db", file).exit_code == 0
    assert "up to date" in run("upgrade", "--db", file).output


def test_stamp(run: Run, file: Path) -> None:
    engine = create_engine(f"sqlite:///{file}")
    Base.metadata.create_all(engine)
    assert run("stamp", "--db", file).exit_code == 0
    assert schema.position(engine) == "current"
    engine.dispose()


def test_a_newer_release_is_ahead(run: Run, file: Path) -> None:
    run("upgrade", "--db", file)
    engine = create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {schema.VERSION_TABLE} SET version_num = 'ls9999'"))
    engine.dispose()
    assert "made by a newer leasestore" in run("check", "--db", file).output
    assert run("upgrade", "--db", file).exit_code == 0


def test_sql_prints_a_script(run: Run, file: Path) -> None:
    done = run("sql")
    assert done.exit_code == 0
    with closing(sqlite3.connect(file)) as plain:
        plain.executescript(done.output)
    assert "up to date" in run("check", "--db", file).output


def test_a_question_about_a_file_that_is_not_there_makes_none(run: Run, file: Path) -> None:
    for command in ("check", "stamp"):
        done = run(command, "--db", file)
        assert (done.exit_code, "there is no file" in done.output) == (1, True)
    assert not file.exists()


@pytest.mark.parametrize("query", ["", "&mode=rwc"])
def test_nor_does_one_whose_url_is_sqlites_own(run: Run, file: Path, query: str) -> None:
    address = f"sqlite:///file:{file}?uri=true{query}"
    done = run("check", "--db", address)
    remedy = f"`leasestore upgrade --db {file}` makes it"
    assert (done.exit_code, done.output) == (1, f"Error: there is no file {file}; {remedy}\n")
    assert not file.exists()
    assert run("upgrade", "--db", address).exit_code == 0
    assert run("check", "--db", address).exit_code == 0
    assert file.exists()


def test_a_file_is_known_by_its_uri(tmp_path: Path) -> None:
    file = tmp_path / "the queue.db"
    url = URL.create("sqlite", database=file.as_uri(), query={"uri": "true"})
    with pytest.raises(ClickException) as refused:
        refuse_missing_file(url, default_tables=False)
    assert refused.value.message == f"there is no file {file}"
    file.touch()
    refuse_missing_file(url)


IN_MEMORY = ["", "sqlite://", "sqlite:///file:any?mode=memory&uri=true", ":memory:"]


@pytest.mark.parametrize("address", [*IN_MEMORY, "sqlite:///file::memory:?uri=true"])
@pytest.mark.parametrize("command", ["upgrade", "check", "stamp"])
def test_nothing_is_done_with_a_database_in_memory(run: Run, command: str, address: str) -> None:
    done = run(command, "--db", address)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "one in memory is gone when the command ends" in done.stderr


def test_a_database_in_memory_has_no_file() -> None:
    refuse_missing_file(URL.create("sqlite"))


def test_a_table_that_is_something_else_is_refused(run: Run, file: Path) -> None:
    with closing(sqlite3.connect(file)) as plain:
        plain.execute("CREATE TABLE jobs (title)")
    for command in ("upgrade", "check"):
        done = run(command, "--db", file)
        assert done.exit_code == 1
        assert done.output.startswith("Error: a table of leasestore's name is something else")


def test_tables_that_went_behind_the_positions_back_are_not_up_to_date(
    run: Run, file: Path
) -> None:
    run("upgrade", "--db", file)
    with closing(sqlite3.connect(file)) as plain:
        plain.executescript("DROP TABLE jobs; DROP TABLE redrives")
    done = run("check", "--db", file)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: the database lacks jobs, redrives; ")
    assert "up to date" in run("upgrade", "--db", file).output
    assert run("check", "--db", file).exit_code == 0


BAD: dict[str, tuple[list[str], int, str]] = {
    "no database": (["upgrade"], 2, "Missing option '--db'"),
    "no url": (["upgrade", "--db", "blah://x"], 2, "expected a database URL"),
    "at sign": (["upgrade", "--db", "postgresql://u:a@SECRET@h/d"], 2, "are written %40"),
    "port": (["upgrade", "--db", "postgresql://u:SECRET/1@h:SECRET/d"], 2, "are written %40"),
    "no slashes": (["check", "--db", "postgresql:u:SECRET@h/d"], 2, "are written %40"),
    "revision": (["upgrade", "--db", "{file}", "--to", "zzz"], 2, "expected one of base, ls0001"),
    "since": (["sql", "--since", "zzz"], 2, "since: expected one of"),
    "database": (["sql", "--database", "oracle"], 1, "keeps its contract on postgresql, sqlite"),
    "directory": (["upgrade", "--db", "/no/such/directory/x.db"], 1, "unable to open"),
    "asyncpg": (
        ["check", "--db", "postgresql+asyncpg://u:SECRET@localhost:1/d"],
        1,
        "postgresql+psycopg://u:***@localhost:1/d: connection failed",
    ),
    "mysql": (
        ["upgrade", "--db", "mysql://u:SECRET@h/d"],
        2,
        "SQLite and PostgreSQL, not on mysql",
    ),
    "postgres": (["check", "--db", "postgres://u:SECRET@h/d"], 2, "write postgresql://"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_told_in_a_line_without_secrets(case: str, run: Run, file: Path) -> None:
    arguments, status, told = BAD[case]
    done = run(*(argument.format(file=file) for argument in arguments))
    assert done.exit_code == status, done.output
    assert told in done.output
    assert "Traceback" not in done.output
    assert "SECRET" not in done.output


def test_a_file_that_is_no_database(run: Run, file: Path) -> None:
    file.write_bytes(os.urandom(4096))
    before = file.read_bytes()
    for command in ("check", "upgrade", "stamp"):
        done = run(command, "--db", file)
        assert done.exit_code == 1
        assert "file is not a database" in done.output
    assert file.read_bytes() == before
