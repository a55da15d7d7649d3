"""frostline, by `frostline compare`; the verdicts and the rounds' ratios are read from its database."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from frostline.harness.trials.tools.base import SCRATCH, Answer, Reading, Shell, ToolFailed
from frostline.results.record import STEP_TIME
from frostline.results.store import Store

QUICK_ROUNDS = 6  # the fewest that conclude anything


@dataclass(frozen=True)
class Frostline:
    """One way of running it: `isolation` is `spawn` or `fork`, `suite` decides whether the sides fit beside each other."""

    shell: Shell
    isolation: str = "fork"
    in_turn: bool = False
    name: str = "frostline"

    @property
    def settings(self) -> Sequence[str]:
        """The one setting: `fork, in blocks`, ..."""
        return (f"{self.isolation}, {'in turn' if self.in_turn else 'in blocks'}",)

    def commands(self, tag: str) -> Sequence[Sequence[str]]:
        """The one command."""
        suite = f"bench_frostline.py::{'alone' if self.in_turn else 'steps'}"
        chosen = ["--set", f"step={','.join(self.shell.steps)}", "--rounds", str(QUICK_ROUNDS)] if self.shell.quick else []
        options = ["--suite", suite, "--isolation", self.isolation, "--threads", "1", *chosen]
        return [["frostline", "compare", "base", tag, *options, "--db", f"{SCRATCH}/trials.db"]]

    def set_up(self, tags: Sequence[str]) -> None:
        """Build every revision."""
        for tag in () if self.shell.quick else tags:
            self._fresh()
            (command,) = self.commands(tag)
            self.shell.run([*command, "--set", "step=python", "--rounds", "1"])

    def compare(self, tag: str) -> Answer:
        """Run it and read its database."""
        self._fresh()
        (command,) = self.commands(tag)
        done = self.shell.run(command)
        with Store.open(self.shell.scratch / "trials.db", create=False) as store:
            session = store.session()
            steps = {case.id: str(case.params["step"]) for case in store.cases(session.id)}
            verdicts = [one for one in store.verdicts(session.id) if one.metric == STEP_TIME.name]
            ratios = sorted(store.ratios(session.id), key=lambda one: one.round)
        if len(verdicts) != len(steps):
            raise ToolFailed(f"frostline compare base {tag}: {len(verdicts)} verdicts on times for {len(steps)} steps")
        readings = []
        for one in verdicts:
            logs = [item.log_ratio for item in ratios if item.case_id == one.case_id and item.metric == one.metric]
            readings.append(Reading(self.settings[0], steps[one.case_id], str(one.outcome), one.effect, logs))
        return Answer(readings, done.seconds)

    def _fresh(self) -> None:
        shutil.rmtree(self.shell.scratch, ignore_errors=True)
        self.shell.scratch.mkdir()
