"""Log records as lines: for people, for machines, and beside the line that shows progress."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from rich.console import Console

from leasestore.cli.lines import ForMachines, ForPeople, lines, told_by
from leasestore.cli.progress import Tally, progress
from leasestore.worker import Worked

ESCAPE = "\x1b"


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("made up")


@contextmanager
def set_up_by(*handlers: logging.Handler) -> Iterator[None]:
    """A process in which an application has given the root logger these."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, [*handlers]
    try:
        yield
        assert root.handlers == [*handlers]
    finally:
        root.handlers = before


def record(message: str, name: str = "leasestore.worker", **carried: Any) -> logging.LogRecord:
    error = carried.pop("error", None)
    made = logging.getLogger(name).makeRecord(
        name, logging.WARNING, "file.py", 1, message, (), error and (type(error), error, None)
    )
    made.created, made.msecs = 1_764_462_096.789, 789.0
    vars(made).update(carried)
    return made


def test_a_line_for_people() -> None:
    assert ForPeople().format(record("job a: done", event="done")) == (
        "2025-11-30T00:21:36.789Z WARNING job a: done"
    )
    assert ForPeople().format(record("hello", "shop.mail")).endswith("WARNING shop.mail: hello")
    assert ForPeople().format(record("hello", "leasestores")).endswith("leasestores: hello")


def test_an_error_is_told_below_its_line() -> None:
    assert ForPeople().format(record("failed", error=KeyError("x"))).splitlines()[1:] == [
        "    KeyError: 'x'"
    ]


def test_a_line_stays_one_line_and_moves_no_cursor() -> None:
    told = ForPeople().format(record(f"a\nERROR forged\r{ESCAPE}[2J\udc80 \N{SNOWMAN}"))
    assert told.endswith(r"a\nERROR forged\r\x1b[2J\udc80 " + "\N{SNOWMAN}")


def test_a_line_for_machines() -> None:
    made = record("job a: \N{SNOWMAN}\n", event="done", job_id="a", token=3)
    line = ForMachines().format(made)
    assert line.isascii()
    assert "\n" not in line
    assert list(json.loads(line).items()) == [
        ("time", "2025-11-30T00:21:36.789Z"),
        ("level", "warning"),
        ("logger", "leasestore.worker"),
        ("message", "job a: \N{SNOWMAN}\n"),
        ("event", "done"),
        ("job_id", "a"),
        ("token", 3),
    ]


def test_the_traceback_of_an_error_is_one_value() -> None:
    assert json.loads(ForMachines().format(record("x", error=KeyError("x"))))["error"] == (
        "KeyError: 'x'"
    )


def test_whatever_a_record_carries_the_line_can_be_read() -> None:
    circle: list[Any] = []
    circle.append(circle)
    carried: dict[str, Any] = {
        "worked": Worked(done=2, ended="late"),
        "nested": {"a": [1, None, True, 1.5]},
        "infinite": float("inf"),
        "nan": float("nan"),
        "object": object,
        "circle": circle,
        "unshowable": Unshowable(),
        "level": "forged",
    }

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    line = json.loads(ForMachines().format(record("x", **carried)), parse_constant=refuse)
    assert line["worked"].startswith("Worked(done=2")
    assert line["nested"] == {"a": [1, None, True, 1.5]}
    assert (line["infinite"], line["nan"]) == ("inf", "nan")
    assert line["object"] == "<class 'object'>"
    assert line["circle"] == "[[[[[[[...]]]]]]]"
    assert line["unshowable"].startswith("<Unshowable instance at")
    assert line["level"] == "warning"


@pytest.mark.parametrize("form", [ForPeople, ForMachines])
def test_no_line_shows_the_password_of_a_url(form: type[logging.Formatter]) -> None:
    url = "postgresql://u:SECRET@h/d"
    told = form().format(record(f"at {url}", url=url, error=OSError(url), more={"url": [url]}))
    assert "SECRET" not in told
    assert told.count("postgresql://u:***@h/d") == (2 if form is ForPeople else 4)


def test_a_url_without_a_password_stays_as_it_is() -> None:
    url = "http://localhost:8000/users/@me and sqlite:///queue.db, mail to a:b@c"
    assert ForPeople().format(record(url)).endswith(url)


def test_those_of_an_application_that_set_up_nothing_are_told_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = logging.getLogger("leasestore").level
    with set_up_by(), told_by([lines(as_json=False, console=Console(stderr=True))]):
        logging.getLogger("leasestore.worker").info("ours")
        logging.getLogger("shop").warning("theirs")
        logging.getLogger("leasestore.worker").debug("too much")
    logging.getLogger("leasestore.worker").info("over")
    shown = capsys.readouterr()
    assert [line[25:] for line in shown.err.splitlines()] == [
        "INFO    ours",
        "WARNING shop: theirs",
    ]
    assert shown.out == ""
    assert logging.getLogger("leasestore").level == before


def test_an_application_that_set_up_its_logging_keeps_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    theirs = io.StringIO()
    ours = lines(as_json=True, console=Console(stderr=True))
    with set_up_by(logging.StreamHandler(theirs)), told_by([ours]):
        logging.getLogger("leasestore.watcher").info("ours")
        logging.getLogger("shop").warning("theirs")
    assert logging.getLogger("leasestore").propagate
    shown = capsys.readouterr()
    assert json.loads(shown.out)["message"] == "ours"
    assert (shown.err, theirs.getvalue()) == ("", "theirs\n")


def test_a_terminal_has_colours_and_whole_lines() -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=20, color_system="standard")
    with told_by([lines(as_json=False, console=console)]):
        logging.getLogger("leasestore.worker").error("[red]%s[/red]", "long " * 20)
        logging.getLogger("leasestore.worker").info("plain")
    failed, plain, end = shown.getvalue().split("\n")
    assert failed.startswith(f"{ESCAPE}[31m")
    assert f"[red]{'long ' * 20}[/red]" in failed
    assert ESCAPE not in plain
    assert end == ""


def test_a_line_that_cannot_be_shown_is_reported_as_logging_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    for as_json, on in ((False, console), (True, console)):
        with told_by([lines(as_json=as_json, console=on)]):
            logging.getLogger("leasestore.worker").info("%d", "no number")
        assert "--- Logging error ---" in capsys.readouterr().err


def test_the_progress_line_counts_what_the_worker_tells() -> None:
    tally = Tally()
    assert str(tally.__rich__()) == "done 0, retried 0, dead 0; running 0"
    for number in range(7):
        tally.handle(record("x", event="claimed", job_id=f"job-{number}", token=1))
    tally.handle(record("x", event="done", job_id="job-0", token=1))
    assert str(tally.__rich__()) == (
        "done 1, retried 0, dead 0; running 6: job-1, job-2, job-3, job-4, job-5, ..."
    )
    for number, event in enumerate(("retried", "dead", "left", "given-up", "gone"), 1):
        tally.handle(record("x", event=event, job_id=f"job-{number}", token=1))
    tally.handle(record("x", event="stale", job_id="job-9", token=1))
    tally.handle(record("x", event="outage"))
    tally.handle(record("x", "shop", event="done", job_id="job-6", token=1))
    assert str(tally.__rich__()) == ("done 1, retried 1, dead 1, stale 1, left 3; running 1: job-6")


@pytest.mark.parametrize("on_terminal", [True, False])
def test_log_lines_go_above_the_progress_line(
    on_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: on_terminal)
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=60)
    with progress(console) as tally, told_by([lines(as_json=False, console=console), tally]):
        logging.getLogger("leasestore.worker").debug("x", extra={"event": "claimed", "job_id": "a"})
        logging.getLogger("leasestore.worker").info("a line")
        print("printed by a handler")
    told = shown.getvalue()
    assert "a line\n" in told
    assert "running 1: a" in told.partition("a line\n")[2]
    # What goes to a file goes there.
    assert ("printed by a handler\n" in told) is on_terminal
    assert capsys.readouterr().out == ("" if on_terminal else "printed by a handler\n")
