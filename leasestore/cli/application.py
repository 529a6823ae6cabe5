"""`MODULE:ATTRIBUTE`: what an application has under this name, imported as `python -m` would."""

from __future__ import annotations

import difflib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import click

from leasestore import JobRepository
from leasestore.cli.secrets import masked

# From 0 to 1: below this a guess is rather a riddle.
_CLOSE = 0.7
_OURS = str(Path(__file__).parent)
_IMPORTING = "<frozen importlib", str(Path(import_module.__code__.co_filename).parent)


class Name(click.ParamType):  # type: ignore[type-arg]  # generic only in new releases
    """`MODULE:ATTRIBUTE`, not yet imported."""

    name = "MODULE:ATTRIBUTE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        module, colon, attribute = value.partition(":")
        if module.endswith(".py") or not all(map(str.isidentifier, module.split("."))):
            self.fail(f"expected MODULE:ATTRIBUTE, as in shop.jobs:send, got {value!r}", param, ctx)
        if not colon:
            package, dot, name = module.rpartition(".")
            meant = f"{package}:{name}" if dot else f"{module}:send"
            told = f"expected MODULE:ATTRIBUTE; there is no colon: did you mean {meant}?"
            self.fail(told, param, ctx)
        if not all(map(str.isidentifier, attribute.split("."))):
            self.fail(f"expected a name after the colon, as in {module}:send", param, ctx)
        return str(value)


def function(name: str) -> Any:
    """The function of this name; whether it is one that a worker can call, the worker says."""
    found = _found(name)
    if not callable(found):
        raise click.UsageError(f"{name} is no function, but of type {type(found).__name__}")
    return found


def repository(name: str) -> JobRepository:
    """The `JobRepository` of this name, or what the function of this name returns."""
    found = _found(name)
    if not isinstance(found, JobRepository) and callable(found):
        with _told_as_theirs(f"{name}() failed"):
            found = found()
    if not isinstance(found, JobRepository):
        raise click.UsageError(
            f"{name}: expected a JobRepository, or a function that returns one, got "
            f"{type(found).__name__}"
        )
    return found


def _found(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    module = _module(module_name)
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError:
        theirs = [name for name, what in vars(module).items() if not isinstance(what, ModuleType)]
        close = difflib.get_close_matches(attribute, theirs, n=1, cutoff=_CLOSE)
        hint = f"; did you mean {module_name}:{close[0]}?" if close else ""
        raise click.UsageError(f"module {module_name} has no {attribute}{hint}") from None


def _module(name: str) -> ModuleType:
    here = str(Path.cwd())
    # As `python -m` has it; not where Python was told to be safe (-P, PYTHONSAFEPATH).
    if not sys.flags.safe_path and not {"", here} & set(sys.path[:1]):
        sys.path.insert(0, here)
    with _told_as_theirs(f"cannot import {name}"):
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):
                raise
            missing = error.name
    raise click.UsageError(
        f"there is no module {missing} in {sys.path[0] or here}, nor in the rest of sys.path"
    )


@contextmanager
def _told_as_theirs(what: str) -> Iterator[None]:
    """Show an error of the application's code with its traceback, and nothing of ours in it."""
    try:
        yield
    except (Exception, SystemExit) as error:
        theirs = _without_ours(error.__traceback__)
        told = "".join(traceback.format_exception(type(error), error, theirs))
        click.echo(masked(told), err=True, nl=False)
        raise click.ClickException(f"{what}: {type(error).__name__}") from error


def _without_ours(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return frames


def _is_ours(file: str) -> bool:
    return file.startswith((_OURS + os.sep, *_IMPORTING))
