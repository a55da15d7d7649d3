"""What is compared: a side is an implementation at a source, at a position of its session.

Both are plain data that a session's plan keeps as JSON, so that an interrupted session can be finished later.
`sources.py` makes them of what was typed, and brings back one whose export has left the cache since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frostline.results.record import SideRecord


@dataclass(frozen=True)
class Source:
    """The code on the path of a side.

    label: as the user typed it, or `installed`, or `working tree`; with the extra requirements of this side.
    kind: `installed`, `git`, `worktree`, `pypi` or `path`.
    identity: a hash of the content that the source led to. Two sources of one identity are the same code.
    path: the directory to put in front of `sys.path`; it holds the target packages and what `--with` asks for.
        None: what is installed.
    targets: dotted names of the packages in question. Every module of theirs must be loaded from this source.
    detail: what else is worth keeping: commit, subject, hash of the difference, repository, version, ...
    """

    label: str
    kind: str
    identity: str
    path: Path | None = None
    targets: tuple[str, ...] = ()
    detail: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The source as JSON types, for `from_json`."""
        return {
            "label": self.label,
            "kind": self.kind,
            "identity": self.identity,
            "path": None if self.path is None else str(self.path),
            "targets": list(self.targets),
            "detail": dict(self.detail),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Source:
        """The source that `to_json` wrote. Its export may be gone: see `sources.restore`."""
        path = None if data["path"] is None else Path(data["path"])
        return cls(data["label"], data["kind"], data["identity"], path, tuple(data["targets"]), dict(data["detail"]))


@dataclass(frozen=True)
class Side:
    """An implementation at a source, at a position of its session. `baseline`: the others are judged against it."""

    position: int
    implementation: str
    source: Source
    baseline: bool = False

    @property
    def label(self) -> str:
        """A name to print: the implementation, with its source unless that is what is installed."""
        return self.record().label

    def record(self) -> SideRecord:
        """The side as the store keeps it."""
        return SideRecord(
            position=self.position,
            implementation=self.implementation,
            source=self.source.label,
            source_kind=self.source.kind,
            source_id=self.source.identity,
            baseline=self.baseline,
            detail={"targets": list(self.source.targets), **self.source.detail},
        )

    def to_json(self) -> dict[str, Any]:
        """The side as JSON types, for `from_json`."""
        return {
            "position": self.position,
            "implementation": self.implementation,
            "source": self.source.to_json(),
            "baseline": self.baseline,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Side:
        """The side that `to_json` wrote."""
        return cls(data["position"], data["implementation"], Source.from_json(data["source"]), data["baseline"])
