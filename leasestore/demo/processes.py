"""The parent's end of the pipes: processes that are started, told, heard, and never left over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import IO, Any, Self

_MOMENT_S = 0.1
_GRACE_S = 3.0


class DemoFailed(Exception):
    """The demo could not run to its end; everything was stopped."""


class Child:
    """A process that takes one line of orders and reports in lines of JSON.

    Args:
        name: what to call it.
        module: what it runs.
        log: where its stderr goes.
        mail: where its lines go, each with its name; None is the end of its output.
    """

    def __init__(
        self, name: str, module: str, log: IO[bytes], mail: SimpleQueue[tuple[str, str | None]]
    ) -> None:
        self.name, self.killed = name, False
        self._process = subprocess.Popen(  # noqa: S603 - this very interpreter
            # -P: the directory that the user happens to be in is no place to import from.
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            encoding="utf-8",
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            # Ctrl-C is for the parent, which ends its children itself.
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout, self._mail = self._process.stdin, self._process.stdout, mail
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def tell(self, **orders: object) -> None:
        """Give it its orders."""
        # If it has ended already, the end of its output says so, and says more.
        with suppress(BrokenPipeError):
            self._stdin.write(json.dumps(orders) + "\n")
            self._stdin.flush()

    def kill(self) -> str:
        """Send it SIGKILL, and name the signal that it died of."""
        self.killed = True
        self._process.kill()
        return f"signal {-self._process.wait()}"

    def dismiss(self) -> None:
        """Close its input, which asks it to end."""
        with suppress(BrokenPipeError):
            self._stdin.close()

    def join(self, seconds: float) -> None:
        """Give it so long to end, then kill it; either way all its lines have come."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join()
        self._stdout.close()

    def _read(self) -> None:
        for line in self._stdout:
            self._mail.put((self.name, line))
        self._mail.put((self.name, None))


class Crew:
    """The processes of the demo; none outlives the `with` block.

    Args:
        log: the file for what they write to stderr.
        seconds: how long the whole may last.
    """

    def __init__(self, log: Path, seconds: float) -> None:
        self._log, self._seconds = log, seconds
        self._deadline = time.monotonic() + seconds
        self._children: dict[str, Child] = {}
        self._mail: SimpleQueue[tuple[str, str | None]] = SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, name: str, module: str) -> Child:
        """Start a module as a process."""
        with self._log.open("ab") as log:
            child = self._children[name] = Child(name, module, log, self._mail)
        return child

    def hear(self) -> dict[str, Any] | None:
        """The next report of any of them, or None if for a moment there was none.

        Raises:
            DemoFailed: time is up, or one of them ended unasked.
        """
        if time.monotonic() > self._deadline:
            raise DemoFailed(f"it had not come to its end after {self._seconds:g} s")
        try:
            name, line = self._mail.get(timeout=_MOMENT_S)
        except Empty:
            return None
        if line is not None:
            return _parsed(line)
        if not self._children[name].killed:
            raise DemoFailed(f"{name} ended unasked: {self._last_words()}")
        return None

    def stop(self) -> Iterator[dict[str, Any]]:
        """End all of them, and give the reports that were not heard yet."""
        for child in self._children.values():
            child.dismiss()
        patience = time.monotonic() + _GRACE_S
        for child in self._children.values():
            child.join(max(0.0, patience - time.monotonic()))
        return self._unheard()

    def _unheard(self) -> Iterator[dict[str, Any]]:
        while not self._mail.empty():
            _, line = self._mail.get()
            if line is not None:
                yield _parsed(line)

    def _last_words(self) -> str:
        """The last error in the log, past the notes that SQLAlchemy puts under its own."""
        lines = self._log.read_text(errors="replace").split("\n")
        errors = [line for line in lines if line and line[0] not in " (["]
        return errors[-1] if errors else "it wrote no error"


def _parsed(line: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(line)
    return report
