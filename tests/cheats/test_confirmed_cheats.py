"""Cheats that the first look lets through: the confirmation run judges them again, on the real path."""

import shutil
from pathlib import Path

import pytest

from gpu_mcp_server.cli import cheat_suite, selftest
from gpu_mcp_server.models.evaluation import Evaluation
from gpu_mcp_server.services.lab import Lab
from tests.services.evaluation.test_confirmation_runs import RIGHT, WRONG, recorded, register

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


class FooledSuite(cheat_suite.CheatSuite):
    """Its first look takes every candidate for correct and fast; its confirmation runs are real."""

    async def _evaluated(self, candidate: cheat_suite.CheatCandidate) -> Evaluation:
        text = candidate.path.read_text()
        attempt = await recorded(self.lab, await register(self.lab), text, 900.0)
        columns = {n: getattr(attempt, n) for n in ("attempt_id", "problem_id", "problem_hash", "language", "host")}
        return Evaluation(status="judged", verdict="correct", speedup=900.0, **columns)


@pytest.mark.timeout(600)  # two evaluations, on a busy machine too
async def test_a_cheat_that_fools_the_first_look_is_stopped_by_the_confirmation_run(lab: Lab, tmp_path: Path):
    (tmp_path / "cheat.c").write_text(WRONG)
    (tmp_path / "right.c").write_text(RIGHT)
    wrong, right = await FooledSuite(lab).judge_all(cheat_suite.candidates_in_folder(tmp_path))

    assert (wrong.verdict, wrong.stopped_by, wrong.was_missed) == ("incorrect", "confirmation run", False)
    assert wrong.caught_by == "every element of every timed call" and wrong.reason.startswith("the second run says")
    assert (right.verdict, right.stopped_by, right.was_missed) == ("correct", "", True), "nothing stops what is right"
    head, first, second, *_ = selftest._matrix([wrong, right]).splitlines()
    assert "stopped by" in head and "confirmation run" in first and "confirmation run" not in second
