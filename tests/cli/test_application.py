"""`MODULE:ATTRIBUTE`: found as `python -m` would, and whose error it is when it is not."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from leasestore import JobRepository
from leasestore.cli import application
from tests.cli.conftest import Run, Written

QUEUE = """
from sqlalchemy import create_engine
from leasestore import JobRepository
engine = create_engine("sqlite:///queue.db")
"""


def refusal(name: str, what: Any = application.function) -> click.ClickException:
    with pytest.raises(click.ClickException) as refused:
        what(name)
    return refused.value


def test_a_function_is_found_in_the_current_directory(write: Written, here: Path) -> None:
    write("def send(event): return event")
    assert application.function("shop:send")("x") == "x"
    assert sys.path[0] == str(here)
    application.function("shop:send")
    assert sys.path.count(str(here)) == 1


def test_in_a_package_and_as_an_attribute_of_something(write: Written) -> None:
    write("", "store/__init__.py")
    write("class Courier:\n    @staticmethod\n    def send(event): return 7", "store/jobs.py")
    assert application.function("store.jobs:Courier.send")(None) == 7


def test_not_in_the_current_directory_where_python_is_told_to_be_safe(
    write: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("send = print")
    safe = SimpleNamespace(flags=SimpleNamespace(safe_path=True), path=sys.path)
    monkeypatch.setattr(application, "sys", safe)
    assert "there is no module shop" in refusal("shop:send").message


def test_an_interpreter_that_looks_in_the_current_directory_already(
    write: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("send = print")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert application.function("shop:send") is print
    assert sys.path[0] == ""


@pytest.mark.parametrize("name", ["nowhere:send", "nowhere.jobs:send", "shop.jobs:send"])
def test_a_module_that_is_not_there(write: Written, here: Path, name: str) -> None:
    write("")
    refused = refusal(name)
    assert refused.exit_code == 2
    missing = name.partition(":")[0] if name.startswith("shop") else "nowhere"
    assert refused.message == (
        f"there is no module {missing} in {here}, nor in the rest of sys.path"
    )


def test_a_function_that_is_not_there(write: Written) -> None:
    write("def send(event): ...\ndef other(event): ...")
    assert refusal("shop:sned").message == "module shop has no sned; did you mean shop:send?"
    assert refusal("shop:quite_else").message == "module shop has no quite_else"
    assert refusal("shop:send.more").exit_code == 2


def test_no_guess_is_better_than_a_poor_one(write: Written) -> None:
    write("import os\nimport job\ndef oss(event): ...")
    write("", "job.py")
    assert refusal("shop:jobs").message == "module shop has no jobs"


def test_what_is_no_function(write: Written) -> None:
    write("send = 'x'")
    refused = refusal("shop:send")
    assert (refused.exit_code, refused.message) == (2, "shop:send is no function, but of type str")


ERRORS = {
    "an error": ("1 / 0", "ZeroDivisionError"),
    "a module of theirs": ("import nothing_of_that_name", "ModuleNotFoundError"),
    "their package": ("import shop.more", "ModuleNotFoundError"),
    "a bad line": ("def send(", "SyntaxError"),
    "an exit": ("raise SystemExit(7)", "SystemExit"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_within_their_module_is_theirs_and_shown_from_their_line_on(
    case: str, write: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    source, kind = ERRORS[case]
    write(source)
    refused = refusal("shop:send")
    assert (refused.exit_code, refused.message) == (1, f"cannot import shop: {kind}")
    shown = capsys.readouterr().err
    assert 'shop.py", line 1' in shown
    assert f"\n{kind}" in shown
    assert "leasestore" not in shown
    assert "importlib" not in shown


def test_a_password_in_the_line_that_failed_is_not_shown(
    write: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    write("open('postgresql://shop:SECRET@db/shop')")
    refusal("shop:send")
    shown = capsys.readouterr().err
    assert "postgresql://shop:***@db/shop" in shown
    assert "SECRET" not in shown


def test_a_repository_or_a_function_that_makes_it(write: Written) -> None:
    write(f"{QUEUE}\njobs = JobRepository(engine)\ndef make(): return jobs")
    jobs = application.repository("shop:jobs")
    assert isinstance(jobs, JobRepository)
    assert application.repository("shop:make") is jobs


def test_what_is_no_repository(write: Written) -> None:
    write(f"{QUEUE}\ndef make(): return engine\ndef fail(): return 1 / 0")
    expected = "expected a JobRepository, or a function that returns one, got"
    for name in ("shop:engine", "shop:make"):
        refused = refusal(name, application.repository)
        assert (refused.exit_code, refused.message) == (2, f"{name}: {expected} Engine")
    refused = refusal("shop:fail", application.repository)
    assert (refused.exit_code, refused.message) == (1, "shop:fail() failed: ZeroDivisionError")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("shop", "there is no colon: did you mean shop:send?"),
        ("shop.jobs.send", "there is no colon: did you mean shop.jobs:send?"),
        ("shop:", "expected a name after the colon"),
        ("shop:a..b", "expected a name after the colon"),
        ("shop.py:send", "expected MODULE:ATTRIBUTE, as in shop.jobs:send, got 'shop.py:send'"),
        ("store/shop:send", "expected MODULE:ATTRIBUTE"),
        ("..shop:send", "expected MODULE:ATTRIBUTE"),
        (":send", "expected MODULE:ATTRIBUTE"),
    ],
)
def test_a_name_of_another_form(run: Run, name: str, told: str) -> None:
    ran = run("work", name, "--db", "queue.db")
    assert ran.exit_code == 2
    assert told in ran.stderr
