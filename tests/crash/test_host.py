"""An application that dies around its own commit: its row and its job are there, or neither."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.support import make_file, rows

ROOT = Path(__file__).parents[2]

PLACES_AN_ORDER = """
import os, signal, sys
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from leasestore import JobRepository, immediate
engine = create_engine(f"sqlite:///{sys.argv[1]}")
jobs, moment = JobRepository(engine), sys.argv[2]
with Session(engine) as session:
    with immediate(session):
        session.execute(text("INSERT INTO orders VALUES (1)"))
        jobs.within(session).enqueue({"id": "order-1", "qty": 1}, 0, 1000)
        if moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
"""

pytestmark = pytest.mark.crash


@pytest.mark.parametrize(("moment", "count"), [("before", 0), ("after", 1)])
def test_killed_around_its_commit_it_has_both_or_neither(
    moment: str, count: int, tmp_path: Path
) -> None:
    path = make_file(tmp_path / "shop.db")
    with closing(sqlite3.connect(path)) as plain:
        plain.execute("CREATE TABLE orders (id INTEGER)")
    command = [sys.executable, "-c", PLACES_AN_ORDER, str(path), moment]
    done = subprocess.run(command, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    with closing(sqlite3.connect(path)) as plain:
        assert plain.execute("SELECT count(*) FROM orders").fetchone() == (count,)
    assert [job["id"] for job in rows(path)] == ["order-1"] * count
