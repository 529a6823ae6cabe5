"""Starting, hearing and killing the processes of `tests.crash.workers` and its like, from the
test's side."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

LONGEST_WAIT_S = 30
_ROOT = str(Path(__file__).parents[2])


class Child:
    """A process of its own that does one work of `tests.crash.workers`, or of a module like it."""

    def __init__(self, work: Callable[..., None], *arguments: object) -> None:
        path = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
        self.pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-W", "error", "-m", work.__module__),
                    *(str(theirs.fileno()), work.__name__),
                ],
                pass_fds=[theirs.fileno()],
                env=os.environ | {"PYTHONPATH": path},
            )
        self.pipe.send(arguments)

    def listen(self) -> tuple[Any, ...]:
        """What the process says next."""
        assert self.pipe.poll(LONGEST_WAIT_S), "waited in vain for the process"
        said: tuple[Any, ...] = self.pipe.recv()
        return said

    def hear(self, expected: str) -> Any:
        """The same where the first word is known: what comes with it."""
        said, *rest = self.listen()
        assert said == expected, (said, *rest)
        return rest[0] if rest else None

    def tell(self, what: object) -> None:
        self.pipe.send(what)

    def call(self, verb: str, **arguments: object) -> Any:
        """The answer of a process that obeys."""
        self.tell((verb, arguments))
        return self.hear("answer")

    def kill(self) -> None:
        """SIGKILL: no handler, no `finally`, no rollback of its own."""
        self._process.kill()
        assert self._process.wait(LONGEST_WAIT_S) == -signal.SIGKILL, "it had ended before"

    def stop(self) -> None:
        """SIGSTOP, and wait until it really stands still."""
        self._process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ended(self) -> int:
        """The exit code of a process that ends by itself."""
        return self._process.wait(LONGEST_WAIT_S)

    def discard(self) -> None:
        self._process.kill()
        self._process.wait(LONGEST_WAIT_S)
        self.pipe.close()


def first_to_speak(children: list[Child]) -> Child:
    """A child that has something to say."""
    pipes: list[Any] = [child.pipe for child in children]
    speaking = wait(pipes, LONGEST_WAIT_S)
    assert speaking, "waited in vain for any of them"
    return next(child for child in children if child.pipe is speaking[0])


Start = Callable[..., Child]
"""The fixture `start`: a work, and its arguments."""


def is_locked(path: Path) -> bool:
    """Whether somebody holds the write lock at this moment."""
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as plain:
        try:
            plain.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        return False


def is_sound(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as plain:
        return plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
