"""Ending by a signal, with everything cleaned up on the way."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# SIGHUP is not everywhere.
_ENDING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


class Interrupted(BaseException):
    """A signal came that asks to end; `exit_code` is the shell's for it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def interruptible(*first: Callable[[], object]) -> Iterator[None]:
    """Raise `Interrupted` at the first signal that asks to end, and ignore further ones.

    A second Ctrl-C would otherwise interrupt the cleaning up after the first. Where there is
    something to be done `first`, each signal is a call of the next of these, and the one after
    them raises. A signal that is ignored from outside, as by nohup, stays ignored.
    """
    before = {number: signal.getsignal(number) for number in _ENDING}
    heeded = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    left = list(first)

    def interrupt(number: int, _: FrameType | None) -> None:
        if left:
            left.pop(0)()
            return
        for one in heeded:
            signal.signal(one, signal.SIG_IGN)
        raise Interrupted(number)

    for number in heeded:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, before[number])
