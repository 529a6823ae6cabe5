"""The plain `alembic` command in a checkout."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config

from leasestore import open_queue
from tests.schema import structure
from tests.support import insert_row, make_file, rows

# SQLAlchemy and Alembic say of SQLite's indexes over expressions that they cannot compare them.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Skipped unsupported reflection of expression-based index"),
    pytest.mark.filterwarnings("ignore:autogenerate skipping metadata-specified expression-based"),
]

ROOT = Path(__file__).parents[2]
TABLES = ("jobs", "redrives")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def config(file: Path) -> Config:
    config = Config(ROOT / "alembic.ini")
    config.set_main_option("sqlalchemy.url", f"sqlite:///{file}")
    return config


def test_upgrade_check_and_downgrade(config: Config, file: Path) -> None:
    command.upgrade(config, "head")
    command.check(config)
    made = structure.of_file(file, TABLES)
    command.downgrade(config, "base")
    assert tables_in(file) == {"leasestore_alembic_version", "sqlite_sequence"}
    command.upgrade(config, "head")
    assert structure.of_file(file, TABLES) == made


def tables_in(file: Path) -> set[str]:
    with closing(sqlite3.connect(file)) as plain:
        names = plain.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {name for (name,) in names}


def test_a_file_made_by_plain_code_is_taken_over_with_its_rows(config: Config, file: Path) -> None:
    make_file(file)
    insert_row(file, id="kept")
    before = rows(file)
    command.upgrade(config, "head")
    command.check(config)
    assert rows(file) == before


def test_check_finds_no_difference_in_a_queue_file(config: Config, file: Path) -> None:
    open_queue(file).close()
    command.check(config)


def test_offline_sql_makes_the_same_tables(
    config: Config, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command.upgrade(config, "head", sql=True)
    script = capsys.readouterr().out
    with closing(sqlite3.connect(file)) as plain:
        plain.executescript(script)
    expected = structure.of_file(make_file(tmp_path / "contract.db"), TABLES)
    assert structure.of_file(file, TABLES) == expected


def test_the_applications_loggers_are_left_alone(config: Config) -> None:
    logger = logging.getLogger("application")
    command.upgrade(config, "head")
    assert not logger.disabled
    assert not logging.getLogger().handlers or logging.getLogger().level == logging.WARNING
