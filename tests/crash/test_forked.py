"""An engine used before a fork: parent and children go on, each with connections of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import URL

from tests.postgresql import Server
from tests.support import make_file

ROOT = Path(__file__).parents[2]
CHILDREN, JOBS = 4, 25

FORKS = f"""
import os, sys
from sqlalchemy import create_engine
from leasestore import JobRepository, run_once, schema
engine = create_engine(sys.argv[1])
schema.upgrade(engine)
jobs = JobRepository(engine)
for number in range({CHILDREN + 1} * {JOBS}):
    jobs.enqueue({{"id": f"job-{{number}}", "qty": 1}}, 0, 60_000)

def deliver(owner):
    for _ in range({JOBS}):
        assert run_once(jobs, owner, lambda: 1, lambda event: True, 1, 60_000) is not None

children = []
for number in range({CHILDREN}):
    child = os.fork()
    if child == 0:
        try:
            deliver(f"child-{{number}}")
        except BaseException as error:
            print(f"{{number}}: {{error!r}}", flush=True)
            os._exit(1)
        os._exit(0)
    children.append(child)
deliver("parent")
ended = [os.waitpid(child, 0)[1] for child in children]
tokens = {{jobs.get(f"job-{{number}}")["token"] for number in range({CHILDREN + 1} * {JOBS})}}
print(ended, tokens, run_once(jobs, "parent", lambda: 1, lambda event: True, 1))
"""

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_parent_and_children_all_succeed(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = URL.create("sqlite", database=str(make_file(tmp_path / "queue.db")))
    if database == "postgresql":
        server: Server = request.getfixturevalue("postgresql")
        url = server.empty()
    told = subprocess.run(
        [sys.executable, "-c", FORKS, url.render_as_string(hide_password=False)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.stdout == f"{[0] * CHILDREN} {{1}} None\n", told.stdout + told.stderr
