"""A court for candidates: writes, compiles and judges them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.judge.harness import EXAMPLES, Outcome, build, judge

Court = Callable[..., Outcome]


@pytest.fixture
def court(tmp_path: Path) -> Court:
    """Return a function that judges C source (or an example's name) against the softmax reference."""

    def sit(candidate: str, **task: Any) -> Outcome:
        if candidate.endswith(".c"):
            source = EXAMPLES / candidate
        else:
            source = tmp_path / "candidate.c"
            source.write_text(candidate)
        outcome = judge(tmp_path, task.pop("reference", EXAMPLES / "reference.py"), build(source, tmp_path), **task)
        assert outcome.exit_code == 0, outcome.stderr
        return outcome

    return sit


@pytest.fixture
def register(tmp_path: Path) -> Court:
    """Return a function that registers a reference's source."""

    def sit(reference: str | Path, **task: Any) -> Outcome:
        outcome = judge(tmp_path, reference, **task)
        assert outcome.exit_code == 0, outcome.stderr
        return outcome

    return sit
