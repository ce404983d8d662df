"""Forms in which the checks of public tasks say yes or no."""

from typing import Any

import numpy as np
import pytest

from gpu_mcp_server.judge.adapters.case_module import verdict_of


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
