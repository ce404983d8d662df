"""Answers that a problem's own check is shown on trial."""

import numpy as np
import pytest

from gpu_mcp_server.judge.numerics.tensors import Tensor
from gpu_mcp_server.judge.owner.trivial_answers import ONE_IN, spoiled_answers

TEXT = "with one element in 1000 changed by half"


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "int32", "uint8"])
def test_one_element_in_a_thousand_differs_visibly_though_it_is_minus_the_usual_size(dtype: str):
    signed = dtype != "uint8"
    answer = np.resize(np.array([-8, 8] if signed else [8, 0], dtype), 2 * ONE_IN + 1)
    (changed,) = dict(spoiled_answers([Tensor("y", dtype, answer.shape, (), "normal")], [answer]))[TEXT]

    moved = np.abs(changed.astype(np.float64) - answer)
    assert (moved[::ONE_IN] >= 4).all(), moved[::ONE_IN]
    moved[::ONE_IN] = 0
    assert not moved.any()


def test_an_answer_of_zeros_and_infinities_is_changed_as_well():
    answer = np.zeros(ONE_IN + 1, np.float32)
    answer[ONE_IN] = np.inf
    (changed,) = dict(spoiled_answers([Tensor("y", "float32", answer.shape, (), "normal")], [answer]))[TEXT]
    assert changed[0] == 0.5 and changed[ONE_IN] == np.inf
