"""The README: its commands are the ones that are run, and its first example runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_ci_runs_the_second_command_to_the_letter() -> None:
    first, second = re.findall(r"^    (python3 -m venv .*)$", README, re.MULTILINE)
    assert first.endswith("leasestore demo")
    assert f"\n{second} || exit 1\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_first_example_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    example, verbs = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[:2]
    shipped: list[tuple[str, int]] = []

    def ship(job: str, quantity: int) -> bool:
        shipped.append((job, quantity))
        return True

    names: dict[str, Any] = {"ship": ship}
    exec(example, names)
    assert shipped == [("order-17", 2)]
    assert capsys.readouterr().out == "{'id': 'order-17', 'token': 1, 'status': 'done'}\n"
    exec('jobs.enqueue({"id": "order-18", "qty": 2}, system_clock, ttl_ms=60_000)', names)
    exec(verbs + "\nassert jobs.get('order-18')['status'] == 'done'\nengine.dispose()", names)
