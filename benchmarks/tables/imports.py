"""What `import leasestore` takes, in fresh interpreters."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from benchmarks.bench import Bench
from benchmarks.measure import Table, in_turns

_TIMED = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"
_BASE = "import sqlalchemy.orm"
_IMPORTS = _BASE, "import leasestore", "from leasestore import JobRepository, Job"


def imports(bench: Bench) -> Table:
    table = Table("imports", "Importing, in fresh interpreters", "ms", _BASE)
    bench.say("imports")
    turns = {code: partial(_ms, code) for code in _IMPORTS}
    table.add("bytecode compiled before", in_turns(bench.sizes.rounds, turns), _BASE)
    return table


def _ms(code: str) -> float:
    command = [sys.executable, "-c", _TIMED.format(code)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) * 1e3
