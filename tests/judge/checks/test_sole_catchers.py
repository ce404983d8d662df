"""Checks that alone catch a cheat (benchmarks/results/cpu-check-ablation.md): without the check, that cheat passes."""

import tomllib
from pathlib import Path

import pytest

from tests.judge.harness import ROOT, edited, thorough

CHEATS = ROOT / "examples" / "cheats"
SEEN_AT_OTHER_INPUTS = edited(
    "checks/distribution_rounds.py", ("        if not self.names:\n            return", "        return")
)
SEEN_BY_DOUBLE_PRECISION = edited(
    "checks/strict_precision.py", ("        if not (self.wanted and", "        if True or (self.wanted and")
)
SEEN_WHERE_ROUNDS_STOP = edited(
    "checks/interrupted_rounds.py", ("                self._in_the_middle(buffers)", "                pass")
)
ALONE = {
    "maximum_at_first": SEEN_AT_OTHER_INPUTS,
    "exact_at_first": SEEN_BY_DOUBLE_PRECISION,
    "put_off": SEEN_WHERE_ROUNDS_STOP,
    "batch_by_frames": SEEN_WHERE_ROUNDS_STOP,
}


@pytest.mark.parametrize("cheat", ALONE)
@pytest.mark.parametrize("without", [False, True], ids=["with it", "without it"])
def test_a_cheat_passes_where_the_check_that_alone_catches_it_is_switched_off(court, tmp_path: Path, cheat, without):
    table = tomllib.loads((CHEATS / "index.toml").read_text())
    (row,) = [one for one in table["candidates"] if one["id"] == cheat]
    problem = dict(table["problems"][row["problem"]])
    problem.pop("cuda_shapes", None)
    (tmp_path / "reference.py").write_text(problem.pop("reference"))
    problem["inputs"] = [{"distribution": "normal", **item} for item in problem["inputs"]]
    task = {**problem, "max_rounds": 12, "budget_s": 60.0}
    verdict = court(
        (CHEATS / row["file"]).read_text(),
        reference=tmp_path / "reference.py",
        owner_files={**thorough(), **(ALONE[cheat] if without else {})},
        **task,
    ).verdict

    assert (verdict["verdict"] == "correct") == without, verdict["reason"]
