"""Refusals by the judge itself before a problem's own check is asked."""

import numpy as np
import pytest
from gpu_mcp_judge.correctness.own_check import NOT_FINITE, OwnCheck, is_not_finite
from gpu_mcp_judge.devices.device import RoundCheck
from gpu_mcp_judge.numerics.random_inputs import Well
from gpu_mcp_judge.numerics.tensors import Tensor

Y = Tensor("y", "float32", (2,), ("n",), "normal")


@pytest.mark.parametrize(
    ("expected", "answer", "refused"),
    [
        ([1, 2], [1, np.nan], True),
        ([1, 2], [-np.inf, 2], True),
        ([1, np.nan], [3, np.nan], False),
        ([np.inf, 2], [1, 2], False),
    ],
)
def test_nan_and_infinite_are_wrong_where_the_reference_is_finite(expected, answer, refused):
    pair = (np.array(each, "float32") for each in (expected, answer))

    assert is_not_finite(Y, *pair) is refused


def test_a_check_that_would_take_nan_is_not_asked():
    """Checks say `error > limit: wrong`, and NaN is not above any limit."""

    class Buffers:
        outputs = (Y,)

        def pair(self, call, output):
            return np.zeros(2, "float32"), np.full(2, np.nan, "float32")

    class Reference:
        def thaw(self):
            pass

        freeze = thaw

        def ask(self, *words, **more):
            raise AssertionError("asked")

    own = OwnCheck(Reference(), Well("00" * 32), 1.0)
    wrong = np.ones((3, 1), int)
    left = own.excuse(Buffers(), RoundCheck(wrong=wrong, max_abs=0.0, max_rel=0.0))

    assert left.wrong.sum() == 1 and own.reason.endswith(NOT_FINITE)
