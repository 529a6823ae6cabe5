"""The tables as a picture."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, Table

_COLOURS = {"leasestore": "#1b6ca8", "by hand": "#9aa5b1"}
_OTHERS = "#d9a441"
_ROW_INCHES = 0.26


def write_plot(path: Path, tables: list[Table]) -> None:
    """One panel a table: ratios where there are any, else the figures.

    Raises:
        ImportError: matplotlib is not installed (`pip install 'leasestore[benchmarks]'`).
    """
    matplotlib: Any = import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = import_module("matplotlib.pyplot")
    heights = [len(table.rows) + 3 for table in tables]
    figure, panels = pyplot.subplots(
        len(tables),
        squeeze=False,
        figsize=(11, _ROW_INCHES * sum(heights)),
        height_ratios=heights,
        layout="constrained",
    )
    for table, (panel,) in zip(tables, panels, strict=True):
        _draw(panel, table)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw(panel: Any, table: Table) -> None:
    shown = [row.ratio or row.figure for row in table.rows]
    names = [f"{row.group}: {row.contender}" for row in table.rows]
    medians = [spread.median for spread in shown]
    places = range(len(shown))
    panel.barh(places, medians, color=[_colour(row) for row in table.rows], height=0.7)
    errors = [
        [spread.median - spread.low for spread in shown],
        [spread.high - spread.median for spread in shown],
    ]
    panel.errorbar(medians, places, xerr=errors, fmt="none", ecolor="#333333", elinewidth=1)
    panel.set_yticks(places, names, fontsize=7)
    panel.invert_yaxis()
    if max(medians) > 20 * min(medians) > 0:
        panel.set_xscale("log")
    panel.axvline(1, color="#333333", linewidth=0.8)
    panel.set_title(f"{table.title}\n({table.reading})", fontsize=9, loc="left")


def _colour(row: Row) -> str:
    return next((c for name, c in _COLOURS.items() if row.contender.startswith(name)), _OTHERS)
