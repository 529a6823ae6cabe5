"""The command line: what it shows, and how it ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from click.testing import CliRunner
from click.testing import Result as Ran
from rich.console import Console

from leasestore import Event, cli
from leasestore.cli import commands, demo_report
from leasestore.cli.signals import Interrupted, interruptible
from leasestore.demo import conductor
from leasestore.demo.facts import Count, Fact, Result
from leasestore.demo.processes import DemoFailed
from tests.unit.test_demo_facts import row

TIMELINE = [
    Fact(100, "courier-1", "claimed", "a", 1),
    Fact(110, "courier-1", "sent", "a", 1, "counted"),
    Fact(120, "courier-1", "killed", "a", 1, "signal 9"),
    Fact(130, "courier-2", "claimed", "b", 1),
    Fact(140, "courier-2", "sent", "b", 1, "counted"),
    Fact(150, "courier-2", "finished", "b", 1, "done"),
    Fact(1600, "courier-1", "lease over", "a", 1),
    Fact(1610, "courier-2", "claimed", "a", 2),
    Fact(1620, "courier-2", "sent", "a", 2, "counted before"),
    Fact(1630, "courier-2", "finished", "a", 2, "done"),
]
GOOD = Result("a", TIMELINE, [row("a"), row("b")], {"a": Count(2, 1, 2), "b": Count(1, 1, 2)})
DOUBLED = Result("a", TIMELINE, GOOD.jobs, {"a": Count(2, 2, 4), "b": Count(1, 1, 2)})
LOST = Result("a", TIMELINE, [row("a"), row("b", "dead")], {"a": Count(2, 1, 2)})


def leasestore(*arguments: str) -> Ran:
    return CliRunner().invoke(commands.leasestore, arguments)


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Callable[[Result | BaseException], None]:
    """Let the demo end in this way."""

    def end(how: Result | BaseException) -> None:
        def run(
            orders: Sequence[Event], keep: Path | None, watch: Callable[[Fact], None]
        ) -> Result:
            if isinstance(how, BaseException):
                raise how
            for fact in how.timeline:
                watch(fact)
            return how

        monkeypatch.setattr(conductor, "run", run)

    return end


Ending = Callable[[Result | BaseException], None]


def test_a_demo_that_went_well(ending: Ending) -> None:
    ending(GOOD)
    ran = leasestore("demo")
    assert ran.exit_code == 0, ran.output
    lines = [line.strip() for line in ran.output.split("\n")]
    for line in (
        "0.10 s  courier-1  claimed a, token 1; receiver: counted",
        "0.12 s  courier-1  KILLED (signal 9) before it could finish a",
        "0.13 s  courier-2  claimed b, token 1; receiver: counted; done",
        "1.60 s             the lease of a, token 1, is over",
        "1.61 s  courier-2  recovered a, token 2; receiver: counted before; done",
        "Orders 2, requests 3, effects 2: nothing lost, nothing doubled.",
    ):
        assert line in lines, ran.output
    assert ran.output.isascii()


def test_the_demo_says_what_it_kept(ending: Ending, tmp_path: Path) -> None:
    ending(GOOD)
    ran = leasestore("demo", "--keep", str(tmp_path))
    assert ran.output.endswith(
        f"The jobs: {tmp_path / 'queue.db'}\nThe receiver's tables: {tmp_path / 'inbox.db'}\n"
    )


@pytest.mark.parametrize(
    ("result", "said"),
    [(DOUBLED, "Lost: none. Doubled: a."), (LOST, "Lost: b. Doubled: none.")],
)
def test_a_wrong_result_is_status_1(ending: Ending, result: Result, said: str) -> None:
    ending(result)
    ran = leasestore("demo")
    assert ran.exit_code == 1
    assert f"WRONG. {said}" in " ".join(ran.output.split())


@pytest.mark.parametrize("error", [DemoFailed("no reason"), OSError("no reason")])
def test_a_demo_that_failed_is_status_1(ending: Ending, error: Exception) -> None:
    ending(error)
    ran = leasestore("demo")
    assert ran.exit_code == 1
    assert ran.stderr == "Error: the demo failed: no reason\n"


def test_an_interrupted_demo_has_the_shells_status(ending: Ending) -> None:
    ending(Interrupted(signal.SIGINT))
    ran = leasestore("demo")
    assert ran.exit_code == 130
    assert ran.stderr == "Interrupted by SIGINT; every process was stopped.\n"


def test_bad_orders_are_status_2_and_nothing_is_made(tmp_path: Path) -> None:
    orders, keep = tmp_path / "orders.jsonl", tmp_path / "keep"
    orders.write_text("{")
    ran = leasestore("demo", "--orders", str(orders), "--keep", str(keep))
    assert ran.exit_code == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith(f"Error: {orders}, line 1: expected JSON")
    assert ran.stderr.count("\n") == 1
    assert not keep.exists()


def test_a_used_directory_is_status_2(tmp_path: Path) -> None:
    (tmp_path / "queue.db").touch()
    ran = leasestore("demo", "--keep", str(tmp_path))
    assert ran.exit_code == 2
    assert "of an earlier run" in ran.stderr


def test_the_opening_counts_the_orders() -> None:
    one: Event = {"id": "a", "qty": 1}
    assert demo_report.opening([one]).startswith("1 order is in a queue file")
    assert demo_report.opening([one, one]).startswith("2 orders are in a queue file")


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (1, "courier-1 claimed a"),
        (3, "courier-1 killed, a waits for the end of its lease"),
        (7, "courier-1 killed, a waits for the end of its lease"),
        (8, "courier-2 claimed a"),
        (10, "courier-2 finished a"),
    ],
)
def test_the_progress_line_says_what_is_waited_for(facts: int, line: str) -> None:
    assert demo_report.progress(TIMELINE[:facts]) == line


def test_an_order_that_nobody_finished_is_shown() -> None:
    console = Console(width=80)
    with console.capture() as shown:
        console.print(demo_report.orders(Result("a", [], [row("a", "dead")], {})))
    line = shown.get().split("\n")[1]
    assert line.split() == ["a", "dead", "nobody", "1", "2", "0", "0", "0"]


def test_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "version", lambda name: f"of {name}")
    ran = leasestore("--version")
    assert (ran.exit_code, ran.output) == (0, "leasestore of leasestore\n")


def test_version_of_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(commands, "version", absent)
    ran = leasestore("--version")
    assert (ran.exit_code, ran.output[:11]) == (0, "leasestore,")


@pytest.mark.parametrize("name", ["click", "rich"])
def test_without_the_extra_one_line_says_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in list(sys.modules):
        if module.startswith((f"{name}.", "leasestore.cli.")):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr()
    assert end.value.code == 2
    remedy = "pip install 'leasestore[cli]', or in a checkout pip install '.[cli]'"
    assert (said.out, said.err) == ("", f"{name} is missing: {remedy}\n")


def test_another_missing_module_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "leasestore.cli.commands", None)
    with pytest.raises(ModuleNotFoundError, match=r"leasestore\.cli\.commands"):
        cli.main()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_interrupts_and_a_second_one_is_ignored(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    cleaned = False
    with pytest.raises(Interrupted) as interrupted, interruptible():  # noqa: PT012
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), signal.SIGINT)
            cleaned = True
    assert cleaned
    assert interrupted.value.exit_code == 128 + number
    assert str(interrupted.value) == number.name
    assert signal.getsignal(number) is before


def test_a_signal_ignored_from_outside_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
