"""What a suite file may declare: each check raises UsageError with the argument, what was given and what was wanted.

Called by the declarations themselves and by the decorator `suite`, so that a mistake shows when the file is loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from frostline.results.record import METRICS, Bar, Kind, UsageError


class Declared(Protocol):
    """What is checked of a `Preset`."""

    @property
    def axes(self) -> Mapping[str, Sequence[Any]]:
        """Values for some axes."""

    @property
    def parts(self) -> Sequence[Mapping[str, Sequence[Any]]]:
        """More values, product by product."""

    @property
    def rounds(self) -> int:
        """Rounds of a look."""

    @property
    def implementations(self) -> Sequence[str]:
        """Who takes part; empty for all."""

    @property
    def shares(self) -> Mapping[str, Any]:
        """Who takes part in less."""

    def values(self, axis: str) -> Sequence[Any]:
        """Every value that the axis has in it."""


KINDS: Mapping[type, str] = {bool: "true or false", int: "a number", float: "a number", str: "a word"}
"""The types that a value of an axis may have, and what tells one axis from another: 8 and 8.0 are values of the same."""


def check_rounds(place: str, rounds: Any) -> None:
    """A whole number of rounds from 1 on."""
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise UsageError(f"{place}: rounds: got {rounds!r}, wanted a whole number from 1 on")


def check_names(place: str, given: Any, *, known: Collection[str] | None = None) -> None:
    """A list of different words, of `known` ones where they are told."""
    wanted = "a list of names" if known is None else f"some of {', '.join(known)}"
    if isinstance(given, str | Mapping) or not isinstance(given, Collection):
        raise UsageError(f"{place}: got {given!r}, wanted {wanted}")
    for name in given:
        if not isinstance(name, str) or not name or (known is not None and name not in known):
            raise UsageError(f"{place}: got {name!r}, wanted {wanted}")
    if len(set(given)) < len(given):
        raise UsageError(f"{place}: got {given!r}, wanted each name once")


def check_omitted(omit: Any) -> None:
    """Metrics that a step may leave out: any but its times."""
    check_names("Step: omit", omit, known=[name for name, metric in METRICS.items() if metric.kind is not Kind.TIMING])


def check_times(times: Any) -> None:
    """Metrics that a step is timed by: at least one."""
    known = [name for name, metric in METRICS.items() if metric.kind is Kind.TIMING]
    check_names("Step: times", times, known=known)
    if not times:
        raise UsageError(f"Step: times: got none, wanted some of {', '.join(known)}")


def check_values(place: str, given: Any) -> None:
    """Axes with values: a mapping from words to non-empty lists of numbers, words and booleans."""
    if not isinstance(given, Mapping):
        raise UsageError(f"{place}: got {given!r}, wanted axes with lists of values, like {{'n': [1, 2]}}")
    for axis, values in given.items():
        if isinstance(values, str | Mapping) or not isinstance(values, Sequence) or not values:
            raise UsageError(f"{place}: axis {axis!r} needs a non-empty list of values, got {values!r}")
        for value in values:
            if type(value) not in KINDS:
                raise UsageError(f"{place}: axis {axis!r}: got {value!r}, wanted numbers, words, True or False")


def check_axes(
    place: str,
    given: Mapping[str, Sequence[Any]],
    axes: Mapping[str, Sequence[Any]],
    known: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Axes that there are, with values of the kind that `axes` has; where `known` is told, only values that it has."""
    for axis, values in given.items():
        if axis not in axes:
            raise UsageError(f"{place}: {axis!r} is no axis; it has {', '.join(axes) or 'none'}")
        kinds = {KINDS[type(value)] for value in axes[axis]}
        for value in values:
            if KINDS.get(type(value)) not in kinds:
                raise UsageError(f"{place}: axis {axis!r}: got {value!r}, wanted {' or '.join(sorted(kinds))}")
            if known is not None and value not in known[axis]:
                wanted = ", ".join(dict.fromkeys(repr(one) for one in known[axis]))
                raise UsageError(f"{place}: axis {axis!r}: no case has {value!r}; cases have {wanted}")


def every_value(
    axes: Mapping[str, Sequence[Any]], choices: Mapping[str, Sequence[Any]], presets: Collection[Declared]
) -> Mapping[str, Sequence[Any]]:
    """Each axis with all values that it has by itself, in a preset, or by choice."""
    return {
        axis: [*values, *choices.get(axis, ()), *(value for preset in presets for value in preset.values(axis))]
        for axis, values in axes.items()
    }


def check_preset(
    place: str,
    preset: Declared,
    implementations: Sequence[str],
    baseline: str,
    axes: Mapping[str, Sequence[Any]],
    known: Mapping[str, Sequence[Any]],
) -> None:
    """A preset against its suite: its axes, parts, implementations and shares, which are of values `known` of all presets."""
    check_axes(place, preset.axes, axes)
    for part in preset.parts:
        check_axes(f"{place}: parts", part, axes)
    check_names(f"{place}: implementations", preset.implementations, known=implementations)
    chosen = [name for name in implementations if name in (preset.implementations or implementations)]
    baseline = baseline if baseline in chosen else next(iter(chosen), baseline)
    for implementation, share in preset.shares.items():
        if implementation not in implementations or implementation == baseline:
            what = "is the baseline, which takes part in everything" if implementation == baseline else "is no implementation"
            raise UsageError(f"{place}: shares: {implementation!r} {what}")
        if share.rounds is not None and not 1 <= share.rounds <= preset.rounds:
            raise UsageError(f"{place}: shares: {implementation!r} takes 1 to {preset.rounds} rounds, got {share.rounds}")
        check_axes(f"{place}: shares: {implementation!r}", share.axes, axes, known)


def check_bar(name: str, bar: Bar, implementations: Sequence[str], axes: Mapping[str, Sequence[Any]]) -> None:
    """A bar against its suite: the sides that it names, and the axes with their values."""
    if not isinstance(bar, Bar):
        raise UsageError(f"suite {name}: bars: got {bar!r}, wanted a Bar")
    place = f"suite {name}: bar {bar.says!r}"
    for role, chosen in (("side", bar.side), ("against", bar.against)):
        if chosen not in implementations and (role == "side" or chosen):
            wanted = ", ".join(implementations)
            raise UsageError(f"{place}: {role}={chosen!r} is no implementation; it has {wanted}")
    for chosen_values in (bar.where, bar.across):
        check_axes(place, {axis: [value] for axis, value in chosen_values.items()}, axes)
