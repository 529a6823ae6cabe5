"""docs/workers.md names what is logged: every event, and none that there is not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import leasestore
from leasestore.worker.results import End

PACKAGE = Path(leasestore.__file__).parent
GUIDE = (Path(__file__).parents[2] / "docs" / "workers.md").read_text(encoding="utf-8")
# Told at level DEBUG, and no promise.
NOT_PROMISED = {"claimed", "renewed"}
# Which argument of the functions that log is the event.
PLACES = {"tell": 1, "tell_of": 2, "_told": 1}


def logged() -> Iterator[str]:
    """The events that the code logs, as far as they are written out."""
    yield from get_args(End)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                place = PLACES.get(node.func.id)
                named = node.args[place : place + 1] if place is not None else []
            elif isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                named = [value for key, value in pairs if _is(key, "event")]
            else:
                continue
            for event in named:
                if isinstance(event, ast.Constant):
                    yield str(event.value)


def _is(node: ast.expr | None, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text


def test_the_guide_names_every_event() -> None:
    table = GUIDE.partition("| event | level |")[2].partition("\n\n")[0]
    named = {
        event
        for line in table.splitlines()[2:]
        for event in re.findall(r"`([a-z-]+)`", line.split("|")[1])
    }
    assert named == {*logged()} - NOT_PROMISED
