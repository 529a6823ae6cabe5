"""SIGTERM and SIGINT as stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ENDING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopping(stop: Callable[[], object]) -> Iterator[None]:
    """While it lasts, each signal that asks to end is a call of `stop`. A signal that is ignored
    from outside stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        raise ValueError(
            "signals: expected a call in the main thread, the only one that Python lets handle "
            "signals; run without it here, and call worker.stop() from your own handler"
        )
    before = {number: signal.getsignal(number) for number in _ENDING}
    heeded = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    try:
        for number in heeded:
            signal.signal(number, lambda *_: stop())
        yield
    finally:
        for number in heeded:
            signal.signal(number, before[number] or signal.SIG_DFL)
