"""A child's end of its pipes, the only place where one reads or writes them: a line of orders
comes in, reports go out, and the end of the input means stop, also when the parent just died."""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict
from typing import Any

from leasestore.demo.facts import Fact


def orders() -> dict[str, Any]:
    """Wait for the parent's orders; without any, end."""
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    told: dict[str, Any] = json.loads(line)
    return told


def report(fact: Fact) -> None:
    """Tell the parent of a fact."""
    say(**asdict(fact))


def say(**message: object) -> None:
    """Tell the parent anything else."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def wait_for_end() -> None:
    """Block until the parent closes our input; nothing comes after the orders."""
    # Not through sys.stdin: a thread blocked in there would hold its lock at interpreter exit.
    os.read(sys.stdin.fileno(), 1)


def end_requested() -> threading.Event:
    """An event that is set as soon as the parent closes our input."""
    end = threading.Event()

    def watch() -> None:
        wait_for_end()
        end.set()

    threading.Thread(target=watch, daemon=True).start()
    return end
