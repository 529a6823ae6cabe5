"""Values for each kind of argument, from both sides of its bounds (CONTRACT.md, "Values")."""

from __future__ import annotations

import math
import string
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any, NoReturn


class Number(int):
    """An int, but not of the built-in type."""


class Real(float):
    """A float, but not of the built-in type, as numpy's are."""


class Text(str):
    """A str, but not of the built-in type."""


class Record(dict[str, Any]):
    """A dict, but not of the built-in type."""


class Nameless:
    """An object that cannot even be shown."""

    def __repr__(self) -> NoReturn:
        raise RuntimeError("no repr")


@dataclass(frozen=True)
class Values:
    good: tuple[Any, ...]
    bad: tuple[Any, ...]


def integers(low: int, high: int) -> Values:
    return Values(
        good=(low, low + 1, high - 1, high),
        bad=(
            *(None, True, False, float(low), low + 0.5, math.nan, math.inf, -math.inf),
            *(str(low), b"1", "\u0663", "", Decimal(low), Fraction(low), Number(low), 1j),
            *([low], (low,), {low}, {low: low}, Nameless(), object()),
            *(low - 1, high + 1, -high, 2**63, -(2**63) - 1, 10**400),
        ),
    )


JITTERS = Values(
    good=(0, 1, 0.0, 1.0, -0.0, 0.5, 5e-324, math.nextafter(1, 0)),
    bad=(
        *(None, True, False, "0.5", b"1", Decimal("0.5"), Fraction(1, 2), Real(0.5), Number(1), 0j),
        *(math.nan, math.inf, -math.inf, -1, 2, 10**400),
        *(math.nextafter(0, -1), math.nextafter(1, 2), [0.5], (0.5,), Nameless()),
    ),
)

IDENTIFIERS = Values(
    good=("a", "Z", "0", "_", "-", "a" * 64, string.ascii_letters, string.digits + "_-"),
    bad=(
        *(None, True, 0, 1, 1.5, math.nan, b"a", bytearray(b"a"), Text("a"), ["a"], ("a",), {"a"}),
        *("", "a" * 65, "a" * 100_000, " ", "a b", " a", "a ", "a\n", "\na", "a\r", "a\t", "a\0"),
        *("\0", "\u0663", "a\u0663", "\u00e9", "\uff21", "\u212a", "a\u200b", "\ud800", "\u2028"),
        *("a.b", "a/b", "a:b", "a+b", "a=b", "a'b", 'a"b', "a;b", "a%b", "a\\b", "a*b", "a@b"),
        Nameless(),
    ),
)

OUTCOMES = Values(
    good=("ok", "retry", "permanent"),
    bad=(
        *(None, True, 1, b"ok", Text("ok"), "", "OK", "ok ", "ok\n", "done", "dead", "stale"),
        *(["ok"], ("ok",), {"ok"}, {}, Nameless()),
    ),
)

FAULTS = Values(good=(None, lambda point: None), bad=(0, 1, True, False, "after-claim", (), [], {}))


def records(good: Mapping[str, Any]) -> Values:
    """A strict dict with exactly these keys, and what comes near it."""
    items = dict(good)
    first = next(iter(items))
    renamed = {Text(first) if key == first else key: value for key, value in items.items()}
    return Values(
        good=(items, dict(reversed(items.items()))),
        bad=(
            *(None, True, 1, "", "a", first, [], list(items.items()), tuple(items.items())),
            *({}, Record(items), MappingProxyType(items), items.keys(), renamed, Nameless()),
            *({key: items[key] for key in items if key != missing} for missing in items),
            *({**items, extra: 1} for extra in ("extra", "", 1, None, first.upper(), b"id")),
            {first.upper(): items[first], **{key: items[key] for key in items if key != first}},
            {**{key: items[key] for key in items if key != first}, None: items[first]},
            [*items],
        ),
    )
