"""The wheel, in a fresh environment, used from another folder."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]


REVISIONS = ("ls0001_two_tables", "ls0002_indexes")


def _run(command: Sequence[str | Path], cwd: Path) -> str:
    # Nothing of this checkout may be seen from the fresh environment.
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command, cwd=cwd, env=outside, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment that has the wheel and what it depends on."""
    folder = tmp_path_factory.mktemp("wheel")
    _run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT], ROOT
    )
    (wheel,) = folder.glob("leasestore-*.whl")
    venv.create(folder / "venv", with_pip=True)
    interpreter = folder / "venv" / "bin" / "python"
    _run([interpreter, "-m", "pip", "install", "--quiet", f"{wheel}[cli]"], folder)
    return interpreter


def test_the_library_works_from_another_folder(python: Path, tmp_path: Path) -> None:
    script = """
import leasestore, pathlib
with leasestore.open_queue("queue.db") as queue:
    queue.enqueue({"id": "order-1", "qty": 2}, 0, 1000)
    print(leasestore.run_once(queue, "courier", lambda: 1, lambda event: True, 0))
package = pathlib.Path(leasestore.__file__).parent
print(sorted(str(path.relative_to(package)) for path in package.rglob("migrations/**/*.py")))
print((package / "py.typed").exists())
"""
    assert _run([python, "-c", script], tmp_path).splitlines() == [
        "{'id': 'order-1', 'token': 1, 'status': 'done'}",
        str(["migrations/env.py", *(f"migrations/versions/{name}.py" for name in REVISIONS)]),
        "True",
    ]


def test_the_command_runs_the_demo_with_its_own_orders(python: Path, tmp_path: Path) -> None:
    told = _run([python.parent / "leasestore", "demo"], tmp_path)
    assert "order-" in told
    assert not list(tmp_path.iterdir())
