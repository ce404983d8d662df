"""Forms in which public tasks say yes or no, and what their inputs are."""

import types
from typing import Any

import numpy as np
import pytest

from gpu_mcp_server.judge.adapters.case_module import verdict_of
from gpu_mcp_server.judge.adapters.shape_sweep import ShapeSweep


@pytest.mark.parametrize(
    ("found", "passed", "said"),
    [
        (True, True, ""),
        ((False, "residual 3"), False, "residual 3"),
        ([True, "", 5], True, ""),
        ((np.all(np.array([True])), "differs"), True, "differs"),
        (np.array([1.0]).sum() > 2, False, ""),
        (np.array(False), False, ""),
        ("", True, ""),
        ([], True, "[]"),
        (["element 3"], False, "['element 3']"),
        ("ok", False, "ok"),
    ],
)
def test_a_check_says_yes_by_a_truth_value_or_by_no_failures(found: Any, passed: bool, said: str):
    assert verdict_of(found) == (passed, said)


@pytest.mark.parametrize(
    "found", [None, 1, 1.0, {"passed": True}, np.array([True, True]), (np.array([True, False]), "")]
)
def test_what_is_neither_is_an_error_and_no_yes(found: Any):
    with pytest.raises(ValueError, match=r"neither a bool|size 1"):
        verdict_of(found)


def test_a_sweep_sets_a_cases_names_and_refuses_a_task_whose_inputs_its_own_check_makes():
    module: Any = types.SimpleNamespace(Model=object, n=1, get_init_inputs=list)
    module.get_inputs = lambda: [module.n] * module.n
    sweep = ShapeSweep(module, {"cases": [{"n": 2}, {"n": 0}]}, {})
    sweep.select(1)
    assert sweep.get_inputs() == [2, 2]
    sweep.select(2)
    with pytest.raises(ValueError, match=r"get_inputs gives no inputs; the task's own check\.py makes them"):
        sweep.get_inputs()
