"""What `import leasestore` takes, in fresh interpreters."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from benchmarks.bench import Bench
from benchmarks.measure import Table, in_turns

_TIMED = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"
_BASE = "sqlalchemy.orm"


def imports(bench: Bench) -> Table:
    table = Table("imports", "Importing, in fresh interpreters", "ms", f"import {_BASE}")
    bench.say("imports")
    turns = {module: partial(_ms, module) for module in (_BASE, "leasestore")}
    table.add("bytecode compiled before", in_turns(bench.sizes.rounds, turns), _BASE)
    return table


def _ms(module: str) -> float:
    command = [sys.executable, "-c", _TIMED.format(module)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) * 1e3
