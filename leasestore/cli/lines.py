"""What a loop tells while it runs: log records as lines for people, or for machines."""

from __future__ import annotations

import json
import logging
import reprlib
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from leasestore.cli.secrets import masked

_OF_EVERY_RECORD = vars(logging.makeLogRecord({})).keys() | {"message", "asctime", "taskName"}
_STYLES = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "bold red"}


class _Lines(logging.Formatter):
    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"


class ForPeople(_Lines):
    """Time (UTC), level, and what happened, on one line; the traceback of an error below it."""

    def format(self, record: logging.LogRecord) -> str:
        ours = record.name.partition(".")[0] == "leasestore"
        who = "" if ours else f"{record.name}: "
        told = f"{self.formatTime(record)} {record.levelname:<7} {who}{record.getMessage()}"
        lines = [told] if record.exc_info is None else [told, *self._traceback(record)]
        return masked("\n".join(map(_printable, lines)))

    def _traceback(self, record: logging.LogRecord) -> list[str]:
        assert record.exc_info is not None
        return [f"    {line}" for line in self.formatException(record.exc_info).splitlines()]


class ForMachines(_Lines):
    """A JSON object a line, in ASCII: `time`, `level`, `logger`, `message`, then whatever the
    record carries (`event`, `job_id`, `token`, ...), and for an error `error`, its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in vars(record).items():
            if name not in _OF_EVERY_RECORD and name not in line:
                line[name] = _plain(value)
        if record.exc_info is not None:
            line["error"] = self.formatException(record.exc_info)
        return masked(json.dumps(line))


def _plain(value: object) -> object:
    """What JSON has a form for, and of all else a text."""
    try:
        json.dumps(value, allow_nan=False)
    except Exception:  # noqa: BLE001 - whatever an application's value does
        return reprlib.repr(value)
    return value


def _printable(line: str) -> str:
    """No line can be made to look like two, or to move the cursor of a terminal."""
    if line.isprintable():
        return line
    escape = "unicode_escape"
    return "".join(c if c.isprintable() else c.encode(escape).decode("ascii") for c in line)


class _OnTerminal(logging.Handler):
    """Lines above whatever else the console shows, in colours."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = Text(self.format(record), style=_STYLES.get(record.levelname, ""))
            self._console.print(text, soft_wrap=True)
        except Exception:  # noqa: BLE001 - as every handler does
            self.handleError(record)


class _OnStream(logging.StreamHandler[TextIO]):
    """Lines on a stream, for as long as somebody reads it."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        # That nobody reads it any more is no reason to stop working, or to say so at each line.
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            super().handleError(record)


def lines(*, as_json: bool, console: Console) -> logging.Handler:
    """For machines on standard output; for people on the console."""
    handler: logging.Handler
    if as_json:
        handler = _OnStream(sys.stdout)
    elif console.is_terminal:
        handler = _OnTerminal(console)
    else:
        handler = _OnStream(sys.stderr)
    handler.setFormatter(ForMachines() if as_json else ForPeople())
    handler.setLevel(logging.INFO)
    return handler


@contextmanager
def told_by(handlers: Sequence[logging.Handler]) -> Iterator[None]:
    """While it lasts, these get what leasestore logs.

    An application that has set up its logging keeps it for its own records; of one that has not
    they get those, too.
    """
    root, ours = logging.getLogger(), logging.getLogger("leasestore")
    target = ours if root.handlers else root
    before = ours.level, ours.propagate
    ours.setLevel(min(handler.level for handler in handlers))
    ours.propagate = target is root
    for handler in handlers:
        target.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            target.removeHandler(handler)
        ours.setLevel(before[0])
        ours.propagate = before[1]
