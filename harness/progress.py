"""How far a session is and how long it will take: a bar on a terminal, plain lines elsewhere.

Drawn only between measurements: nothing here runs on a thread of its own while a process measures.
"""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar


class Progress:
    """Counts the parts of a session: `begin`, then `step` after each part; `note` says what people must know now.

    A context manager, so that no bar is left on the screen when a session ends in an error.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar: Bar | None = None
        self._total = self._done = 0
        self._work = self._worked = 0.0
        self._begun = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self, total: int, what: str, *, work: float | None = None) -> None:
        """Start counting `total` parts; a second call starts a new count.

        Parts that do not take equally long come with how much `work` all of them are, in any unit, and each with its own.
        """
        self.end()
        self._total, self._done, self._begun = total, 0, time.monotonic()
        self._work, self._worked = total if work is None else work, 0.0
        if self.console.is_terminal and total:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}"),
            )
            self._bar = Bar(*columns, console=self.console, auto_refresh=False, transient=True)
            self._bar.add_task(what, total=total, left="")
            self._bar.start()
            self._bar.refresh()

    def step(self, label: str, *, work: float = 1.0) -> None:
        """One part is done, which was so much of the work."""
        self._done += 1
        self._worked += work
        left = self.time_left()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], advance=1, description=label, left=left)
            self._bar.refresh()
        else:
            width = len(str(self._total))
            self.console.print(
                f"[{self._done:{width}}/{self._total}] {label}  ({left})", markup=False, highlight=False, soft_wrap=True
            )

    def note(self, text: str) -> None:
        """Say something that stays on the screen."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def end(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def time_left(self) -> str:
        """An estimate from the mean time of the work so far."""
        if self._done >= self._total:
            return "done"
        seconds = (time.monotonic() - self._begun) / (self._worked or 1.0) * (self._work - self._worked)
        return f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"about {seconds:.0f} s left"
