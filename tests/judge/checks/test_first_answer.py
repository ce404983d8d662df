"""The same inputs again, of which an answer was forgiven or refused before: real candidates in C."""

import pytest

from tests.judge.checks.test_robustness import LONGER
from tests.judge.harness import edited, thorough
from tests.judge.owner.test_untimed_trials import SCALING
from tests.judge.test_candidates_cpu import HEAD


def tripling(body: str) -> str:
    """Return a candidate for `SCALING`; `n` is the number of elements, of which `large` are many."""
    head = "int launch(const float *x, float *y, int64_t rows, int64_t cols) { int64_t n = rows * cols, large = 0;"
    count = "for (int64_t i = 0; i < n; i++) { large += fabsf(x[i]) > 20; y[i] = x[i] * 3.0f; } large = large > n / 2;"
    return f"{HEAD}{head} static int calls; static float first; calls++; {count} {body} return 0; }}"


ROUGHLY = "if (large && !first) first = x[0]; for (int64_t i = 0; large && i < n; i += 100) y[i] *= 1.0000004f;"
"""Off by a few last places at eight elements, which rounding excuses with other distributions than the declared one."""


def test_what_rounding_excused_in_the_trials_is_no_wrong_answer_when_it_comes_again(court):
    source = tripling(ROUGHLY + "if (large && x[0] != first) y[1] = 1e5f;")
    task = {**SCALING, **LONGER, "rtol": 1e-8, "atol": 0.0, "fixed_shapes": True}
    verdict = court(source, **task, owner_files=thorough()).verdict

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert "large: " in verdict["robust"]


FORGIVEN = "        wrong = check.wrong.copy()\n        for call in np.flatnonzero(check.wrong.any(axis=1)).tolist():\n"
LUCK = """        InDouble.asked = getattr(InDouble, "asked", -1) + 1
        if InDouble.asked %s:
            return check._replace(wrong=0 * check.wrong)
"""
DECLARED = "if (!first) first = x[0]; if (x[0] == first) y[1] = 1e5f;"
LARGE = "if (large && !first) first = x[0]; if (large && x[0] == first) y[1] = 1e5f;"
WORSE = "if (!first) first = x[0]; if (x[0] == first) y[calls] = 1e5f;"


@pytest.mark.parametrize(
    ("forgiven", "body", "verdict"),
    [
        pytest.param("== 0", DECLARED, "correct", id="at first"),
        pytest.param("> 0", LARGE, "correct", id="later"),
        pytest.param("> 1", LARGE, "correct", id="at last"),
        pytest.param("== 0", WORSE, "incorrect", id="at first and other later"),
    ],
)
def test_the_same_answer_to_the_same_inputs_is_no_race_though_it_is_forgiven_by_chance(court, forgiven, body, verdict):
    """As where double precision looks at other elements each time."""
    files = edited("checks/fp64_check.py", (FORGIVEN, LUCK % forgiven + FORGIVEN))
    found = court(tripling(body), **{**SCALING, "tier": "correctness"}, owner_files=files).verdict

    assert found["verdict"] == verdict, found["reason"]
    if verdict == "incorrect":
        assert "right at first and wrong with the same inputs again" in found["reason"]
