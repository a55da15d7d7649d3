"""Times as people type and read them: `90s`, `10m`, `1h30m`."""

from __future__ import annotations

import re

from frostline.results.record import UsageError

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_NUMBER = r"(\d+(?:\.\d+)?)"
_FORM = re.compile("".join(rf"(?:{_NUMBER}{unit})?" for unit in _UNITS))
MOST_SECONDS = 7 * 24 * 3600.0


def parse_duration(text: str, what: str) -> float:
    """The seconds of `90s`, `10m`, `1.5h` or `1h30m`: hours, minutes and seconds in this order, those that are meant.

    A number alone is refused: minutes and seconds are too easily taken for each other.

    Args:
        text: what was typed.
        what: the option or key, for the message.

    Raises:
        UsageError: anything else, no time at all, or more than a week.
    """
    found = _FORM.fullmatch("".join(text.lower().split()))
    numbers = found.groups() if found else ()
    seconds = sum(float(number) * size for number, size in zip(numbers, _UNITS.values(), strict=False) if number)
    if not 0 < seconds <= MOST_SECONDS:
        raise UsageError(f"{what}: got {text!r}, wanted a time such as 90s, 10m or 1h30m, a week at most")
    return seconds
