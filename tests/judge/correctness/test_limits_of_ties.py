"""Limits of time and size at which the judge stops looking for ties, and what it says of what it cannot know."""

import os
from typing import Any

import numpy as np
import pytest
from gpu_mcp_judge.correctness import discrete_ties
from gpu_mcp_judge.devices.device import RoundCheck
from gpu_mcp_judge.numerics.random_inputs import Well
from gpu_mcp_judge.numerics.tensors import Tensor
from gpu_mcp_judge.verdicts import JudgeFailed

from tests.judge.correctness.test_discrete_ties import CODES, LARGEST, LAST, SEED, coded, largest, task


class Two:
    """A call with two elements that differ from the reference's."""

    inputs = (Tensor("x", "float16", (8,), ("n",), "normal"),)
    outputs = (Tensor("at", "int32", (2,), ("rows",), ""),)

    def pair(self, call: int, output: int) -> tuple[Any, Any]:
        return np.zeros(2, dtype=np.int32), np.ones(2, dtype=np.int32)


class Reference:
    """Gives the candidate's answers to inputs that were moved often enough."""

    def __init__(self, *after: float) -> None:
        self.after, self.moved = np.array(after), 0

    def thaw(self) -> None:
        pass

    freeze = thaw

    def ask(self, do: str, timeout_s: float, descriptors: list[int], how: str, **more: Any) -> dict[str, Any]:
        self.moved += how == "moved"
        os.pwrite(descriptors[0], (self.moved >= self.after).astype(np.int64).tobytes(), 0)
        return {}


@pytest.mark.parametrize(
    ("after", "passed", "most"),
    [
        ((1, 150), True, 150),
        ((1, np.inf), False, 1 + discrete_ties.MORE_TRIES),
        ((np.inf, np.inf), False, discrete_ties.TRIES),
    ],
)
def test_tries_go_on_for_long_only_where_some_ties_were_found(monkeypatch, after, passed, most):
    """Of many that tie each try decides for one, and a parallel reduction may name any of them."""
    monkeypatch.setattr(discrete_ties, "MORE_S", 60.0)
    reference = Reference(*after)
    one = discrete_ties.Ties(reference, Well("ab" * 32), 0.0, 0.0, 1.0)

    assert one.excuse(Two(), RoundCheck(np.array([[2]]), 1.0, 1.0)).passed is passed
    assert reference.moved == most - (0 if after[0] == 1 else len(discrete_ties.ONE_WAY))


@pytest.mark.parametrize(
    ("most", "calls", "compared", "passes"), [(2, 40, 1, True), (1, 1, 1, None), (1, 1, -1, False)]
)
def test_a_limit_of_elements_is_a_calls_and_beyond_it_few_are_no_verdict(monkeypatch, most, calls, compared, passes):
    """Timed rounds have many calls of as many elements as the first check, which had one."""
    monkeypatch.setattr(discrete_ties, "MOST_ELEMENTS", most)
    monkeypatch.setattr(discrete_ties, "MORE_S", 60.0)
    monkeypatch.setattr(discrete_ties, "AT_ONCE", most)
    monkeypatch.setattr(discrete_ties, "LEAST", 3 * compared)
    ties = discrete_ties.Ties(Reference(1, 150), Well("ab" * 32), 0.0, 0.0, 1.0)
    check = RoundCheck(np.full((calls, 1), 2), 1.0, 1.0)
    if passes is None:
        with pytest.raises(JudgeFailed, match="did not look whether values tie"):
            ties.excuse(Two(), check)
    else:
        assert ties.excuse(Two(), check).passed is passes
        assert bool(ties.advice) is not passes


JUMPS = task(
    "def f(x):\n    return (np.floor(x.astype(np.float64) * 1e9) % 100003).astype(np.int32)\n",
    CODES["outputs"],
    {"rows": 1, "cols": 2},
    "float32",
    fixed_shapes=True,
    distributions="declared",
)


def test_an_answer_that_the_last_places_of_its_inputs_decide_is_told_so(court):
    source = coded("code[i] = (int32_t)fmod(floor((double)(x[i] * 1e9f)) + 100003e6, 100003.0);")
    verdict = court(source, **JUMPS, seed=SEED).verdict
    assert verdict["verdict"] == "incorrect" and "; rounding decides such elements" in verdict["reason"], verdict

    verdict = court(largest(LAST.replace("c < cols", "c < cols - 1")), **LARGEST).verdict
    assert verdict["verdict"] == "incorrect" and "rounding decides" not in verdict["reason"], verdict
