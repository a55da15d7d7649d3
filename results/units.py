"""Stored values (ns, B, FLOP, counts) in units that people read, with four significant digits.

Bytes use binary prefixes (1 GiB = 2^30 B), everything else decimal ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_SCALES: dict[str, Sequence[tuple[float, str]]] = {
    "ns": ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")),
    "B": ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
    "FLOP": ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"), (1.0, "FLOP")),
    "1": ((1.0, ""),),
    "1/s": ((1.0, "/s"),),
}

MISSING = "-"


def human_scale(value: float, unit: str) -> tuple[float, str]:
    """The factor and the name of the unit that suits a value: (1e6, "ms") for 2.5e6 ns. An unknown unit stays as it is."""
    scales = _SCALES.get(unit, ((1.0, unit),))
    for factor, name in scales:
        # What would print as 1,000 or more of a unit belongs to the next: 999.96 us is 1.000 ms.
        if abs(value) >= factor * (1 - 5e-5):
            return factor, name
    return scales[-1]


def format_value(value: float, unit: str, *, beside: float | None = None) -> str:
    """A value with its unit, for example `263.7 ms`, `3.250 GiB`, `1,204`; `-` for NaN.

    `beside` is a value that it is compared with: both in its unit are easier to compare than each in its own.
    """
    if math.isnan(value):
        return MISSING
    factor, name = human_scale(value if beside is None else beside, unit)
    return f"{_digits(value / factor, whole=factor == 1.0 and value == round(value))} {name}".rstrip()


def format_apart(first: float, second: float, unit: str) -> tuple[str, str]:
    """Two values that are compared, in one unit: in units of one where fewer digits would show them as equal."""
    largest = max(first, second) if first == first and second == second else None
    told = format_value(first, unit, beside=largest), format_value(second, unit, beside=largest)
    if largest is None or first == second or told[0] != told[1]:
        return told
    exact = [f"{_digits(one, whole=one == round(one))} {'' if unit == '1' else unit}".rstrip() for one in (first, second)]
    return exact[0], exact[1]


def format_ratio(ratio: float) -> str:
    """A ratio with three decimals, and with more where it would look like none: `1.000` is 1 and nothing else."""
    off = abs(ratio - 1)
    return f"{ratio:.{3 if off >= 5e-4 or off == 0 else _first_digit(off)}f}"


def format_spread(value: float, spread: float, unit: str) -> str:
    """A value with its spread in the same unit and to the same place, for example `263.7 ± 0.4 ms`; no spread for NaN."""
    if math.isnan(value) or math.isnan(spread):
        return format_value(value, unit)
    factor, name = human_scale(value, unit)
    places = _places(value / factor)
    return f"{value / factor:,.{places}f} ± {spread / factor:,.{places}f} {name}".rstrip()


def format_change(ratio: float) -> str:
    """A ratio as a change, for example `-44.1 %` or `+5.0 %`; from three times on, as a multiple: `9.80 x`; `-` for NaN."""
    if math.isnan(ratio):
        return MISSING
    if ratio >= 3:
        return f"{_digits(ratio)} x"
    change = 100 * (ratio - 1)
    size = abs(change)
    places = 1 if size >= 0.95 or size == 0 else 2 if size >= 5e-3 else _first_digit(size)
    return f"{change:+.{places}f} %"


def format_saving(ratio: float) -> str:
    """A ratio as what it saves, for example `44.1 %` for 0.559, `-5.0 %` for 1.05; `-` for NaN."""
    return MISSING if math.isnan(ratio) else f"{round(100 * (1 - ratio), 1) + 0.0:.1f} %"  # + 0.0: no minus zero


def format_percent(fraction: float) -> str:
    """A fraction in per cent with as many decimals as it needs, at most two: `3 %`, `0.25 %`."""
    return f"{round(100 * fraction, 2):g} %"


def _first_digit(size: float) -> int:
    """The decimal place of the first digit of a number below 1, at most twelve."""
    return min(12, math.ceil(-math.log10(size)))


def _digits(value: float, *, whole: bool = False) -> str:
    return f"{value:,.0f}" if whole else f"{value:,.{_places(value)}f}"


def _places(value: float) -> int:
    """Decimals that give four significant digits, at most three; numbers as large as 1,000 need none."""
    if value == 0:
        return 0
    return min(3, max(0, 3 - math.floor(math.log10(abs(value)) + 1e-9)))
