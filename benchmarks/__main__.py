"""`python -m benchmarks`: arguments in, tables out."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path

from benchmarks.bench import QUICK, Bench, Sizes
from benchmarks.databases import Files, server
from benchmarks.plot import write_plot
from benchmarks.report import heading, machine, text, write_json
from benchmarks.tables import TABLES

_BACKENDS = ("sqlite", "postgresql")
_HELP = {
    "rounds": "rounds of the cycles and imports",
    "cycles": "full cycles a round",
    "claims": "claims from each backlog",
    "scale": "factor of the sizes of the backlogs",
    "window_s": "seconds that processes work on one queue",
    "warm_up": "cycles of each of these processes before",
    "windows": "how often they do",
    "drain_jobs": "jobs that our worker and a peer's drain",
    "bloat_jobs": "jobs through one table on PostgreSQL",
}


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _asked(arguments)
    with ExitStack() as open_until_the_end:
        folder = open_until_the_end.enter_context(tempfile.TemporaryDirectory())
        databases = None
        if "postgresql" in asked.backends:
            databases = open_until_the_end.enter_context(server(asked.postgresql))
        sqlite = "sqlite" in asked.backends
        bench = Bench(Files(Path(folder)), databases, _sizes(asked), sqlite, asked.peers)
        about = machine(bench)
        sys.stdout.write(heading(about))
        for name in asked.tables:
            table = TABLES[name](bench)
            if table.rows:
                bench.tables.append(table)
                sys.stdout.write(text(table))
                sys.stdout.flush()
    if asked.json:
        write_json(asked.json, about, bench.tables)
    if asked.plot and bench.tables:
        write_plot(asked.plot, bench.tables)
    return 0


def _asked(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    asked = parser.parse_args(arguments)
    if asked.plot and find_spec("matplotlib") is None:
        parser.error("--plot: needs matplotlib: pip install 'leasestore[benchmarks]'")
    asked.peers |= asked.tables is not None and "peers" in asked.tables
    asked.tables = asked.tables or list(TABLES)
    return asked


def _sizes(asked: argparse.Namespace) -> Sizes:
    given = {field.name: getattr(asked, field.name) for field in fields(Sizes)}
    chosen = {name: value for name, value in given.items() if value is not None}
    return replace(QUICK if asked.quick else Sizes(), **chosen)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        description="Measure leasestore against the same contract by hand, and against peers.",
    )
    parser.add_argument(
        *("--tables", "-t"),
        type=_among("tables", tuple(TABLES)),
        metavar="A,B",
        help=f"which: {', '.join(TABLES)} (default: all)",
    )
    parser.add_argument(
        "--backends",
        type=_among("backends", _BACKENDS),
        default=list(_BACKENDS),
        metavar="A,B",
        help=f"which: {', '.join(_BACKENDS)} (default: both)",
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help="measure peers, too: those of benchmarks/peers.txt that are installed",
    )
    parser.add_argument("--postgresql", metavar="URL", help="a server to use, not one of our own")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the tables there too")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw them (matplotlib)")
    parser.add_argument("--quick", action="store_true", help="small sizes, a few minutes")
    for field in fields(Sizes):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=float if field.type == "float" else int,
            metavar="N",
            help=f"{_HELP[field.name]} (default: {field.default})",
        )
    return parser


def _among(what: str, known: tuple[str, ...]) -> Callable[[str], list[str]]:
    def chosen(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"expected {what} out of {', '.join(known)}, got {', '.join(unknown)}"
            )
        return names

    return chosen


if __name__ == "__main__":
    # So that a run that is told to stop takes its server and its files with it.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(main())
