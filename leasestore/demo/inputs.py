"""What the demo is given, checked completely before anything starts."""

from __future__ import annotations

import json
import os
from pathlib import Path

from leasestore import validation
from leasestore.tickets import Event
from leasestore.validation import Limits

QUEUE, INBOX = "queue.db", "inbox.db"
"""The demo's two files."""

MOST_ORDERS = 50
"""More could not be delivered one by one in the time that the demo has."""

_MOST_BYTES = 100_000


class BadInput(ValueError):
    """The orders or the directory cannot be used; the message says what to change."""


def sample_orders() -> Path:
    """The orders that come with leasestore: inside the package, or in a checkout's examples."""
    package = Path(__file__).parent
    inside = package / "orders.jsonl"
    return inside if inside.is_file() else package.parent.parent / "examples" / "orders.jsonl"


def read_orders(path: Path) -> list[Event]:
    """The orders of a JSON Lines file, one `{"id": ..., "qty": ...}` a line.

    Raises:
        BadInput: the file cannot be read or a line is no order; nothing of it is used.
    """
    orders: dict[str, Event] = {}
    # Not splitlines(): it would also cut at rarer line ends, which JSON allows inside strings.
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            order = _order(line)
            if order["id"] in orders:
                raise ValueError(f"id {order['id']!r} was given before; an order's id is its own")
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{path}, line {number}: {error}") from error
        orders[order["id"]] = order
    if not 1 <= len(orders) <= MOST_ORDERS:
        raise BadInput(f"{path}: expected 1 to {MOST_ORDERS} orders, got {len(orders)}")
    return list(orders.values())


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise BadInput(f"{path}: expected at most {_MOST_BYTES} bytes of orders")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{path}, line {line}: expected UTF-8, got other bytes") from error


def _order(line: str) -> Event:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        # Its own text would speak of line 1, whichever line this is.
        raise ValueError(f"expected JSON: {error.msg} at column {error.colno}") from error
    return validation.event(value, Limits())


def keep_directory(path: Path) -> Path:
    """The directory to leave the demo's files in, created where missing.

    Raises:
        BadInput: it cannot be used, or holds the files of an earlier run.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{path}: cannot be used as a directory: {error.strerror}") from error
    taken = [name for name in (QUEUE, INBOX) if (path / name).exists()]
    if taken:
        raise BadInput(
            f"{path}: holds {' and '.join(taken)} of an earlier run; remove them, or give "
            "another directory"
        )
    if not os.access(path, os.W_OK | os.X_OK):
        raise BadInput(f"{path}: is not writable")
    return path.absolute()
