"""Logs the checks that catch a candidate: the first one ends its evaluation, but in a study all go on.

A study says what each check alone catches, so that one which catches nothing that others do not can go
(benchmarks/judge/check_ablation.py).
"""

import contextlib
from typing import Generator, List

from .verdicts import Judged

ENOUGH = 2
"""Catches of one kind of trial; to look closer at further ones takes a study longer than it tells."""


class CatchLog:
    """Log of catches in this job, by kind of trial."""

    def __init__(self) -> None:
        self.goes_on = False
        """Whether this is a study."""
        self.trial = "start"
        """The kind of trial that is under way."""
        self.caught: List[List[str]] = []
        """Trial, verdict and reason of each catch of a study."""

    @contextlib.contextmanager
    def during(self, trial: str) -> Generator[None, None, None]:
        """Name the kind of trial that a block is."""
        before, self.trial = self.trial, trial
        try:
            yield
        finally:
            self.trial = before

    def knows(self) -> bool:
        """Say whether a study has caught the candidate often enough in this kind of trial."""
        return self.goes_on and sum(trial == self.trial for trial, *_ in self.caught) >= ENOUGH

    @contextlib.contextmanager
    def check(self) -> Generator[None, None, None]:
        """Have a block of checks end the evaluation, or in a study note what it found.

        Raises:
            Judged: As the block does, where this is no study.
        """
        try:
            yield
        except Judged as judged:
            if not self.goes_on:
                raise
            self.caught.append([self.trial, judged.verdict, judged.reason.splitlines()[0][:300]])


CATCHES = CatchLog()
"""A process judges one candidate."""
